"""Anthropic Messages backends over HTTP, with a strict server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.api.routes.test_responses import client
from tests.support import laws
from tests.support.hosted_lab import ScriptedTool
from tests.support.messages_server import (
    MessagesServer,
    error,
    message,
    redacted,
    searched,
    signature_of,
    text,
    thinking,
    tool_use,
)
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
OUTPUT = {"type": "function_call_output", "call_id": "toolu_1", "output": "A cat."}
FIRST: dict[str, Any] = {
    "model": "claude-opus-5",
    "input": "Look.",
    "tools": [LOOK],
    "reasoning": {"effort": "high"},
}
SEALED: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}


@pytest_asyncio.fixture
async def claude() -> AsyncIterator[MessagesServer]:
    async with MessagesServer() as server:
        yield server
        assert server.refusals == []


def thinks_and_calls() -> list[Any]:
    return message(thinking("I should", " look."), redacted(), text("I look."), tool_use("toolu_1", "look", "{}"))


async def by_the_server(http: httpx.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    response = (await http.post("/v1/responses", json=first)).json()
    return {**first, "previous_response_id": response["id"], "input": [OUTPUT]}


async def in_a_conversation(http: httpx.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    await http.post("/v1/responses", json={**first, "conversation": conversation})
    return {**first, "conversation": conversation, "input": [OUTPUT]}


async def by_the_client_and_sealed(http: httpx.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    response = (await http.post("/v1/responses", json={**first, **SEALED})).json()
    items = [
        {name: value for name, value in item.items() if name != "content"} if item["type"] == "reasoning" else item
        for item in response["output"]
    ]
    return {**first, **SEALED, "input": [{"role": "user", "content": "Look."}, *items, OUTPUT]}


@pytest.mark.parametrize("kept", [by_the_server, in_a_conversation, by_the_client_and_sealed])
async def test_signed_thoughts_go_back_unchanged_with_the_result_of_their_call(
    claude: MessagesServer, kept: Any
) -> None:
    async with (
        antiphon(backend_url=claude.url, backend_profile="anthropic", backend_api_key="k") as url,
        client(url) as http,
    ):
        claude.say(thinks_and_calls())
        claude.say(message(text("A cat.")))
        answer = (await http.post("/v1/responses", json=await kept(http, FIRST))).json()
    assert answer["status"] == "completed", answer
    _, assistant, results = claude.requests[-1].json["messages"]
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "I should look.", "signature": signature_of("I should look.")},
        {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    ]
    assert results["content"][0]["tool_use_id"] == "toolu_1"
    request = claude.requests[-1]
    assert request.headers["x-api-key"] == "k" and request.headers["anthropic-version"] == "2023-06-01"
    assert request.path == "/v1/messages"


async def test_signed_thoughts_survive_a_restart(claude: MessagesServer, tmp_path: Path) -> None:
    settings = {"backend_url": claude.url, "backend_profile": "anthropic", "store_url": f"sqlite:///{tmp_path}/a.db"}
    async with antiphon(**settings) as url, client(url) as http:
        claude.say(thinks_and_calls())
        rest = await by_the_server(http, FIRST)
    async with antiphon(**settings) as url, client(url) as http:
        assert (await http.post("/v1/responses", json=rest)).json()["status"] == "completed"
    assistant = claude.requests[-1].json["messages"][1]
    assert assistant["content"][0]["signature"] == signature_of("I should look.")


async def test_signed_thoughts_go_to_no_other_server(claude: MessagesServer) -> None:
    async with MessagesServer() as other, Upstream() as chat:
        claude.say(thinks_and_calls())
        chat.always(sse(chunk("Seen."), finish(), DONE))
        backends = {
            "claude": {"url": claude.url, "profile": "anthropic", "models": ["claude*"]},
            "other": {"url": other.url, "profile": "anthropic", "models": ["other*"]},
            "chat": {"url": chat.url, "models": ["*"]},
        }
        async with antiphon(backends=backends) as url, client(url) as http:
            first = (await http.post("/v1/responses", json=FIRST)).json()
            rest = {**FIRST, "previous_response_id": first["id"], "input": [OUTPUT]}
            for model in ("other", "m"):
                answer = await http.post("/v1/responses", json={**rest, "model": model})
                assert answer.json()["status"] == "completed", answer.json()
                assert "another server" in answer.headers["x-antiphon-warning"]
        assert [block["type"] for block in other.requests[0].json["messages"][1]["content"]] == ["text", "tool_use"]
        assert signature_of("I should look.").encode() not in chat.requests[0].body
        assert other.refusals == []


async def test_stream_and_a_document_are_the_same_and_keep_the_laws(claude: MessagesServer) -> None:
    async with antiphon(backend_url=claude.url, backend_profile="anthropic") as url, client(url) as http:
        claude.say(thinks_and_calls())
        claude.say(thinks_and_calls())
        whole = (await http.post("/v1/responses", json=FIRST)).json()
        streamed = await http.post("/v1/responses", json={**FIRST, "stream": True})
    made = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    laws.check(made)
    kinds = [item["type"] for item in whole["output"]]
    assert (
        kinds
        == [item["type"] for item in made[-1]["response"]["output"]]
        == ["reasoning", "reasoning", "message", "function_call"]
    )


async def test_tokens_of_the_cache_are_in_the_usage_and_priced(claude: MessagesServer) -> None:
    usage = {
        "input_tokens": 1000,
        "cache_read_input_tokens": 10_000,
        "cache_creation_input_tokens": 2000,
        "output_tokens": 100,
    }
    claude.say(message(text("Hi."), usage=usage))
    prices = {"claude*": {"input": "5", "output": "25", "cached_input": "0.5", "cache_write": "6.25"}}
    async with antiphon(backend_url=claude.url, backend_profile="anthropic", prices=prices) as url, client(url) as http:
        answer = await http.post("/v1/responses", json={"model": "claude-opus-5", "input": "Hi"})
    counted = answer.json()["usage"]
    assert counted["input_tokens"] == 13_000
    assert counted["input_tokens_details"] == {"cached_tokens": 10_000, "cache_write_tokens": 2000}
    cost = (1000 * 5 + 10_000 * 0.5 + 2000 * 6.25 + 100 * 25) / 10**6
    assert float(answer.headers["x-antiphon-cost"]) == pytest.approx(cost)


async def test_server_counts_the_tokens_of_a_prompt(claude: MessagesServer) -> None:
    async with antiphon(backend_url=claude.url, backend_profile="anthropic") as url, client(url) as http:
        counted = (await http.post("/v1/responses/input_tokens", json=FIRST)).json()
    assert counted["input_tokens"] == 17
    (request,) = claude.requests
    assert request.path == "/v1/messages/count_tokens"
    assert "max_tokens" not in request.json and "stream" not in request.json


async def test_query_of_the_profile_is_sent_when_tokens_are_counted(claude: MessagesServer) -> None:
    options: dict[str, Any] = {"backend_overrides": {"transport.query": {"api-version": "1"}}}
    async with antiphon(backend_url=claude.url, backend_profile="anthropic", **options) as url, client(url) as http:
        await http.post("/v1/responses/input_tokens", json=FIRST)
    assert claude.requests[0].path == "/v1/messages/count_tokens?api-version=1"


async def test_overloaded_server_is_asked_again(claude: MessagesServer) -> None:
    claude.say(error(529, "overloaded_error", "Overloaded"))
    async with antiphon(backend_url=claude.url, backend_profile="anthropic") as url, client(url) as http:
        answer = (await http.post("/v1/responses", json={"model": "claude-opus-5", "input": "Hi"})).json()
    assert answer["status"] == "completed" and len(claude.requests) == 2


async def test_refusal_reaches_the_caller_as_one(claude: MessagesServer) -> None:
    claude.say(
        message(
            text("To build"),
            stop="refusal",
            stop_details={"type": "refusal", "explanation": "I will not.", "category": None},
        )
    )
    async with antiphon(backend_url=claude.url, backend_profile="anthropic") as url, client(url) as http:
        answer = (await http.post("/v1/responses", json={"model": "claude-opus-5", "input": "Hi"})).json()
    (item,) = answer["output"]
    assert item["content"][-1] == {"type": "refusal", "refusal": "I will not."}


async def test_message_that_the_server_paused_is_continued_as_one_answer(claude: MessagesServer) -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": 4}
    claude.say(
        message(thinking("I should search."), text("Let me", " see."), *searched("x"), stop="pause_turn", usage=usage)
    )
    claude.say(message(*searched("y"), stop="pause_turn", usage=usage))
    claude.say(message(text(" Here it is."), usage=usage))
    search = {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    overrides = {"request.extra_body": search, "request.cache": "off"}
    async with (
        antiphon(backend_url=claude.url, backend_profile="anthropic", backend_overrides=overrides) as url,
        client(url) as http,
    ):
        answer = (
            await http.post("/v1/responses", json={"model": "claude-opus-5", "input": "Hi", "stream": False})
        ).json()
    assert answer["status"] == "completed"
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    assert answer["output"][1]["content"][0]["text"] == "Let me see. Here it is."
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (39, 12)
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 9
    first, second, third = (request.json["messages"] for request in claude.requests)
    assert second[:1] == third[:1] == first
    assert third[1]["content"][:4] == second[1]["content"]
    assert [block["type"] for block in second[1]["content"]] == [
        "thinking",
        "text",
        "server_tool_use",
        "web_search_tool_result",
    ]
    assert second[1]["content"][1]["text"] == "Let me see." and second[1]["content"][2]["input"] == {"query": "x"}
    assert second[1]["content"][0]["signature"] == signature_of("I should search.")
    assert len(third[1]["content"]) == 6


async def test_fallback_is_asked_by_its_own_api(claude: MessagesServer) -> None:
    async with Upstream() as chat:
        chat.always(sse(chunk("By chat."), finish(), DONE))
        backends = {
            "claude": {
                "url": claude.url,
                "profile": "anthropic",
                "models": ["claude*"],
                "fallbacks": ["chat"],
                "retries": 0,
            },
            "chat": {"url": chat.url, "models": ["m"], "fallbacks": ["claude"], "retries": 0},
        }
        async with antiphon(backends=backends) as url, client(url) as http:
            claude.say(error(529, "overloaded_error", "Overloaded"))
            answer = (await http.post("/v1/responses", json={"model": "claude-opus-5", "input": "Hi"})).json()
            assert answer["output"][0]["content"][0]["text"] == "By chat."
            chat.always(error(503, "overloaded_error", "Overloaded"))
            answer = (await http.post("/v1/responses", json={"model": "m", "input": "Hi"})).json()
            assert answer["output"][0]["content"][0]["text"] == "Hello there."


async def test_thoughts_are_kept_between_the_rounds_of_hosted_tools_and_behind_them(claude: MessagesServer) -> None:
    ScriptedTool.reset()
    claude.say(message(thinking("I should add."), tool_use("toolu_1", "lab__add", '{"a": 1', ', "b": 2}')))
    claude.say(message(thinking("Three."), text("It is 3.")))
    async with (
        antiphon(
            backend_url=claude.url,
            backend_profile="anthropic",
            tools={"lab": {"tool": "tests.support.hosted_lab:LabTool"}},
        ) as url,
        client(url) as http,
    ):
        first = (
            await http.post("/v1/responses", json={**FIRST, "tools": [{"type": "mcp", "server_label": "lab"}]})
        ).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "mcp_call", "reasoning", "message"]
        after = {
            **FIRST,
            "tools": [{"type": "mcp", "server_label": "lab"}],
            "previous_response_id": first["id"],
            "input": "And?",
        }
        assert (await http.post("/v1/responses", json=after)).json()["status"] == "completed"
    for request in claude.requests[1:]:
        _, assistant, results, *_ = request.json["messages"]
        assert [block["type"] for block in assistant["content"]] == ["thinking", "tool_use"]
        assert results["content"][0]["tool_use_id"] == "toolu_1"
    assert [block["type"] for block in claude.requests[2].json["messages"][3]["content"]] == ["thinking", "text"]
