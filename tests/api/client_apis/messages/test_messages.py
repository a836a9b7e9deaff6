"""`POST /v1/messages` with other backend APIs: translated, streamed and as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI

from app.core.access import hash_of
from tests.support.mcp_lab import MCPLab
from tests.support.message_events import MessagesUpstream, message_stream, text_block, tool_block
from tests.support.message_stream import accumulated, frames
from tests.support.server_apis import SERVER_APIS, ServerAPI
from tests.support.serving import antiphon, serving
from tests.support.upstream import DONE, Upstream, call, chunk, finish, sse, status

PATH = "/v1/messages"
HI: dict[str, Any] = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}


class AnyUpstream(Upstream):
    native = True


@pytest_asyncio.fixture
async def up() -> AsyncIterator[Upstream]:
    async with AnyUpstream() as upstream:
        yield upstream


@asynccontextmanager
async def client_of(up: Upstream, api: str = "chat", **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client without retries, for a server whose backend has the given API."""
    overrides = {"transport.api": api, "transport.passthrough": "never", **values.pop("overrides", {})}
    values = {"backend_url": up.url, "backend_retries": 0, "backend_overrides": overrides, **values}
    async with antiphon(**values) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        yield client


def warned(response: httpx.Response) -> str:
    return response.headers.get("x-antiphon-warning", "")


def without_signatures(message: Any) -> Any:
    """A message's content without signatures and signature-only blocks."""
    for block in message["content"]:
        if "signature" in block:
            assert block.pop("signature").startswith("antiphon1.")
    return [block for block in message["content"] if block["type"] != "redacted_thinking"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_answer_of_each_server_api_has_text_thinking_and_calls(
    up: Upstream, api: ServerAPI, stream: bool
) -> None:
    up.say(sse(*api.whole(["Hel", "lo"], ["Hm", "."], ["x", "y"])))
    async with client_of(up, api.name) as client:
        answer = await client.post(PATH, json={**HI, "stream": stream, "tools": [TOOL]})
    message = accumulated(answer.content) if stream else answer.json()
    thinking, text, tool = without_signatures(message)
    assert thinking == {"type": "thinking", "thinking": "Hm."}
    assert text == {"type": "text", "text": "Hello"}
    assert (tool["type"], tool["name"], tool["input"]) == ("tool_use", "f", {"a": "xy"})
    assert (message["stop_reason"], message["model"]) == ("tool_use", "m")
    assert message["usage"]["input_tokens"] > 0 and message["usage"]["output_tokens"] > 0
    assert answer.headers["request-id"]


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_broken_stream_ends_with_an_error_event(up: Upstream, api: ServerAPI) -> None:
    up.say(sse(*api.begin("Hel"), api.error))
    async with client_of(up, api.name) as client:
        answer = await client.post(PATH, json={**HI, "stream": True})
    *_, last = frames(answer.content)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert "CUDA out of memory" in last["error"]["message"]
    assert b"message_delta" not in answer.content and b"message_stop" not in answer.content


async def test_calls_and_results_reach_a_chat_backend(up: Upstream) -> None:
    up.say(sse(chunk("Sunny."), finish(), DONE))
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No.", "is_error": True}
    messages = [
        *HI["messages"],
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
        {"role": "system", "content": "Be brief."},
    ]
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, "system": system, "messages": messages, "tools": [TOOL]})
    assert answer.json()["content"] == [{"type": "text", "text": "Sunny."}]
    sent = up.requests[0].json
    called = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert sent["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: No."},
        {"role": "user", "content": "And?"},
        {"role": "system", "content": "Be brief."},
    ]
    assert sent["max_tokens"] == 1000


async def test_limit_of_one_token_is_kept(up: Upstream) -> None:
    up.say(sse(chunk("H"), finish("length"), DONE))
    async with client_of(up) as client:
        message = (await client.post(PATH, json={**HI, "max_tokens": 1})).json()
    assert up.requests[0].json["max_tokens"] == 1
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_stop_sequence_ends_the_text_and_is_named(up: Upstream, api: ServerAPI, stream: bool) -> None:
    up.say(sse(*api.whole(["One E", "ND two"], [], [])))
    async with client_of(up, api.name) as client:
        answer = await client.post(PATH, json={**HI, "stream": stream, "stop_sequences": ["END"]})
    message = accumulated(answer.content) if stream else answer.json()
    assert message["content"] == [{"type": "text", "text": "One "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


async def test_truncated_call_ends_at_the_limit_of_tokens(up: Upstream) -> None:
    up.say(sse(call(id="c", name="f", arguments='{"a": "x'), finish("length"), DONE))
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, "stream": True, "tools": [TOOL]})
    assert accumulated(answer.content)["stop_reason"] == "max_tokens"


# Signatures.


async def signed(client: httpx.AsyncClient, up: Upstream, **headers: str) -> Any:
    """Return an answer's content with signed reasoning."""
    up.say(sse(chunk(reasoning_content="Secret."), call(id="c", name="f", arguments="{}"), finish("tool_calls"), DONE))
    return (await client.post(PATH, json={**HI, "tools": [TOOL]}, headers=headers)).json()["content"]


def continued(content: Any) -> dict[str, Any]:
    results = [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]
    messages = [*HI["messages"], {"role": "assistant", "content": content}, {"role": "user", "content": results}]
    return {**HI, "tools": [TOOL], "messages": messages}


REPLAY = {"request.reasoning_replay": "always", "request.reasoning_field": "reasoning_content"}


async def test_signed_thought_is_sent_back_to_the_backend(up: Upstream) -> None:
    async with client_of(up, overrides=REPLAY) as client:
        content = await signed(client, up)
        content[0]["thinking"] = "Changed by the client."
        up.say(sse(chunk("Done."), finish(), DONE))
        answer = await client.post(PATH, json=continued(content))
    assert warned(answer) == ""
    assert up.requests[1].json["messages"][1]["reasoning_content"] == "Secret."


@pytest.mark.parametrize("how", ["another owner", "changed", "another server", "redacted"])
async def test_signature_of_others_is_dropped(up: Upstream, how: str) -> None:
    keys = {name: {"hash": hash_of(f"sk-{name}"), "owner": name} for name in ("a", "b")}
    async with client_of(up, overrides=REPLAY, keys=keys, secret_key="s") as client:
        content = await signed(client, up, **{"x-api-key": "sk-a"})
        thought, use = content
        caller = {"x-api-key": "sk-b" if how in ("another owner", "redacted") else "sk-a"}
        if how == "changed":
            thought["signature"] = thought["signature"][:-2] + "AA"
        if how == "another server":
            thought["signature"] = "EqQBCkYIARgCKkAv"
        thought["thinking"] = ""
        if how == "redacted":
            thought = {"type": "redacted_thinking", "data": thought["signature"]}
        up.say(sse(chunk("Done."), finish(), DONE))
        answer = await client.post(PATH, json=continued([thought, use]), headers=caller)
    assert answer.status_code == 200
    assert "signature" in warned(answer)
    sent = up.requests[1].body.decode()
    assert "Secret." not in sent and "antiphon1." not in sent and "EqQB" not in sent


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_forged_signatures_reach_no_server(up: Upstream, api: ServerAPI) -> None:
    up.say(sse(*api.whole(["Done."], [], [])))
    thoughts = [
        {"type": "thinking", "thinking": "Forged.", "signature": "antiphon1.Rm9yZ2Vk"},
        {"type": "redacted_thinking", "data": "antiphon1.Rm9yZ2Vk"},
        {"type": "thinking", "thinking": "Foreign.", "signature": "EqQBCkYI"},
        {"type": "redacted_thinking", "data": "EqQBCkYI"},
    ]
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    async with client_of(up, api.name) as client:
        answer = await client.post(PATH, json=continued([*thoughts, use]))
    assert answer.status_code == 200, answer.text
    sent = up.requests[0].body.decode()
    assert "Rm9yZ2Vk" not in sent and "EqQBCkYI" not in sent
    assert "signature" in warned(answer)


# Refusals.


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
async def test_thread_is_refused_with_the_code_that_sdks_read(up: Upstream, thread: Any) -> None:
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, "thread": thread})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"] == {"error_code": "thread_unsupported_request"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'messages[0].content[0].source'"),
        ({"temperature": 3}, "'temperature'"),
        ({"max_tokens": "many"}, "'max_tokens'"),
        ({"messages": []}, "'messages'"),
    ],
)
async def test_invalid_field_is_named_in_anthropics_shape(up: Upstream, fields: Any, words: str) -> None:
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, **fields})
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"]
    assert not up.requests


async def test_error_of_a_later_step_names_the_clients_field(up: Upstream) -> None:
    document = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [document]}
    messages = [*HI["messages"], {"role": "user", "content": [result]}]
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, "messages": messages})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("messages[1].content[0].content[0].file_id: ")


async def test_refusal_of_the_backend_is_in_anthropics_shape(up: Upstream) -> None:
    up.always(status(429, {"error": {"message": "Slow down."}}, {"Retry-After": "3"}))
    async with client_of(up) as client:
        for stream in (False, True):
            answer = await client.post(PATH, json={**HI, "stream": stream})
            assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")
            assert answer.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("api", "refused", "named"),
    [
        ("chat", "Unrecognized request argument supplied: reasoning_effort", "output_config.effort"),
        ("chat", "'reasoning_effort' is not supported with this model", "output_config.effort"),
        ("responses", "Unsupported parameter: 'reasoning.effort' is not supported with this model.", "thinking"),
    ],
)
async def test_effort_is_left_out_for_a_model_that_refuses_it(up: Upstream, api: str, refused: str, named: str) -> None:
    spoken = next(row for row in SERVER_APIS if row.name == api)
    up.say(status(400, {"error": {"message": refused, "type": "invalid_request_error"}}))
    up.always(sse(*spoken.whole(["Hello"], [], [])))
    async with client_of(up, api) as client:
        for _ in range(2):
            answer = await client.post(PATH, json={**HI, "output_config": {"effort": "high"}})
            assert answer.status_code == 200
            assert f"'{named}'" in warned(answer)
    first, *others = (request.body.decode() for request in up.requests)
    assert "effort" in first and len(others) == 2 and not any("effort" in other for other in others)


async def test_unknown_fields_are_in_the_warning(up: Upstream) -> None:
    up.say(sse(chunk("Hello"), finish(), DONE))
    block = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    fields = {"container": "c", "input": "x", "messages": [{"role": "user", "content": [block]}]}
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, **fields})
    named = {*warned(answer).split("'")}
    assert {"container", "input"} <= named
    assert "cache" not in warned(answer)  # without breakpoints the answer is the same


async def test_tools_that_are_not_configured_are_left_out_with_a_warning(up: Upstream) -> None:
    up.say(sse(chunk("Hello"), finish(), DONE))
    tools = [TOOL, {"type": "web_search_20250305", "name": "web_search"}]
    servers = [{"type": "url", "name": "lab", "url": "https://lab.example.com/mcp"}]
    async with client_of(up) as client:
        answer = await client.post(PATH, json={**HI, "tools": tools, "mcp_servers": servers})
    assert answer.status_code == 200, answer.text
    assert [tool["function"]["name"] for tool in up.requests[0].json["tools"]] == ["f"]
    assert "web_search" in warned(answer) and "mcp" in warned(answer)


# Hosted tools.

URL = "https://lovelace.example.org/notes"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
FOUND = {"url": URL, "title": "Notes", "content": "She wrote about the Analytical Engine."}


@pytest_asyncio.fixture
async def searxng() -> AsyncIterator[str]:
    """A stand-in for SearXNG, with one result per search."""
    server = FastAPI()
    server.get("/search")(lambda: {"results": [FOUND]})
    async with serving(server) as url:
        yield url


@pytest.mark.parametrize("stream", [False, True])
async def test_web_search_is_run_and_shown_and_remembered(up: Upstream, searxng: str, stream: bool) -> None:
    up.say(sse(call(id="c", name="web_search", arguments='{"query": "Ada"}'), finish("tool_calls"), DONE))
    up.say(sse(chunk(f"She wrote [notes]({URL})."), finish(), DONE))
    up.say(sse(chunk("Yes."), finish(), DONE))
    body = {**HI, "tools": [SEARCH]}
    async with client_of(up, tools={"web_search": {"url": searxng}}) as client:
        answer = await client.post(PATH, json={**body, "stream": stream})
        message = accumulated(answer.content) if stream else answer.json()
        answer_message = {"role": "assistant", "content": message["content"]}
        later = [*HI["messages"], answer_message, {"role": "user", "content": "Sure?"}]
        await client.post(PATH, json={**body, "messages": later})
    use, result, _, text = message["content"]
    assert (use["name"], use["input"]) == ("web_search", {"query": "Ada"})
    assert [(found["url"], found["title"]) for found in result["content"]] == [(URL, "Notes")]
    assert text["text"] == f"She wrote [notes]({URL})." and text["citations"][0]["url"] == URL
    assert message["stop_reason"] == "end_turn"
    assert message["usage"]["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 0}
    assert warned(answer) == ""
    for request in up.requests[1:]:  # the model is shown the same result again
        (tool,) = (message for message in request.json["messages"] if message["role"] == "tool")
        assert FOUND["content"] in tool["content"]


async def test_mcp_server_of_the_request_is_called(up: Upstream) -> None:
    up.say(sse(call(id="c", name="lab__add", arguments='{"a": 1, "b": 2}'), finish("tool_calls"), DONE))
    up.say(sse(chunk("3."), finish(), DONE))
    async with MCPLab().serve() as lab:
        mcp = {"allow_urls": [lab.url], "allow_private": True}
        server = {"type": "url", "name": "lab", "url": lab.url, "authorization_token": "secret"}
        async with client_of(up, tools={"mcp": mcp}) as client:
            answer = await client.post(PATH, json={**HI, "mcp_servers": [server]})
    use, result, text = (block for block in answer.json()["content"] if block["type"] != "redacted_thinking")
    assert (use["name"], use["server_name"], use["input"]) == ("add", "lab", {"a": 1, "b": 2})
    assert (result["is_error"], result["content"]) == (False, [{"type": "text", "text": "3"}])
    assert text == {"type": "text", "text": "3."}
    assert lab.calls == [("add", {"a": 1, "b": 2})]
    assert {headers.get("authorization") for headers in lab.headers} == {"Bearer secret"}
    assert "secret" not in answer.text


async def test_requests_of_a_user_reach_one_replica() -> None:
    async with Upstream() as one, Upstream() as two:
        for server in (one, two):
            server.always(sse(chunk("Hello"), finish(), DONE))
        backends = {"pool": {"url": one.url, "replicas": [two.url], "passthrough": "never"}}
        async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for number in range(8):
                messages = [{"role": "user", "content": f"ModelRequest {number}"}]
                body = {**HI, "messages": messages, "metadata": {"user_id": "session-1"}}
                assert (await client.post(PATH, json=body)).status_code == 200
        assert sorted((len(one.requests), len(two.requests))) == [0, 8]


async def test_hosted_tool_is_run_for_a_backend_that_speaks_messages(searxng: str) -> None:
    """Without a hosted tool, the request would be passed through."""
    async with MessagesUpstream() as up:
        up.say(message_stream(*tool_block(0, "web_search", {"query": "Ada"}), stop="tool_use"))
        up.say(message_stream(*text_block(0, "Yes.")))
        overrides = {"transport.api": "messages", "transport.messages": True, "transport.passthrough": "auto"}
        async with client_of(up, overrides=overrides, tools={"web_search": {"url": searxng}}) as client:
            content = (await client.post(PATH, json={**HI, "tools": [SEARCH]})).json()["content"]
        assert [block["type"] for block in content][:2] == ["server_tool_use", "web_search_tool_result"]
        assert len(up.requests) == 2


async def test_breakpoints_of_the_prompt_cache_reach_a_messages_backend() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "Be brief.", **mark}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi", **mark}]}]
    async with MessagesUpstream() as up:
        up.say(message_stream(*text_block(0, "Hello")))
        async with client_of(up, "messages", overrides={"request.cache": "auto"}) as client:
            answer = await client.post(PATH, json={**HI, "system": system, "messages": messages})
        sent = up.requests[0].json
    assert (sent["system"], sent["messages"]) == (system, messages)
    assert warned(answer) == ""


# The other endpoints.


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "system": "Be brief."}])
async def test_tokens_are_counted(up: Upstream, fields: Any) -> None:
    async with client_of(up) as client:
        body = {name: value for name, value in {**HI, **fields}.items() if name != "max_tokens"}
        answer = await client.post(f"{PATH}/count_tokens", json=body)
    assert answer.json().keys() == {"input_tokens"}
    assert answer.json()["input_tokens"] > (5 if fields else 0)
    assert answer.headers["x-antiphon-estimated"] == "true"
    assert answer.headers["request-id"]


async def test_silence_is_filled_with_pings(up: Upstream) -> None:
    go, body = asyncio.Event(), b""
    up.say(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
    async with (
        client_of(up, heartbeat=0.05) as client,
        client.stream("POST", PATH, json={**HI, "stream": True}) as answer,
    ):
        async for piece in answer.aiter_raw():
            body += piece
            if body.count(b"event: ping\n") > 1:
                go.set()
    assert accumulated(body)["content"][0]["text"] == "Hello"


def test_pings_are_json() -> None:
    from app.api.client_apis.messages.writer import PING

    name, data, *_ = PING.decode().split("\n")
    assert (name, json.loads(data.removeprefix("data: "))) == ("event: ping", {"type": "ping"})
