"""
Reasoning encrypted by a Responses server is sent back to this server only, wherever the client stored it.

Each turn is complete: over HTTP, and through the backend's bytes in both directions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.api.routes.test_responses import client
from tests.support.native import Native
from tests.support.openai_types import check_event, check_request
from tests.support.serving import antiphon
from tests.support.upstream import DONE as END
from tests.support.upstream import Upstream, chunk, finish, sse, status

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
FIRST: dict[str, Any] = {"model": "m", "input": "Look.", "tools": [LOOK]}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "A cat."}
SEALED: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
OPTIONS: dict[str, Any] = {"backend_overrides": {"transport.api": "responses"}, "secret_key": "secret"}
THOUGHT = {
    "id": "rs_up0",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "I should look."}],
    "encrypted_content": "gAAAAABo-secret",
}


def thinks_and_calls(name: str = "look") -> Native:
    thought = Native().reasoning("I should look.", encrypted=THOUGHT["encrypted_content"])  # type: ignore[arg-type]
    return thought.call(name, "{}").completed()


def seen() -> Native:
    return Native("last").message("Seen.").completed()


@pytest_asyncio.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as up:
        up.native = True
        yield up
        for request in up.requests:
            check_request(request.json)


async def by_the_server(http: httpx.AsyncClient) -> dict[str, Any]:
    response = (await http.post("/v1/responses", json=FIRST)).json()
    return {**FIRST, "previous_response_id": response["id"], "input": [OUTPUT]}


async def in_a_conversation(http: httpx.AsyncClient) -> dict[str, Any]:
    conversation = (await http.post("/v1/conversations", json={})).json()["id"]
    await http.post("/v1/responses", json={**FIRST, "conversation": conversation})
    return {**FIRST, "conversation": conversation, "input": [OUTPUT]}


async def by_the_client(http: httpx.AsyncClient) -> dict[str, Any]:
    response = (await http.post("/v1/responses", json={**FIRST, **SEALED})).json()
    assert THOUGHT["encrypted_content"] not in str(response)
    return {**FIRST, **SEALED, "input": [{"role": "user", "content": "Look."}, *response["output"], OUTPUT]}


KEPT = [by_the_server, in_a_conversation, by_the_client]


def check_replayed(request: dict[str, Any]) -> None:
    user, thought, call, output = request["input"]
    assert user["role"] == "user"
    assert thought == THOUGHT
    assert (call["type"], call["call_id"], call["name"]) == ("function_call", "call_1", "look")
    assert output == OUTPUT


@pytest.mark.parametrize("kept", KEPT)
async def test_encrypted_reasoning_goes_back_unchanged_and_in_its_place(upstream: Upstream, kept: Any) -> None:
    upstream.say(thinks_and_calls().steps())
    upstream.say(seen().steps())
    async with antiphon(backend_url=upstream.url, **OPTIONS) as url, client(url) as http:
        answer = (await http.post("/v1/responses", json=await kept(http))).json()
    assert [item["type"] for item in answer["output"]] == ["message"]
    check_replayed(upstream.requests[1].json)


@pytest.mark.parametrize("kept", KEPT)
async def test_encrypted_reasoning_goes_back_after_a_restart(upstream: Upstream, kept: Any, tmp_path: Any) -> None:
    upstream.say(thinks_and_calls().steps())
    upstream.say(seen().steps())
    options = {**OPTIONS, "backend_url": upstream.url, "store_url": f"sqlite:///{tmp_path}/store.db"}
    async with antiphon(**options) as url, client(url) as http:
        request = await kept(http)
    async with antiphon(**options) as url, client(url) as http:
        assert (await http.post("/v1/responses", json=request)).json()["status"] == "completed"
    check_replayed(upstream.requests[1].json)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("kept", KEPT)
async def test_encrypted_reasoning_goes_to_no_other_backend(
    upstream: Upstream, kept: Any, api: str, tmp_path: Any
) -> None:
    upstream.say(thinks_and_calls().steps())
    store = {"store_url": f"sqlite:///{tmp_path}/store.db"}
    async with antiphon(backend_url=upstream.url, **OPTIONS, **store) as url, client(url) as http:
        request = await kept(http)
    async with Upstream() as other:
        other.native = api == "responses"
        other.always(seen().steps() if other.native else sse(chunk("Seen."), finish(), END))
        options = {**OPTIONS, **store, "backend_url": other.url, "backend_overrides": {"transport.api": api}}
        async with antiphon(**options) as url, client(url) as http:
            answer = await http.post("/v1/responses", json=request)
            assert answer.json()["status"] == "completed", answer.json()
            shown = (await http.post("/v1/antiphon/translation", json=request)).json()
    assert THOUGHT["encrypted_content"] not in other.requests[0].body.decode()
    assert "Reasoning encrypted by another server was dropped." in shown["warnings"]


async def test_encrypted_reasoning_goes_back_between_rounds_of_hosted_tools(upstream: Upstream) -> None:
    upstream.say(thinks_and_calls("lab__echo").steps())
    upstream.say(
        Native("two").reasoning(encrypted="second").call("lab__echo", "{}", call_id="call_2").completed().steps()
    )
    upstream.say(seen().steps())
    options = {**OPTIONS, "backend_url": upstream.url, "tools": {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}}
    async with antiphon(**options) as url, client(url) as http:
        request = {"model": "m", "input": "Echo.", "tools": [{"type": "mcp", "server_label": "lab"}]}
        answer = (await http.post("/v1/responses", json=request)).json()
    assert answer["status"] == "completed", answer
    third = upstream.requests[2].json["input"]
    assert [item["type"] for item in third] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert (third[1], third[4]["encrypted_content"]) == (THOUGHT, "second")


async def test_reasoning_that_the_server_cannot_read_any_more_is_left_out(upstream: Upstream) -> None:
    upstream.say(thinks_and_calls().steps())
    message = "The encrypted content gAAA... could not be verified."
    upstream.say(status(400, {"error": {"message": message, "code": "invalid_encrypted_content"}}))
    upstream.say(seen().steps())
    async with antiphon(backend_url=upstream.url, **OPTIONS) as url, client(url) as http:
        answer = (await http.post("/v1/responses", json=await by_the_server(http))).json()
    assert answer["status"] == "completed"
    assert [item["type"] for item in upstream.requests[2].json["input"]] == [
        "message",
        "function_call",
        "function_call_output",
    ]


async def test_model_without_reasoning_is_asked_without_encrypted_content(upstream: Upstream) -> None:
    refusal = {"message": "Encrypted content is not supported with this model.", "param": "include", "code": None}
    upstream.say(status(400, {"error": refusal}))
    upstream.always(seen().steps())
    async with antiphon(backend_url=upstream.url, **OPTIONS) as url, client(url) as http:
        for _ in range(2):
            assert (await http.post("/v1/responses", json=FIRST)).json()["status"] == "completed"
    assert ["include" in request.json for request in upstream.requests] == [True, False, False]


async def test_reasoning_before_a_summary_is_left_out_of_the_compaction(upstream: Upstream) -> None:
    upstream.say(Native().reasoning("What matters?").message("We launch on Tuesday.").completed().steps())
    body = {"model": "m", "input": [{"role": "user", "content": "Hi."}, {"type": "compaction_trigger"}]}
    async with antiphon(backend_url=upstream.url, **OPTIONS) as url, client(url) as http:
        compacted = (await http.post("/v1/responses", json=body)).json()
    assert [item["type"] for item in compacted["output"]] == ["compaction"]


def test_scripted_events_are_those_of_openai() -> None:
    for events in (thinks_and_calls(), seen(), Native().message("a", phase="commentary").incomplete()):
        for event in events.events:
            check_event(event)
