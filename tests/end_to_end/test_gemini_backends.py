"""Gemini backends over HTTP, with a server as strict as the real one."""

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
from tests.support.gemini_server import GeminiServer, answer, call, error, signed, text, thought
from tests.support.hosted_lab import ScriptedTool
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
FIRST: dict[str, Any] = {
    "model": "gemini-3-pro",
    "input": "Look.",
    "tools": [LOOK],
    "reasoning": {"effort": "high", "summary": "auto"},
}
ENCRYPTED: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
SIGNED_CALL = signed(call("look", {"a": 1}, "g-1"))


@pytest_asyncio.fixture
async def gemini() -> AsyncIterator[GeminiServer]:
    async with GeminiServer() as server:
        yield server
        assert server.refusals == []


def output_for(response: dict[str, Any]) -> dict[str, Any]:
    """Return the output for a response's last call."""
    (made,) = [item for item in response["output"] if item["type"] == "function_call"]
    return {"type": "function_call_output", "call_id": made["call_id"], "output": "A cat."}


async def by_the_server(http: httpx.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    response = (await http.post("/v1/responses", json=first)).json()
    return {**first, "previous_response_id": response["id"], "input": [output_for(response)]}


async def in_a_conversation(http: httpx.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    response = (await http.post("/v1/responses", json={**first, "conversation": conversation})).json()
    return {**first, "conversation": conversation, "input": [output_for(response)]}


async def by_the_client(http: httpx.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    response = (await http.post("/v1/responses", json={**first, **ENCRYPTED})).json()
    return {
        **first,
        **ENCRYPTED,
        "input": [{"role": "user", "content": "Look."}, *response["output"], output_for(response)],
    }


@pytest.mark.parametrize("kept", [by_the_server, in_a_conversation, by_the_client])
async def test_signatures_go_back_on_their_parts_with_the_result_of_the_call(gemini: GeminiServer, kept: Any) -> None:
    async with (
        antiphon(backend_url=gemini.url, backend_profile="gemini", backend_api_key="k") as url,
        client(url) as http,
    ):
        gemini.say(answer(thought("I should look."), text("I look."), signed(text(" Now.")), SIGNED_CALL))
        gemini.say(answer(text("A cat.")))
        last = await http.post("/v1/responses", json=await kept(http, FIRST))
    assert last.json()["status"] == "completed", last.json()
    assert "x-antiphon-warning" not in last.headers
    _, model, results = gemini.requests[-1].json["contents"]
    assert model == {"role": "model", "parts": [text("I look."), signed(text(" Now.")), SIGNED_CALL]}
    response = {"id": "g-1", "name": "look", "response": {"output": "A cat."}}
    assert results == {"role": "user", "parts": [{"functionResponse": response}]}
    request = gemini.requests[-1]
    assert request.path == "/v1/models/gemini-3-pro:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == "k" and "authorization" not in request.headers
    assert "model" not in request.json


async def test_signed_answer_ends_with_its_message_for_clients_that_store_the_items(gemini: GeminiServer) -> None:
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        gemini.say(answer(thought("Hm."), text("Hello."), {"text": "", "thoughtSignature": "c2ln"}))
        first = (await http.post("/v1/responses", json={**FIRST, **ENCRYPTED})).json()
    assert [item["type"] for item in first["output"]] == ["reasoning", "message"]


async def test_signature_of_the_last_text_is_stored(gemini: GeminiServer) -> None:
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        gemini.say(answer(text("Hello."), {"text": "", "thoughtSignature": "c2ln"}))
        first = (await http.post("/v1/responses", json=FIRST)).json()
        await http.post("/v1/responses", json={**FIRST, "previous_response_id": first["id"], "input": "So?"})
    parts = gemini.requests[-1].json["contents"][1]["parts"]
    assert parts == [text("Hello."), {"text": "", "thoughtSignature": "c2ln"}]


async def test_signatures_survive_a_restart(gemini: GeminiServer, tmp_path: Path) -> None:
    settings = {"backend_url": gemini.url, "backend_profile": "gemini", "store_url": f"sqlite:///{tmp_path}/a.db"}
    async with antiphon(**settings) as url, client(url) as http:
        gemini.say(answer(SIGNED_CALL))
        rest = await by_the_server(http, FIRST)
    async with antiphon(**settings) as url, client(url) as http:
        assert (await http.post("/v1/responses", json=rest)).json()["status"] == "completed"
    assert gemini.requests[-1].json["contents"][1]["parts"] == [SIGNED_CALL]


async def test_signatures_go_to_no_other_server(gemini: GeminiServer) -> None:
    async with GeminiServer() as other, Upstream() as chat:
        gemini.say(answer(SIGNED_CALL))
        chat.always(sse(chunk("Seen."), finish(), DONE))
        backends = {
            "gemini": {"url": gemini.url, "profile": "gemini", "models": ["gemini-3-pro"]},
            "other": {"url": other.url, "profile": "gemini", "models": ["gemini-other"]},
            "chat": {"url": chat.url, "models": ["*"]},
        }
        async with antiphon(backends=backends) as url, client(url) as http:
            rest = await by_the_server(http, FIRST)
            for model in ("gemini-other", "m"):
                last = await http.post("/v1/responses", json={**rest, "model": model})
                assert last.json()["status"] == "completed", last.json()
                assert "another server" in last.headers["x-antiphon-warning"]
        signature = SIGNED_CALL["thoughtSignature"].encode()
        assert signature not in other.requests[0].body and signature not in chat.requests[0].body
        assert other.refusals == []


async def test_stream_and_document_are_the_same_and_keep_the_laws(gemini: GeminiServer) -> None:
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        gemini.always(answer(thought("I should look."), text("I look."), SIGNED_CALL))
        whole = (await http.post("/v1/responses", json=FIRST)).json()
        streamed = await http.post("/v1/responses", json={**FIRST, "stream": True})
    made = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    laws.check(made)
    kinds = [item["type"] for item in whole["output"]]
    assert (
        kinds == [item["type"] for item in made[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]
    )
    assert whole["output"][0]["summary"] == [{"type": "summary_text", "text": "I should look."}]


async def test_signatures_are_kept_between_the_rounds_of_hosted_tools_and_after_them(gemini: GeminiServer) -> None:
    ScriptedTool.reset()
    made = signed(call("lab__add", {"a": 1, "b": 2}))
    gemini.say(answer(thought("I should add."), made))
    gemini.say(answer(text("It is 3.")))
    tools = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}
    async with antiphon(backend_url=gemini.url, backend_profile="gemini", tools=tools) as url, client(url) as http:
        body = {**FIRST, "tools": [{"type": "mcp", "server_label": "lab"}]}
        first = (await http.post("/v1/responses", json=body)).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "mcp_call", "message"]
        await http.post("/v1/responses", json={**body, "previous_response_id": first["id"], "input": "And?"})
    assert len(gemini.requests) == 3
    for request in gemini.requests[1:]:
        assert request.json["contents"][1]["parts"] == [made]


async def test_models_are_listed_without_those_that_generate_nothing(gemini: GeminiServer) -> None:
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        listed = (await http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["gemini-3-pro"]
    assert gemini.listings[-1].path == "/v1/models?pageSize=1000"


@pytest.mark.parametrize("profile", ["gemini", "vertex"])
async def test_server_counts_the_tokens_of_a_prompt(gemini: GeminiServer, profile: str) -> None:
    async with antiphon(backend_url=gemini.url, backend_profile=profile) as url, client(url) as http:
        body = {**FIRST, "instructions": "Be kind."}
        counted = (await http.post("/v1/responses/input_tokens", json=body)).json()
    assert counted["input_tokens"] == 17
    (request,) = gemini.requests
    assert request.path.endswith("models/gemini-3-pro:countTokens")


async def test_vertex_is_asked_with_a_bearer_token_below_the_project(gemini: GeminiServer) -> None:
    async with (
        antiphon(backend_url=gemini.url, backend_profile="vertex", backend_api_key="ya29.x") as url,
        client(url) as http,
    ):
        assert (await http.post("/v1/responses", json=FIRST)).json()["status"] == "completed"
    (request,) = gemini.requests
    assert request.path == "/v1/publishers/google/models/gemini-3-pro:streamGenerateContent?alt=sse"
    assert request.headers["authorization"] == "Bearer ya29.x"


async def test_overloaded_server_is_asked_again_and_its_wait_is_passed_on(gemini: GeminiServer) -> None:
    wait = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"}
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        gemini.say(error(503, "UNAVAILABLE", "The model is overloaded."))
        assert (await http.post("/v1/responses", json=FIRST)).json()["status"] == "completed"
        gemini.say(error(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", wait))
        refused = await http.post("/v1/responses", json=FIRST)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "34")
    assert len(gemini.requests) == 3


async def test_fallbacks_between_gemini_and_chat_are_asked_by_their_own_apis(gemini: GeminiServer) -> None:
    async with Upstream() as chat:
        backends = {
            "gemini": {
                "url": gemini.url,
                "profile": "gemini",
                "models": ["gemini*"],
                "fallbacks": ["chat"],
                "retries": 0,
            },
            "chat": {"url": chat.url, "models": ["m"], "fallbacks": ["gemini"], "retries": 0},
        }
        async with antiphon(backends=backends) as url, client(url) as http:
            chat.say(sse(chunk("By chat."), finish(), DONE))
            gemini.say(error(503, "UNAVAILABLE", "The model is overloaded."))
            by_chat = (await http.post("/v1/responses", json={"model": "gemini-3-pro", "input": "Hi"})).json()
            by_gemini = (await http.post("/v1/responses", json={"model": "m", "input": "Hi"})).json()
    assert by_chat["output"][0]["content"][0]["text"] == "By chat."
    assert by_gemini["output"][0]["content"][0]["text"] == "Hello there."


async def test_translation_shows_the_request_and_its_address(gemini: GeminiServer) -> None:
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        response = (await http.post("/v1/responses", json={"model": "gemini-3-pro", "input": "Hi"})).json()
        shown = (await http.get(f"/v1/antiphon/responses/{response['id']}/translation")).json()
    assert shown["url"].endswith("/models/gemini-3-pro:streamGenerateContent")
    assert shown["body"] == {"contents": [{"role": "user", "parts": [text("Hi")]}], "store": False}


async def test_unknown_store_field_is_left_out_after_a_refusal(gemini: GeminiServer) -> None:
    unknown = 'Invalid JSON payload received. Unknown name "store": Cannot find field.'
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        gemini.say(error(400, "INVALID_ARGUMENT", unknown))
        assert (await http.post("/v1/responses", json=FIRST)).json()["status"] == "completed"
    assert ["store" in request.json for request in gemini.requests] == [True, False]


KEYWORD = "Invalid JSON payload received. Unknown name \"pattern\" at '{}': Cannot find field."
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x$"}}, "required": ["a"]}


async def test_schema_keyword_that_the_server_refuses_is_left_out_of_tools(gemini: GeminiServer) -> None:
    body = {**FIRST, "tools": [{**LOOK, "parameters": PATTERN}]}
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        field = "tools[0].function_declarations[0].parameters_json_schema.properties[0].value"
        gemini.say(error(400, "INVALID_ARGUMENT", KEYWORD.format(field)))
        response = await http.post("/v1/responses", json=body)
        await http.post("/v1/responses", json=body)
    assert response.json()["status"] == "completed" and "'pattern'" in response.headers["x-antiphon-warning"]
    assert [b"pattern" in request.body for request in gemini.requests] == [True, False, False]


async def test_schema_keyword_that_the_server_refuses_stays_in_the_text_format(gemini: GeminiServer) -> None:
    form = {"format": {"type": "json_schema", "name": "answer", "schema": PATTERN}}
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        field = "generation_config.response_json_schema.properties[0].value"
        gemini.say(error(400, "INVALID_ARGUMENT", KEYWORD.format(field)))
        refused = await http.post("/v1/responses", json={"model": "gemini-3-pro", "input": "Hi", "text": form})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "text.format.schema.properties.a.pattern"


async def test_clients_of_messages_send_signatures_back_with_their_thinking_blocks(gemini: GeminiServer) -> None:
    tools = [{"name": "look", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    body: dict[str, Any] = {"model": "gemini-3-pro", "max_tokens": 100, "tools": tools}
    question = {"role": "user", "content": "Look."}
    async with antiphon(backend_url=gemini.url, backend_profile="gemini") as url, client(url) as http:
        gemini.say(answer(thought("Hm."), text("I look."), SIGNED_CALL))
        first = (await http.post("/v1/messages", json={**body, "messages": [question]})).json()
        call_id = next(block["id"] for block in first["content"] if block["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "A cat."}
        turns = [question, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        last = (await http.post("/v1/messages", json={**body, "messages": turns})).json()
    assert last["stop_reason"] == "end_turn"
    assert gemini.requests[-1].json["contents"][1]["parts"] == [text("I look."), SIGNED_CALL]
