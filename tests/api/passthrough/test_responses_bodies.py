"""Responses bodies at `/chat/completions`, as sent by Cursor, are answered as responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support import laws
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, status, usage

# Cursor's request: messages with a single text, tools without a wrapper, and options from both APIs.
CURSOR: dict[str, Any] = {
    "model": "m",
    "user": "u",
    "input": [
        {"role": "system", "content": "You help in an editor."},
        {"role": "user", "content": [{"type": "input_text", "text": "Read it."}]},
        {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": '{"path": "a.py"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "print(1)"},
        {"role": "user", "content": "What does it print?"},
    ],
    "tools": [
        {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}, "strict": False}
    ],
    "tool_choice": "auto",
    "reasoning": {"effort": "medium", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "text": {"verbosity": "low"},
    "store": False,
    "stream": True,
    "stream_options": {"include_usage": True},
    "prompt_cache_retention": "24h",
    "metadata": {"cursorConversationId": "c"},
}
ANSWER = sse(chunk("On"), chunk("e."), finish(), usage(), DONE)


@pytest_asyncio.fixture
async def http(up: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(backend_url=up.url, api_keys="sk-caller", backend_retries=0) as url:
        headers = {"Authorization": "Bearer sk-caller"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as client:
            yield client


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/chat/completions", "/openai/deployments/m/chat/completions"]
)
async def test_body_of_responses_is_streamed_as_a_response(http: httpx.AsyncClient, up: Upstream, path: str) -> None:
    up.say(ANSWER)
    answer = await http.post(path, json=CURSOR)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(line) for line in lines]
    laws.check(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "One."
    chat_body = up.requests[-1].json
    assert [message["role"] for message in chat_body["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert chat_body["tools"][0]["function"]["name"] == "read_file"
    assert "stream_options.include_usage" in answer.headers["x-antiphon-warning"]


async def test_body_of_responses_is_answered_whole_and_stored(http: httpx.AsyncClient, up: Upstream) -> None:
    up.say(ANSWER)
    made = (await http.post("/v1/chat/completions", json={"model": "m", "input": "Count."})).json()
    assert (made["object"], made["status"]) == ("response", "completed")
    assert (await http.get(f"/v1/responses/{made['id']}")).json()["output"] == made["output"]


async def test_deployment_of_the_path_is_the_model_of_the_response(http: httpx.AsyncClient, up: Upstream) -> None:
    up.say(ANSWER)
    body = {"model": "other", "input": "Count."}
    assert (await http.post("/openai/deployments/m/chat/completions", json=body)).json()["model"] == "m"
    assert up.requests[-1].json["model"] == "m"


async def test_body_with_messages_is_passed_on_as_it_is(http: httpx.AsyncClient, up: Upstream) -> None:
    up.say(ANSWER)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "input": "mine", "stream": True}
    assert "chat.completion.chunk" in (await http.post("/v1/chat/completions", json=body)).text
    assert up.requests[-1].json == body


@pytest.mark.parametrize(
    ("body", "param"), [({"input": 3}, "input"), ({"input": "Hi", "temperature": "hot"}, "temperature")]
)
async def test_invalid_body_of_responses_is_refused_by_its_field(
    http: httpx.AsyncClient, up: Upstream, body: dict[str, Any], param: str
) -> None:
    refused = await http.post("/v1/chat/completions", json={"model": "m", **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert not up.requests


async def test_refusal_of_the_backend_is_that_of_responses(http: httpx.AsyncClient, up: Upstream) -> None:
    up.say(status(400, {"error": {"message": "The prompt is odd.", "code": "invalid_prompt"}}))
    refused = await http.post("/v1/chat/completions", json={**CURSOR, "stream": True})
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "The prompt is odd.")


async def test_body_of_responses_needs_a_key(http: httpx.AsyncClient, up: Upstream) -> None:
    refused = await http.post("/v1/chat/completions", json=CURSOR, headers={"Authorization": "Bearer sk-other"})
    assert refused.status_code == 401
    assert not up.requests


async def test_body_of_responses_is_answered_where_the_backend_forwards_nothing() -> None:
    async with antiphon() as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        made = await client.post("/v1/chat/completions", json={"model": "demo", "input": "Say hello."})
        assert made.json()["object"] == "response"
        body = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}]}
        assert (await client.post("/v1/chat/completions", json=body)).json()["object"] == "chat.completion"
