"""A WebSocket's life: access, duration, and clients that disconnect or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openresponses_types.types import WebSocketErrorEvent
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.core.types.deltas import Delta, Finished, FinishReason, TextDelta
from tests.support import laws
from tests.support.scripted import Scripted
from tests.support.sockets import CODEX, HELLO, ask, dial, hear, hear_out, listening, refusal, response, send, talking
from tests.support.upstream import HANG, Upstream, chunk, sse

LIMIT = "websocket_connection_limit_reached"


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def end_of(client: Any) -> int:
    """Wait for the server to close the connection, and return the code it gives."""
    async with asyncio.timeout(60):
        with pytest.raises(ConnectionClosed):
            while True:
                await client.recv()
    return int(client.close_code)


async def turned_away(url: str, **options: Any) -> tuple[int, str]:
    """Try to connect, and return the status and the code of the HTTP answer."""
    with pytest.raises(InvalidStatus) as refused:
        await dial(url, **options)
    answer = refused.value.response
    return answer.status_code, json.loads(answer.body)["error"]["code"]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Who may connect.


async def test_connection_without_a_known_key_is_refused() -> None:
    async with listening(Scripted(HELLO), api_keys="one,two") as url:
        assert await turned_away(url) == (401, "invalid_api_key")
        assert await turned_away(url, additional_headers=bearer("three")) == (401, "invalid_api_key")
        async with dial(url, additional_headers=bearer("two")) as client:
            laws.check(await ask(client))


@pytest.mark.parametrize("path", ["/nowhere", "/v1/models", "/v1/responses/resp_x", "/"])
async def test_connection_at_another_path_is_refused(path: str) -> None:
    async with listening(Scripted(HELLO)) as url:
        assert await turned_away(url, path=path) == (404, "unknown_url")


async def test_connection_with_the_key_among_the_subprotocols_is_accepted() -> None:
    offered = ["realtime", "openai-insecure-api-key.one"]
    async with listening(Scripted(HELLO), api_keys="one") as url:
        async with dial(url, subprotocols=offered, origin="https://page.example") as client:
            assert client.subprotocol == "realtime"
            laws.check(await ask(client))
        assert await turned_away(url, subprotocols=["openai-insecure-api-key.two"]) == (401, "invalid_api_key")


async def test_response_of_another_key_is_not_found() -> None:
    async with listening(Scripted(HELLO), api_keys="one,two") as url:
        async with dial(url, additional_headers=bearer("one")) as client:
            stored = (await response(client))["id"]
        async with dial(url, additional_headers=bearer("one")) as client:
            assert (await response(client, previous_response_id=stored))["status"] == "completed"
        async with dial(url, additional_headers=bearer("two")) as client:
            assert await refusal(client, previous_response_id=stored) == (400, "previous_response_not_found")


async def test_callers_key_goes_to_the_backend_as_over_http() -> None:
    backend = Scripted(HELLO)
    async with talking(backend, headers=bearer("mine")) as client:
        await ask(client)
    assert backend.keys == ["mine"]


async def test_connection_from_a_web_page_needs_an_allowed_origin() -> None:
    async with listening(Scripted(HELLO), cors_origins="https://good.example") as url:
        assert await turned_away(url, origin="https://evil.example") == (403, "origin_not_allowed")
        assert await turned_away(url, origin="null") == (403, "origin_not_allowed")
        for origin in ("https://good.example", url):
            async with dial(url, origin=origin) as client:
                laws.check(await ask(client))
    async with listening(Scripted(HELLO), cors_origins="*") as url, dial(url, origin="https://any.example") as client:
        laws.check(await ask(client))


# How long it lasts.


async def test_connection_that_is_idle_is_closed_at_its_timeout_with_an_error() -> None:
    async with talking(Scripted(HELLO), websocket_lifetime=2) as client:
        laws.check(await ask(client))
        error = await hear(client)
        WebSocketErrorEvent.model_validate(error)
        assert (error["status"], error["error"]["code"]) == (400, LIMIT)
        assert await end_of(client) == 1001


async def test_connection_at_its_lifetime_finishes_its_turn_and_begins_none() -> None:
    go_on = asyncio.Event()
    backend = Scripted([*HELLO, go_on])
    async with talking(backend, websocket_lifetime=2) as client:
        await send(client, input="runs")
        await send(client, input="waits")
        await until(lambda: backend.opened)
        await asyncio.sleep(2.2)  # it is over by now
        go_on.set()
        laws.check(await hear_out(client))
        assert (await hear(client))["error"]["code"] == LIMIT
        assert await end_of(client) == 1001
    assert len(backend.received) == 1


async def test_turn_that_does_not_end_in_time_is_cancelled() -> None:
    backend = Scripted([*HELLO, asyncio.Event()])
    async with talking(backend, websocket_lifetime=2, shutdown_grace=0.1) as client:
        frames = []
        await send(client)
        while not frames or frames[-1]["type"] != "error":
            frames.append(await hear(client))
        assert frames[-1]["error"]["code"] == LIMIT
        assert await end_of(client) == 1001
    assert (backend.opened, backend.left) == (0, 1)


async def test_turn_in_progress_when_the_server_stops_may_end() -> None:
    go_on = asyncio.Event()
    backend = Scripted([*HELLO, go_on])
    async with contextlib.AsyncExitStack() as stack:
        served = contextlib.AsyncExitStack()
        url = await served.enter_async_context(listening(backend, config={"timeout_graceful_shutdown": 10}))
        busy, idle = [await stack.enter_async_context(dial(url)) for _ in range(2)]
        await send(busy)
        await send(busy, input="waits")
        await until(lambda: backend.opened)

        stopping = asyncio.ensure_future(served.aclose())
        assert await end_of(idle) == 1012
        go_on.set()
        laws.check(await hear_out(busy))
        assert await end_of(busy) == 1012
        await stopping
    assert len(backend.received) == 1


# Disconnecting clients.


async def test_client_that_disconnects_closes_the_backends_stream_and_drops_waiting_turns() -> None:
    backend = Scripted([*HELLO, asyncio.Event()])
    async with listening(backend) as url:
        async with dial(url) as client:
            await send(client, input="runs")
            await send(client, input="waits")
            while (await hear(client))["type"] != "response.output_text.delta":
                pass
        await until(lambda: not backend.opened)
    assert (backend.left, len(backend.received)) == (1, 1)


async def test_client_that_breaks_off_closes_the_backends_connection() -> None:
    async with Upstream() as upstream, listening(None, backend_url=upstream.url) as url:
        upstream.always(sse(chunk("Hel"), HANG))
        client = await dial(url)
        await send(client)
        while (await hear(client))["type"] != "response.output_text.delta":
            pass
        client.transport.abort()
        async with asyncio.timeout(60):
            await upstream.requests[0].gone.wait()


async def test_client_that_disconnects_before_the_backends_answer_is_noticed() -> None:
    async with Upstream() as upstream, listening(None, backend_url=upstream.url, open_after=30) as url:
        upstream.always(HANG)
        async with dial(url) as client:
            await send(client)
            await until(lambda: upstream.requests)
        async with asyncio.timeout(60):
            await upstream.requests[0].gone.wait()


# Clients that do not read.


class Flood(Scripted):
    """Sends more than any buffer holds, and counts how much was read."""

    WHOLE = 4000  # 4 KB pieces

    def __init__(self) -> None:
        super().__init__([])
        self.given = 0

    async def _chunks(self, script: Any) -> AsyncIterator[list[Delta]]:
        try:
            for number in range(self.WHOLE):
                self.given += 1
                yield [TextDelta([f"{number:4096}"])]
            yield [Finished(FinishReason.STOP)]
        finally:
            self.left += self.given < self.WHOLE


async def still(backend: Flood) -> int:
    """Wait until the backend is not read any more, and return how much was read."""
    given = -1
    async with asyncio.timeout(120):
        while not given or given != backend.given:
            given = backend.given
            await asyncio.sleep(0.5)
    return given


def narrow(url: str) -> socket.socket:
    """A connection with small kernel buffers."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    line.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    line.setblocking(False)
    return line


async def test_client_that_does_not_read_pauses_the_backend() -> None:
    backend = Flood()
    async with listening(backend) as url, dial(url, sock=narrow(url)) as client:
        await send(client)
        assert 0 < await still(backend) < Flood.WHOLE
        pieces = []
        while len(pieces) < Flood.WHOLE:
            event = await hear(client)
            if event["type"] == "response.output_text.delta":
                pieces.append(int(event["delta"]))
    assert pieces == list(range(Flood.WHOLE))


async def test_client_that_neither_reads_nor_answers_pings_is_disconnected() -> None:
    backend = Flood()
    pings = {"ws_ping_interval": 0.3, "ws_ping_timeout": 0.3}
    async with listening(backend, config=pings) as url:
        client = await dial(url, ping_interval=None, sock=narrow(url))
        await send(client)
        await until(lambda: backend.left)
        assert backend.given < Flood.WHOLE
        client.transport.abort()


# Clients with pending messages.


async def test_codex_gets_heartbeats_of_a_silent_response() -> None:
    go_on = asyncio.Event()
    async with talking(Scripted([*HELLO, go_on]), headers=CODEX, heartbeat=0.05) as client:
        await send(client)
        frames = [await hear(client)]
        while frames[-1]["type"] != "keepalive":
            frames.append(await hear(client))
        go_on.set()
        laws.check([*frames, *await hear_out(client)])


async def test_clients_other_than_codex_get_events_alone() -> None:
    async with talking(Scripted([*HELLO, 0.3]), heartbeat=0.05) as client:
        assert "keepalive" not in {event["type"] for event in await ask(client)}
