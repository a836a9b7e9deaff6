"""Client APIs: choice between passthrough and translation, and answers to translated requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.core.access import hash_of
from tests.support.hosted_lab import ScriptedTool
from tests.support.server_apis import SERVER_APIS, ServerAPI
from tests.support.serving import antiphon
from tests.support.upstream import DONE, HANG, Upstream, call, chunk, finish, reply, sse, status

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
LAB = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}


class AnyUpstream(Upstream):
    native = True


@pytest_asyncio.fixture
async def up() -> AsyncIterator[Upstream]:
    async with AnyUpstream() as upstream:
        yield upstream


@asynccontextmanager
async def client_of(up: Upstream, api: str, **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client without retries, for a server whose backend has the given API."""
    overrides = {"transport.api": api, "transport.passthrough": "never", **values.pop("overrides", {})}
    values = {"backend_url": up.url, "backend_retries": 0, "backend_overrides": overrides, **values}
    async with antiphon(**values) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        yield client


def chunks_of(response: httpx.Response) -> list[Any]:
    """The chunks in a stream, including a final `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def joined(chunks: list[Any], field: str) -> str:
    deltas = [choice["delta"] for chunk in chunks if chunk != "[DONE]" for choice in chunk.get("choices", ())]
    return "".join(delta.get(field) or "" for delta in deltas)


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_chat_over_each_server_api_streams_text_reasoning_and_calls(up: Upstream, api: ServerAPI) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    up.say(sse(*api.whole(["Hel", "lo"], ["Hm", "."], ["x", "y"])))
    async with client_of(up, api.name) as client:
        chunks = chunks_of(await client.post(CHAT, json={**HI, "stream": True, "tools": tools}))
    assert chunks[-1] == "[DONE]"
    assert (joined(chunks, "content"), joined(chunks, "reasoning_content")) == ("Hello", "Hm.")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    calls = [fragment for delta in deltas for fragment in delta.get("tool_calls", ())]
    assert (calls[0]["index"], calls[0]["type"], calls[0]["function"]["name"]) == (0, "function", "f")
    assert json.loads("".join(fragment["function"]["arguments"] for fragment in calls)) == {"a": "xy"}
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_chat_over_each_server_api_is_answered_as_json(up: Upstream, api: ServerAPI) -> None:
    up.say(sse(*api.whole(["Hel", "lo"], ["Hm", "."], [])))
    async with client_of(up, api.name) as client:
        made = (await client.post(CHAT, json=HI)).json()
    (choice,) = made["choices"]
    assert (made["object"], made["model"], choice["finish_reason"]) == ("chat.completion", "m", "stop")
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("Hello", "Hm.")
    assert made["usage"]["total_tokens"] == made["usage"]["prompt_tokens"] + made["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
async def test_failure_in_a_stream_is_an_error_without_a_clean_end(up: Upstream, api: ServerAPI) -> None:
    up.say(sse(*api.begin("Hel"), api.error))
    async with client_of(up, api.name) as client:
        chunks = chunks_of(await client.post(CHAT, json={**HI, "stream": True}))
    assert joined(chunks, "content") == "Hel"
    assert "CUDA out of memory" in chunks[-1]["error"]["message"]
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk.get("choices", ()))


async def test_refusal_of_the_backend_is_an_http_error(up: Upstream) -> None:
    up.always(status(400, {"error": {"message": "The prompt is odd.", "code": "invalid_prompt"}}))
    async with client_of(up, "responses") as client:
        for stream in (False, True):
            refused = await client.post(CHAT, json={**HI, "stream": stream})
            assert (refused.status_code, refused.json()["error"]["message"]) == (400, "The prompt is odd.")


async def test_failure_after_some_text_is_an_http_error_without_a_stream(up: Upstream) -> None:
    up.say(sse(*SERVER_APIS[0].begin("Hel"), SERVER_APIS[0].error))
    async with client_of(up, "chat") as client:
        failed = await client.post(CHAT, json=HI)
    assert failed.status_code == 502
    assert "CUDA out of memory" in failed.json()["error"]["message"]


@pytest.mark.parametrize(
    ("api", "overrides", "passed"),
    [
        ("chat", {}, True),
        ("auto", {}, True),
        ("responses", {}, False),
        ("messages", {}, False),
        ("chat", {"transport.passthrough": "never"}, False),
        ("responses", {"transport.passthrough": "always"}, True),
    ],
)
async def test_chat_is_passed_through_to_backends_that_speak_it(
    up: Upstream, api: str, overrides: dict[str, Any], passed: bool
) -> None:
    up.always(reply(b'{"any": "answer"}'))
    async with client_of(up, api, overrides={"transport.passthrough": "auto", **overrides}) as client:
        answer = await client.post(CHAT, json=HI)
    assert (answer.text == '{"any": "answer"}') == passed
    assert (up.requests[0].body == answer.request.content) == passed


async def test_passthrough_of_the_backends_table_is_an_option_of_its_profile(up: Upstream) -> None:
    up.say(sse(chunk("Hello"), finish(), DONE))
    backends = {"b": {"url": up.url, "passthrough": "never"}}
    async with antiphon(backends=backends) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        made = (await client.post(CHAT, json=HI)).json()
    assert made["choices"][0]["message"]["content"] == "Hello"
    assert up.requests[0].json["stream"] is True


@pytest.mark.parametrize("stream", [False, True])
async def test_hosted_tool_is_run_and_its_calls_are_not_shown(up: Upstream, stream: bool) -> None:
    ScriptedTool.reset()
    up.say(sse(chunk("Wait."), call(id="c1", name="lab__echo", arguments='{"text": "42"}'), finish("tool_calls"), DONE))
    up.say(sse(chunk("It is 42."), finish(), DONE))
    body = {**HI, "stream": stream, "tools": [{"type": "lab"}]}
    async with client_of(up, "chat", overrides={"transport.passthrough": "auto"}, tools=LAB) as client:
        answer = await client.post(CHAT, json=body)
    assert ScriptedTool.current.calls == [("echo", {"text": "42"})]
    assert "tool_calls" not in answer.text
    if stream:
        chunks = chunks_of(answer)
        assert joined(chunks, "content") == "Wait.\n\nIt is 42."
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "Wait.\n\nIt is 42."


async def test_tool_that_is_not_configured_is_the_backends_own(up: Upstream) -> None:
    up.always(reply(b"{}"))
    async with client_of(up, "chat", overrides={"transport.passthrough": "auto"}, tools=LAB) as client:
        await client.post(CHAT, json={**HI, "tools": [{"type": "web_search"}]})
    assert up.requests[0].json["tools"] == [{"type": "web_search"}]


async def test_client_that_disconnects_closes_the_backends_stream(up: Upstream) -> None:
    up.say(sse(chunk("Hel"), HANG))
    async with client_of(up, "chat") as client:
        async with client.stream("POST", CHAT, json={**HI, "stream": True}) as response:
            async for _ in response.aiter_raw():
                break
        await up.requests[0].gone.wait()


async def test_request_is_not_stored_and_named_fields_are_in_the_warning(up: Upstream) -> None:
    up.say(sse(chunk("Hello"), finish(), DONE))
    async with client_of(up, "chat") as client:
        answer = await client.post(CHAT, json={**HI, "prediction": {"type": "content"}, "store": True})
        listed = (await client.get("/v1/antiphon/responses")).json()
    assert listed["data"] == []
    assert {"prediction", "store"} <= {*answer.headers["x-antiphon-warning"].split("'")}


async def test_error_of_a_later_step_names_the_clients_field(up: Upstream) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [audio]}]
    async with client_of(up, "messages") as client:
        error = (await client.post(CHAT, json={"model": "m", "messages": messages})).json()["error"]
    assert error["param"] == "messages[1].content[0]"


async def test_limit_below_that_of_responses_is_sent(up: Upstream) -> None:
    up.say(sse(chunk("H"), finish("length"), DONE))
    async with client_of(up, "chat") as client:
        made = (await client.post(CHAT, json={**HI, "max_completion_tokens": 1})).json()
    assert up.requests[0].json["max_tokens"] == 1
    assert made["choices"][0]["finish_reason"] == "length"


async def test_limit_below_the_minimum_of_responses_is_raised_with_a_warning(up: Upstream) -> None:
    up.say(sse(*SERVER_APIS[1].whole(["H"], [], [])))
    async with client_of(up, "responses") as client:
        answer = await client.post(CHAT, json={**HI, "max_completion_tokens": 1})
    assert up.requests[0].json["max_output_tokens"] == 16
    assert "'max_completion_tokens' was changed from 1 to 16" in answer.headers["x-antiphon-warning"]


async def test_idempotency_key_of_an_answered_request_is_refused(up: Upstream) -> None:
    up.always(sse(chunk("Hello"), finish(), DONE))
    headers = {"Idempotency-Key": "k"}
    async with client_of(up, "chat") as client:
        assert (await client.post(CHAT, json=HI, headers=headers)).status_code == 200
        again = await client.post(CHAT, json=HI, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotent_response_not_found")
    assert len(up.requests) == 1


async def after_white_space(up: Upstream, *frames: Any) -> tuple[int, Any]:
    """The status and JSON of an answer after the first white space."""
    begun = asyncio.Event()
    up.say(sse(begun, *frames))
    body = b""
    async with client_of(up, "chat", json_heartbeat=0.01) as client, client.stream("POST", CHAT, json=HI) as answer:
        async for piece in answer.aiter_raw():
            body += piece
            begun.set()
    assert body.startswith(b"\n")
    return answer.status_code, json.loads(body)


async def test_white_space_precedes_a_slow_json_answer(up: Upstream) -> None:
    code, document = await after_white_space(up, chunk("Hello"), finish(), DONE)
    assert (code, document["choices"][0]["message"]["content"]) == (200, "Hello")


async def test_failure_after_white_space_is_an_error_object(up: Upstream) -> None:
    code, document = await after_white_space(up, chunk("Hel"), {"error": {"message": "CUDA out of memory"}})
    assert code == 200
    assert "CUDA out of memory" in document["error"]["message"]


async def test_client_apis_are_translated_where_passthrough_is_off(up: Upstream) -> None:
    up.say(sse(chunk("Hello"), finish(), DONE))
    async with client_of(up, "chat", overrides={"transport.passthrough": "auto"}, passthrough=False) as client:
        assert (await client.post(CHAT, json=HI)).json()["object"] == "chat.completion"


async def test_key_that_may_not_use_a_model_is_refused(up: Upstream) -> None:
    keys = {"team": {"hash": hash_of("sk-team"), "models": ["n"]}}
    async with client_of(up, "responses", keys=keys) as client:
        headers = {"Authorization": "Bearer sk-team"}
        for body in (HI, {**HI, "model": "n", "fallback_models": ["m"]}):
            refused = await client.post(CHAT, json=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
    assert not up.requests


@pytest.mark.parametrize("api", SERVER_APIS, ids=lambda api: api.name)
@pytest.mark.parametrize("stream", [False, True])
async def test_stop_sequence_ends_the_answer_of_every_server(up: Upstream, api: ServerAPI, stream: bool) -> None:
    up.say(sse(*api.begin("Hello E"), *api.more("ND and more"), HANG))
    async with client_of(up, api.name) as client:
        answer = await client.post(CHAT, json={**HI, "stop": "END", "stream": stream})
        await up.requests[0].gone.wait()
    if stream:
        chunks = chunks_of(answer)
        assert (joined(chunks, "content"), chunks[-1]) == ("Hello ", "[DONE]")
        assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        (choice,) = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello ", "stop")
    assert "x-antiphon-warning" not in answer.headers
    assert (b'"END"' in up.requests[0].body) == (api.name != "responses")
