"""WebSocket turns on a real socket: requests, events and connection memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseSteerFailedEvent
from openresponses_types.types import WebSocketErrorEvent

from app.core.profile import Profile
from app.core.request.model_request import ModelRequest
from app.errors import BackendError, StoreUnavailable
from app.stores import Change
from app.stores.memory import MemoryStore
from tests.support import laws
from tests.support.build import delta, story
from tests.support.scripted import Scripted
from tests.support.sockets import CODEX, HELLO, ask, dial, hear, hear_out, listening, refusal, response, send, talking
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

NOT_FOUND = (400, "previous_response_not_found")
LOST_CALL = [{"type": "function_call_output", "call_id": "call_of_nobody", "output": "42"}]


def model_texts(backend: Scripted) -> list[str]:
    """The model's last input, without roles."""
    return [message["content"] for message in backend.received[-1]["messages"]]


# Turns.


async def test_turn_is_answered_with_the_events_of_a_stream_and_nothing_else() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as socket:
        first, second = await ask(socket), await ask(socket)
    laws.check(first)
    laws.check(second)
    assert story(first) == (
        "created in_progress output_item.added content_part.added output_text.delta output_text.delta "
        "output_text.done content_part.done output_item.done completed"
    )
    assert first[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"
    assert first[-1]["response"]["id"] != second[-1]["response"]["id"]


async def test_turn_has_the_events_of_http() -> None:
    async with (
        listening(Scripted(HELLO)) as url,
        dial(url) as socket,
        httpx.AsyncClient(timeout=60, trust_env=False) as http,
    ):
        framed = await ask(socket, metadata={"a": "b"}, temperature=0.5)
        body = {"model": "m", "input": "Hi", "metadata": {"a": "b"}, "temperature": 0.5, "stream": True}
        streamed = (await http.post(f"{url}/v1/responses", json=body)).text
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: {")]
    assert [event["type"] for event in framed] == [event["type"] for event in events]
    ours, theirs = framed[-1]["response"], events[-1]["response"]
    differ = {"id", "created_at", "completed_at", "output"}
    assert {k: v for k, v in ours.items() if k not in differ} == {k: v for k, v in theirs.items() if k not in differ}


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_websocket_with_and_without_the_prefix_is_opened(path: str) -> None:
    async with listening(Scripted(HELLO)) as url, dial(url, path) as socket:
        assert (await response(socket))["status"] == "completed"


async def test_turns_on_one_connection_run_in_order() -> None:
    go_on = asyncio.Event()
    backend = Scripted([*HELLO, go_on], HELLO)
    async with talking(backend) as socket:
        for input in ("One", "Two", "Three"):
            await send(socket, input=input)
        while (await hear(socket))["type"] != "response.output_text.delta":
            pass
        assert len(backend.received) == 1
        go_on.set()
        await hear_out(socket)
        laws.check(await hear_out(socket))
        laws.check(await hear_out(socket))
    assert [body["messages"][0]["content"] for body in backend.received] == ["One", "Two", "Three"]


async def test_turns_beyond_the_queue_are_refused_alone() -> None:
    go_on = asyncio.Event()
    backend = Scripted([*HELLO, go_on], HELLO)
    async with talking(backend, websocket_queue=2) as socket:
        await send(socket, input="running")
        while (await hear(socket))["type"] != "response.output_text.delta":
            pass
        for input in ("waits", "waits, too", "one too many"):
            await send(socket, input=input)
        refused = [frame for frame in [await hear(socket), await hear(socket)] if frame["type"] == "error"]
        assert [(frame["status"], frame["error"]["code"]) for frame in refused] == [(429, "rate_limit_exceeded")]
        assert refused[0]["headers"] == refused[0]["error"]["headers"] == {"Retry-After": "1"}
        go_on.set()
        ends = [(await hear_out(socket))[-1]["type"] for _ in range(3)]
    assert ends == ["response.completed"] * 3
    assert [body["messages"][0]["content"] for body in backend.received] == ["running", "waits", "waits, too"]


async def test_create_frame_nested_or_binary_is_read() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as socket:
        await socket.send(json.dumps({"type": "response.create", "response": {"model": "m", "input": "Nested"}}))
        laws.check(await hear_out(socket))
        assert model_texts(backend) == ["Nested"]
        await socket.send(json.dumps({"type": "response.create", "model": "m", "input": "Binary"}).encode())
        laws.check(await hear_out(socket))
        assert model_texts(backend) == ["Binary"]


async def test_stream_id_is_in_every_frame_of_its_turn() -> None:
    async with talking(Scripted(HELLO, [BackendError("No.", status=503)])) as socket:
        events = await ask(socket, stream_id="main")
        refused = await ask(socket, stream_id="other.1")
    assert {event["stream_id"] for event in events} == {"main"}
    laws.check(events)
    assert [frame["stream_id"] for frame in refused] == ["other.1"]


# Invalid frames.


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ("", "invalid_json", None),
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        ("42", "invalid_json", None),
        (b"\xff\xfe", "invalid_json", None),
        ('{"type": "response.create", "model": "m", "input": ' + "[" * 300 + "]" * 300 + "}", "invalid_json", None),
        ("{}", "invalid_value", "type"),
        ('{"type": "response.inject"}', "invalid_value", "type"),
        ('{"type": ["response.create"]}', "invalid_value", "type"),
        ('{"type": "response.create"}', "missing_required_parameter", "model"),
        ('{"type": "response.create", "model": "m"}', "invalid_request", "input"),
        ('{"type": "response.create", "model": "m", "input": 1}', "invalid_type", "input"),
        ('{"type": "response.create", "model": "m", "temperature": 9}', "decimal_above_max_value", "temperature"),
        ('{"type": "response.create", "model": "m", "input": "x", "generate": 0}', "invalid_type", "generate"),
        (
            '{"type": "response.create", "model": "m", "input": "x", "stream_id": "a b"}',
            "invalid_stream_id",
            "stream_id",
        ),
        ('{"type": "response.create", "model": "m", "input": "x", "stream": true}', "unsupported_parameter", "stream"),
        ('{"type": "response.create", "model": "m", "input": "x", "stream": false}', "unsupported_parameter", "stream"),
        (
            '{"type": "response.create", "model": "m", "input": "x", "stream_options": {}}',
            "unsupported_parameter",
            "stream_options",
        ),
        (
            '{"type": "response.create", "model": "m", "input": "x", "background": true}',
            "unsupported_parameter",
            "background",
        ),
    ],
)
async def test_frame_that_is_invalid_is_answered_with_an_error(
    frame: str | bytes, code: str, param: str | None
) -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as socket:
        await socket.send(frame)
        error = await hear(socket)
        WebSocketErrorEvent.model_validate(error)
        assert (error["status"], error["error"]["code"], error["error"]["param"]) == (400, code, param)
        assert not backend.received
        laws.check(await ask(socket))


async def test_steer_while_a_response_runs_is_answered_with_its_input() -> None:
    go = asyncio.Event()
    async with talking(Scripted([delta(content="Hel"), go, delta(content="lo")])) as socket:
        await send(socket)
        events = [await hear(socket)]
        while events[-1]["type"] != "response.output_text.delta":
            events.append(await hear(socket))
        steer = {"previous_response_id": events[0]["response"]["id"], "input": "Shorter."}
        await socket.send(json.dumps({"type": "response.steer", **steer}))
        failed = await hear(socket)
        ResponseSteerFailedEvent.model_validate(failed, strict=True)
        assert (failed["type"], failed["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
        assert failed["steer"] == steer
        go.set()
        laws.check([*events, *await hear_out(socket)])
        await socket.send('{"type": "response.steer"}')
        assert (await hear(socket))["error"]["code"] == "invalid_input"
        assert (await response(socket, input="Say response.steer."))["status"] == "completed"


async def test_frame_that_is_too_large_is_refused_alone() -> None:
    async with talking(Scripted(HELLO), max_body_bytes=1000) as socket:
        assert await refusal(socket, input="x" * 1001) == (413, "request_too_large")
        laws.check(await ask(socket))


async def test_codex_field_with_another_value_than_its_default_is_refused() -> None:
    async with talking(Scripted(HELLO), headers=CODEX) as socket:
        harmless = {"stream": True, "stream_options": {"include_obfuscation": False}, "background": False}
        laws.check(await ask(socket, **harmless))
        assert await refusal(socket, background=True) == (400, "unsupported_parameter")
        assert await refusal(socket, stream=False) == (400, "unsupported_parameter")


async def test_null_fields_are_as_if_absent() -> None:
    absent = dict.fromkeys(["stream", "stream_options", "background", "stream_id", "generate", "previous_response_id"])
    async with talking(Scripted(HELLO)) as socket:
        laws.check(await ask(socket, **absent))


# Failures.


async def test_failure_before_the_first_event_is_an_error_with_its_http_status() -> None:
    refusals = [
        BackendError(
            "Slow down.", error_type="too_many_requests", code="rate_limit_exceeded", status=429, retry_after=7
        ),
        BackendError("Down."),
    ]
    async with talking(Scripted(*[[error] for error in refusals])) as socket:
        (slow,) = await ask(socket)
        (down,) = await ask(socket)
    WebSocketErrorEvent.model_validate(slow)
    assert (slow["status"], slow["error"]["code"], slow["headers"]) == (
        429,
        "rate_limit_exceeded",
        {"Retry-After": "7"},
    )
    assert (down["status"], down["error"]["message"], "headers" in down) == (502, "Down.", False)


async def test_failure_after_the_first_event_is_response_failed() -> None:
    async with talking(Scripted([*HELLO, BackendError("Broken.")], HELLO)) as socket:
        events = await ask(socket)
        laws.check(events)
        assert story(events).endswith("error failed")
        assert events[-1]["response"]["error"]["message"] == "Broken."
        laws.check(await ask(socket))


async def test_internal_error_is_sent_without_details() -> None:
    class Faulty(Scripted):
        def profile(self, model: str) -> Profile:
            if model == "m":
                return super().profile(model)
            raise RuntimeError("a secret")

    async with talking(Faulty(HELLO)) as socket:
        (error,) = await ask(socket, model="other")
        assert (error["status"], error["error"]["code"]) == (500, "server_error")
        assert "secret" not in json.dumps(error)
        laws.check(await ask(socket))


# Connection memory.


async def test_response_with_store_false_can_be_continued_on_its_connection_alone() -> None:
    backend = Scripted(HELLO)
    async with listening(backend) as url, dial(url) as socket, dial(url) as other:
        first = await response(socket, store=False, input="One")
        assert first["store"] is False
        second = await response(socket, store=False, input="Two", previous_response_id=first["id"])
        third = await response(socket, store=False, input="Three", previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        assert model_texts(backend) == ["One", "Hello", "Two", "Hello", "Three"]

        assert await refusal(other, store=False, previous_response_id=first["id"]) == NOT_FOUND
        assert await refusal(other, previous_response_id=first["id"]) == NOT_FOUND
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            assert (await http.get(f"/v1/responses/{first['id']}")).status_code == 404
            body = {"model": "m", "input": "Hi", "previous_response_id": first["id"]}
            assert (await http.post("/v1/responses", json=body)).json()["error"]["code"] == NOT_FOUND[1]
    assert len(backend.received) == 3


async def test_reconnect_forgets_responses_with_store_false() -> None:
    async with listening(Scripted(HELLO)) as url:
        async with dial(url) as socket:
            first = await response(socket, store=False)
        async with dial(url) as socket:
            assert await refusal(socket, store=False, previous_response_id=first["id"]) == NOT_FOUND
            laws.check(await ask(socket, store=False))


async def test_continuations_of_one_response_do_not_see_each_other() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as socket:
        root = (await response(socket, store=False, input="Root"))["id"]
        await response(socket, store=False, input="Left", previous_response_id=root)
        await response(socket, store=False, input="Right", previous_response_id=root)
    assert model_texts(backend) == ["Root", "Hello", "Right"]


async def test_stored_and_unstored_turns_can_follow_one_another() -> None:
    backend = Scripted(HELLO)
    async with listening(backend) as url, dial(url) as socket, dial(url) as other:
        stored = (await response(socket, input="Stored"))["id"]
        local = (await response(socket, store=False, input="Local", previous_response_id=stored))["id"]
        last = (await response(socket, input="Last", previous_response_id=local))["id"]
        await response(socket, store=False, input="End", previous_response_id=last)
        assert model_texts(backend) == ["Stored", "Hello", "Local", "Hello", "Last", "Hello", "End"]

        await response(other, store=False, input="Elsewhere", previous_response_id=stored)
        assert model_texts(backend) == ["Stored", "Hello", "Elsewhere"]
        # Its continuation misses a turn on the other connection.
        assert await refusal(other, previous_response_id=last) == NOT_FOUND


async def test_item_of_an_unstored_response_can_be_referenced() -> None:
    backend = Scripted(HELLO)
    async with talking(backend) as socket:
        item = (await response(socket, store=False))["output"][0]["id"]
        await ask(socket, store=False, input=[{"type": "item_reference", "id": item}, {"role": "user", "content": "?"}])
    assert model_texts(backend) == ["Hello", "?"]


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        (HELLO, {"input": LOST_CALL}),
        (HELLO, {"temperature": 9}),
        (HELLO, {"stream": True}),
        (HELLO, {"stream_id": ""}),
        ([BackendError("Down.")], {}),
        ([*HELLO, BackendError("Broken.")], {}),
    ],
    ids=["lost call", "wrong field", "field of HTTP", "wrong stream_id", "refused", "broken"],
)
async def test_continuation_that_fails_evicts_an_unstored_response(script: list[Any], wrong: dict[str, Any]) -> None:
    async with talking(Scripted(HELLO, HELLO, script, HELLO) if not wrong else Scripted(HELLO)) as socket:
        first = (await response(socket, store=False, input="One"))["id"]
        second = (await response(socket, store=False, input="Two", previous_response_id=first))["id"]

        failed = await ask(socket, store=False, previous_response_id=second, **wrong)
        assert failed[0]["type"] == "error" or failed[-1]["type"] == "response.failed"

        assert await refusal(socket, store=False, previous_response_id=second) == NOT_FOUND
        assert (await response(socket, store=False, previous_response_id=first))["status"] == "completed"


async def test_continuation_that_fails_keeps_a_stored_response() -> None:
    async with talking(Scripted(HELLO)) as socket:
        first = (await response(socket))["id"]
        assert (await refusal(socket, input=LOST_CALL, previous_response_id=first))[0] == 400
        assert (await response(socket, previous_response_id=first))["status"] == "completed"


async def test_memory_of_a_connection_that_is_full_evicts_responses() -> None:
    async with talking(Scripted(HELLO), websocket_memory=20_000) as socket:
        first = await response(socket, store=False)
        large = await response(socket, store=False, input="x" * 30_000)
        assert large["status"] == "completed"
        assert await refusal(socket, store=False, previous_response_id=large["id"]) == NOT_FOUND
        assert (await response(socket, store=False, previous_response_id=first["id"]))["status"] == "completed"


class Away(MemoryStore):
    """A store without answers."""

    async def apply(self, *changes: Change) -> bool:
        raise StoreUnavailable

    async def all(self, bucket: str) -> dict[str, bytes]:
        raise StoreUnavailable

    async def check(self) -> None:
        raise StoreUnavailable


async def test_response_with_store_false_needs_no_store() -> None:
    async with talking(Scripted(HELLO), store=Away(ttl=60)) as socket:
        first = (await response(socket, store=False))["id"]
        assert (await response(socket, store=False, previous_response_id=first))["status"] == "completed"
        assert await refusal(socket) == (503, "store_unavailable")
        # A failed continuation without this response: only referenced responses are evicted.
        assert (await response(socket, store=False, previous_response_id=first))["status"] == "completed"


# Warming up.


async def test_warm_up_asks_no_backend_and_can_be_continued() -> None:
    backend = Scripted(HELLO)
    rules = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}]
    async with talking(backend, headers=CODEX) as socket:
        warm = await ask(socket, generate=False, store=False, stream=True, input=rules, instructions="Once.")
        laws.check(warm)
        assert story(warm) == "created in_progress completed"
        last = warm[-1]["response"]
        assert (last["output"], last["usage"]["total_tokens"], last["store"]) == ([], 0, False)
        assert not backend.received

        first = await response(socket, store=False, stream=True, input="Hi", previous_response_id=last["id"])
        assert model_texts(backend) == ["Be kind.", "Hi"]
        await ask(socket, store=False, input="And?", previous_response_id=first["id"])
        assert model_texts(backend) == ["Be kind.", "Hi", "Hello", "And?"]


async def test_warm_up_at_any_time_may_have_only_tools() -> None:
    backend = Scripted(HELLO)
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    async with talking(backend) as socket:
        first = (await response(socket, store=False, input="One"))["id"]
        warm = (await response(socket, generate=False, store=False, input=[], previous_response_id=first))["id"]
        await ask(socket, store=False, input="Two", previous_response_id=warm, tools=[tool])
        assert model_texts(backend) == ["One", "Hello", "Two"]
        laws.check(await ask(socket, generate=False, input=None, tools=[tool]))


async def test_warm_up_that_is_stored_can_be_continued_over_http() -> None:
    backend = Scripted(HELLO)
    async with listening(backend) as url, dial(url) as socket, httpx.AsyncClient(timeout=60, trust_env=False) as http:
        warm = (await response(socket, generate=False, input="Warm"))["id"]
        body = {"model": "m", "input": "Hot", "previous_response_id": warm}
        assert (await http.post(f"{url}/v1/responses", json=body)).status_code == 200
    assert model_texts(backend) == ["Warm", "Hot"]


# Others' clients and servers.


async def test_official_client_over_websocket_holds_a_conversation() -> None:
    backend = Scripted([delta(reasoning_content="Hm."), *HELLO])
    async with listening(backend) as url:
        official = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
        async with official, official.responses.connect() as connection:
            previous = None
            for input in ("One", "Two"):
                fields = {"previous_response_id": previous} if previous else {}
                await connection.response.create(model="m", input=input, store=False, stream_id="main", **fields)
                events = []
                async for event in connection:
                    events.append(event)
                    if event.type == "response.completed":
                        previous = event.response.id
                        break
                assert {event.stream_id for event in events} == {"main"}
                assert "response.reasoning_text.delta" in {event.type for event in events}
            assert event.response.output_text == "Hello"

            await connection.response.create(model="m", input="?", previous_response_id="resp_nobody")
            error = await connection.recv()
            assert (error.type, error.status, error.error.code) == ("error", *NOT_FOUND)
    assert model_texts(backend) == ["One", "Hello", "Two"]


async def test_backend_on_a_real_socket_answers() -> None:
    async with Upstream() as upstream, talking(None, backend_url=upstream.url) as socket:
        upstream.always(sse(chunk("Hel"), chunk("lo"), finish(), DONE))
        events = await ask(socket)
        laws.check(events)
        assert upstream.requests[0].json["messages"] == [{"role": "user", "content": "Hi"}]


async def test_fifty_clients_at_once_each_get_their_own_events() -> None:
    class Echo(Scripted):
        def open(self, model_request: ModelRequest) -> Any:
            messages = self.encode(model_request).body["messages"]
            return Scripted([delta(content=message["content"]) for message in messages]).open(model_request)

    async def converse(url: str, name: str) -> list[str]:
        async with dial(url) as socket:
            first = await ask(socket, store=False, input=f"{name}, first")
            second = await ask(
                socket, store=False, input=f"{name}, second", previous_response_id=first[-1]["response"]["id"]
            )
            laws.check(first)
            laws.check(second)
            return [event["delta"] for event in second if event["type"] == "response.output_text.delta"]

    async with listening(Echo([])) as url:
        deltas = await asyncio.gather(*[converse(url, f"client {n}") for n in range(50)])
    assert deltas == [[f"client {n}, first", f"client {n}, first", f"client {n}, second"] for n in range(50)]
