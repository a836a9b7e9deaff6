"""A stopping server answers everybody who reached it before, also on connections that it has not read yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from app.api.uvicorn import http as uvicorn_http
from app.main import create_app
from app.stores import Change
from app.stores.memory import MemoryStore
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import HANG, Upstream, chunk, sse, upstream

__all__ = ["upstream"]

ASK = (
    b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 29\r\n\r\n"
    b'{"model": "m", "input": "Hi"}'
)


@contextlib.asynccontextmanager
async def stopping(*already: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection with some bytes to a server that is then stopped, and accepts no new connections."""
    app = create_app(settings(), backend=Scripted([delta(content="Hello")]))
    serve = serving(app, http="app.api.uvicorn.http:HTTPProtocol", ws="app.api.uvicorn.websocket:WebSocketProtocol")
    async with AsyncExitStack() as stack:
        address = httpx.URL(await stack.enter_async_context(serve))
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for data in already:
            writer.write(data)
        await asyncio.sleep(0.05)  # time to accept and read
        ending = asyncio.create_task(stack.aclose())
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while True:
                    _, late = await asyncio.open_connection(address.host, address.port)
                    late.close()
                    await asyncio.sleep(0.01)
        yield reader, writer
        writer.close()
        await ending


@pytest.mark.parametrize("already", [0, 9, 50])
async def test_request_on_an_earlier_connection_at_shutdown_is_answered(already: int) -> None:
    async with stopping(ASK[:already]) as (reader, writer):
        writer.write(ASK[already:])
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close" in head
    assert b'"status":"completed"' in body


async def test_request_that_has_begun_on_a_kept_connection_at_shutdown_is_answered() -> None:
    async with stopping(ASK, ASK[:9]) as (reader, writer):
        writer.write(ASK[9:])
        answers = await reader.read()

    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert answers.count(b"\r\nconnection: close") == 1


async def test_request_on_an_idle_kept_connection_at_shutdown_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy can send a request before the connection's end reaches it, and must not repeat the request."""
    monkeypatch.setattr(uvicorn_http, "SHUTDOWN_IDLE_TIMEOUT", 30)
    async with stopping(ASK) as (reader, writer):
        writer.write(ASK)
        answers = await reader.read()

    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert answers.count(b"\r\nconnection: close") == 1


@pytest.mark.parametrize("already", [(), (ASK,)])
async def test_connection_without_a_request_at_shutdown_is_closed_soon(
    monkeypatch: pytest.MonkeyPatch, already: tuple[bytes, ...]
) -> None:
    monkeypatch.setattr(uvicorn_http, "SHUTDOWN_HEAD_TIMEOUT", 0.05)
    async with stopping(*already) as (reader, _):
        async with asyncio.timeout(60):
            assert (await reader.read()).count(b"HTTP/1.1 200 ") == len(already)


class SlowStore(MemoryStore):
    """A store with a write that takes longer than closing the application."""

    closed = False

    async def apply(self, *changes: Change) -> bool:
        if any(name.startswith("resp_") for change in changes for name in change.put):
            await asyncio.sleep(1)
            assert not self.closed
        return await super().apply(*changes)

    async def aclose(self) -> None:
        self.closed = True
        await super().aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_store_at_shutdown_is_closed_after_cancelled_requests_have_ended(
    upstream: Upstream, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.always(sse(chunk("Hel"), HANG))
    store = SlowStore(ttl=1000)
    async with httpx.AsyncClient(timeout=60) as http:
        async with antiphon(store=store, backend_url=upstream.url) as url:
            body = {"model": "m", "input": "Hi", "stream": stream}
            asking = asyncio.create_task(http.post(f"{url}/v1/responses", json=body))
            async with asyncio.timeout(60):
                while not (upstream.requests and upstream.requests[0].sent > 1):
                    await asyncio.sleep(0.01)
        await asyncio.wait({asking})
    assert store.closed
    assert not [record for record in caplog.records if "unexpected" in record.message]


async def test_websocket_at_shutdown_is_not_opened() -> None:
    async with stopping() as (reader, writer):
        writer.write(
            b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = await reader.read()

    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in head
