"""WebSocket frames answered during a response, and concurrent turns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from openresponses_types.types import WebSocketErrorEvent
from websockets.asyncio.client import ClientConnection

from tests.responses.test_tool_loop import made
from tests.support import laws
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.sockets import HELLO, Frame, ask, dial, hear, hear_out, listening, send, talking
from tests.support.upstream import HANG, Upstream


async def control(socket: ClientConnection, **fields: Any) -> None:
    await socket.send(json.dumps(fields))


async def cancel(socket: ClientConnection, **fields: Any) -> None:
    await control(socket, type="response.cancel", **fields)


async def begin(socket: ClientConnection, **fields: Any) -> list[Frame]:
    """Send a turn, and return its events up to the first delta."""
    await send(socket, **fields)
    events = [await hear(socket)]
    while events[-1]["type"] != "response.output_text.delta":
        events.append(await hear(socket))
    return events


def silent() -> list[Any]:
    """An answer without an end."""
    return [delta(content="Hel"), asyncio.Event()]


# Cancelling.


@pytest.mark.parametrize("names_response", [False, True])
async def test_cancel_ends_the_response_and_closes_the_backends_stream(names_response: bool) -> None:
    backend = Scripted(silent(), HELLO)
    async with talking(backend) as socket:
        events = await begin(socket)
        await cancel(socket, **({"response_id": events[0]["response"]["id"]} if names_response else {}))
        events += await hear_out(socket)
        assert (backend.opened, backend.left) == (0, 1)
        following = await ask(socket)
    laws.check(events)
    assert events[-1]["type"] == "response.incomplete"
    ended = events[-1]["response"]
    assert (ended["status"], ended["output"][0]["status"]) == ("cancelled", "incomplete")
    assert ended["output"][0]["content"][0]["text"] == "Hel"
    assert ended["usage"]["output_tokens"] > 0
    laws.check(following)
    assert (following[0]["type"], following[-1]["type"]) == ("response.created", "response.completed")


async def test_cancel_closes_the_backends_connection() -> None:
    async with Upstream() as upstream, talking(None, backend_url=upstream.url, open_after=30) as socket:
        upstream.always(HANG)
        await send(socket)
        async with asyncio.timeout(60):
            while not upstream.requests:
                await asyncio.sleep(0.01)
        await cancel(socket)
        events = await hear_out(socket)
        async with asyncio.timeout(60):
            await upstream.requests[0].gone.wait()
    laws.check(events)
    assert [event["type"] for event in events] == [*("response.created", "response.in_progress", "response.incomplete")]


async def test_cancel_right_after_create_ends_the_response() -> None:
    go_on = asyncio.Event()
    async with talking(Scripted([go_on, *HELLO])) as socket:
        await send(socket)
        await cancel(socket)
        cancelled = await hear_out(socket)
        go_on.set()
        following = await ask(socket)
    laws.check(cancelled)
    assert cancelled[-1]["type"] == "response.incomplete"
    laws.check(following)
    assert following[-1]["type"] == "response.completed"


async def test_cancel_without_a_running_response_is_ignored() -> None:
    async with talking(Scripted(HELLO)) as socket:
        await cancel(socket)
        first = await ask(socket)
        await cancel(socket, response_id=first[0]["response"]["id"])
        second = await ask(socket)
    for events in (first, second):
        laws.check(events)
        assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("fields", [{"response_id": "resp_other"}, {"response_id": 1}, {"stream_id": "other"}])
async def test_cancel_of_another_response_is_ignored(fields: dict[str, Any]) -> None:
    go_on = asyncio.Event()
    async with talking(Scripted([delta(content="Hel"), go_on, delta(content="lo")])) as socket:
        events = await begin(socket)
        await cancel(socket, **fields)
        await control(socket, type="ping")
        assert (await hear(socket))["frame"] == "ping"  # so the frame before it has been read
        go_on.set()
        events += await hear_out(socket)
    laws.check(events)
    assert events[-1]["type"] == "response.completed"


async def test_cancels_of_one_response_end_it_once_and_leave_waiting_turns() -> None:
    backend = Scripted(silent(), HELLO)
    async with talking(backend) as socket:
        events = await begin(socket, input="One")
        await send(socket, input="Two")
        for _ in range(3):
            await cancel(socket, response_id=events[0]["response"]["id"])
        events += await hear_out(socket)
        second, third = await hear_out(socket), await ask(socket, input="Three")
    assert events[-1]["type"] == "response.incomplete"
    for turn in (events, second, third):
        laws.check(turn)
    assert (second[-1]["type"], third[-1]["type"]) == ("response.completed", "response.completed")
    assert [body["messages"][0]["content"] for body in backend.received] == ["One", "Two", "Three"]


async def test_cancelled_response_is_stored_and_can_be_continued() -> None:
    async with (
        listening(Scripted(silent(), HELLO)) as url,
        dial(url) as socket,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        events = await begin(socket)
        await cancel(socket)
        ended = (await hear_out(socket))[-1]["response"]
        stored = (await http.get(f"/v1/responses/{ended['id']}")).json()
        assert (stored["id"], stored["status"]) == (events[0]["response"]["id"], "cancelled")
        following = await ask(socket, previous_response_id=ended["id"])
    assert following[-1]["type"] == "response.completed"


async def test_cancel_stops_a_hosted_tool() -> None:
    backend = Scripted(made(("demo__wait", {"seconds": 3600})), HELLO)
    demo = [{"type": "mcp", "server_label": "demo"}]
    async with talking(backend, tools={"demo": {}}) as socket:
        await send(socket, tools=demo)
        events = [await hear(socket)]
        while events[-1]["type"] != "response.mcp_call_arguments.done":
            events.append(await hear(socket))
        await cancel(socket)
        events += await hear_out(socket)
        following = await ask(socket)
    laws.check(events)
    assert events[-1]["response"]["status"] == "cancelled"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["mcp_list_tools", "mcp_call"]
    assert len(backend.received) == 2
    assert following[-1]["type"] == "response.completed"


# Other frames.


@pytest.mark.parametrize("frame_type", ["ping", "response.processed", "session.update", "response.inject", None, 7])
async def test_unknown_frame_is_answered_while_a_response_is_in_progress(frame_type: object) -> None:
    go_on = asyncio.Event()
    async with talking(Scripted([delta(content="Hel"), go_on, delta(content="lo")])) as socket:
        events = await begin(socket)
        await control(socket, type=frame_type, model="m", input="Hi")
        error = await hear(socket)
        go_on.set()
        events += await hear_out(socket)
        following = await ask(socket)
    WebSocketErrorEvent.model_validate(error)
    assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, "type")
    assert error["frame"] == (frame_type if isinstance(frame_type, str) else None)
    laws.check(events)
    laws.check(following)


async def test_malformed_frame_is_answered_while_a_response_is_in_progress() -> None:
    go_on = asyncio.Event()
    async with talking(Scripted([delta(content="Hel"), go_on, delta(content="lo")])) as socket:
        events = await begin(socket)
        await socket.send("{")
        error = await hear(socket)
        go_on.set()
        events += await hear_out(socket)
    assert (error["error"]["code"], error["frame"]) == ("invalid_json", None)
    laws.check(events)


# Turns at the same time.


def of(stream_id: str, frames: list[Frame]) -> list[Frame]:
    return [frame for frame in frames if frame["stream_id"] == stream_id]


async def test_turns_with_different_stream_ids_run_at_the_same_time() -> None:
    go_on = asyncio.Event()
    backend = Scripted([delta(content="Hel"), go_on, delta(content="lo")], HELLO)
    async with talking(backend) as socket:
        slow = await begin(socket, stream_id="slow", input="One")
        await send(socket, stream_id="slow", input="Three")
        quick = await ask(socket, stream_id="quick", input="Two")
        go_on.set()
        slow += await hear_out(socket)
        last = await hear_out(socket)
    for events, name in ((slow, "slow"), (quick, "quick"), (last, "slow")):
        laws.check(events)
        assert {event["stream_id"] for event in events} == {name}
        assert events[-1]["type"] == "response.completed"
    assert [body["messages"][0]["content"] for body in backend.received] == ["One", "Two", "Three"]


async def test_cancel_with_a_stream_id_leaves_other_streams() -> None:
    go_on = asyncio.Event()
    backend = Scripted([delta(content="Hel"), go_on, delta(content="lo")], silent())
    async with talking(backend) as socket:
        kept = await begin(socket, stream_id="kept")
        ended = await begin(socket, stream_id="ended")
        await cancel(socket, stream_id="ended")
        ended += await hear_out(socket)
        go_on.set()
        kept += await hear_out(socket)
    laws.check(ended)
    laws.check(kept)
    assert (ended[-1]["type"], kept[-1]["type"]) == ("response.incomplete", "response.completed")


async def test_cancel_that_names_nothing_ends_the_responses_of_all_streams() -> None:
    backend = Scripted(silent())
    async with talking(backend) as socket:
        frames = [*await begin(socket, stream_id="a"), *await begin(socket, stream_id="b")]
        await cancel(socket)
        while len([frame for frame in frames if frame["type"] == "response.incomplete"]) < 2:
            frames.append(await hear(socket))
    laws.check(of("a", frames))
    laws.check(of("b", frames))
    assert (backend.opened, backend.left) == (0, 2)


async def test_concurrent_turns_of_a_connection_are_limited_like_requests() -> None:
    async with talking(Scripted(silent(), HELLO), limit_streams_per_key=1) as socket:
        await begin(socket, stream_id="a")
        (refused,) = await ask(socket, stream_id="b")
        assert (refused["status"], refused["stream_id"]) == (429, "b")
        await cancel(socket, stream_id="a")
        assert (await hear_out(socket))[-1]["type"] == "response.incomplete"
        assert (await ask(socket, stream_id="b"))[-1]["type"] == "response.completed"


async def test_turns_of_all_streams_share_the_limit_of_the_connection() -> None:
    async with talking(Scripted(silent()), websocket_queue=2) as socket:
        for name in ("a", "b", "c"):
            await begin(socket, stream_id=name)
        (refused,) = await ask(socket, stream_id="d")
    assert (refused["status"], refused["error"]["code"], refused["stream_id"]) == (429, "rate_limit_exceeded", "d")


async def test_disconnect_closes_the_backends_streams_of_all_lanes() -> None:
    backend = Scripted(silent())
    async with listening(backend) as url:
        async with dial(url) as socket:
            await begin(socket, stream_id="a")
            await begin(socket, stream_id="b")
        async with asyncio.timeout(60):
            while backend.opened:
                await asyncio.sleep(0.01)
    assert backend.left == 2
