"""Parsing a server's bytes on a connection."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import httpx
import pytest

from app.backends.transport import HTTPToolsTransport
from app.backends.transport.connection import HIGH_WATER
from tests.support.raw_server import (
    CHUNKED,
    END,
    OK,
    Peer,
    chunk,
    on_each_loop,
    read,
    request,
    saying,
    saying_and_closing,
    serve,
    sized,
)

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@pytest.mark.parametrize(
    ("wire", "status", "body"),
    [
        (sized(b"hello"), 200, b"hello"),
        (sized(b""), 200, b""),
        (CHUNKED + chunk(b"hel") + chunk(b"lo") + END, 200, b"hello"),
        (CHUNKED + b"5;name=value\r\nhello\r\n0\r\nDigest: x\r\nServer-Timing: y\r\n\r\n", 200, b"hello"),
        (b"HTTP/1.1 404\r\ncontent-length: 2\r\n\r\nno", 404, b"no"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b""),
        (EARLY + sized(b"hello"), 200, b"hello"),
        (OK + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
    ],
    ids=["sized", "empty", "chunked", "trailers", "no reason", "204", "304", "early hints", "upgrade on offer"],
)
@on_each_loop
async def test_reply_with_an_end_of_its_own_leaves_its_connection_reusable(
    wire: bytes, status: int, body: bytes
) -> None:
    async with serve(saying(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert (response.status_code, await response.aread()) == (status, body)
            assert "link" not in response.headers and "digest" not in response.headers
        assert len(server.peers) == 1


@pytest.mark.parametrize("wire", [OK + b"\r\nhello", b"HTTP/1.0 200 OK\r\n\r\nhello"], ids=["1.1", "1.0"])
@on_each_loop
async def test_reply_without_a_length_ends_with_its_connection(wire: bytes) -> None:
    async with serve(saying_and_closing(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            assert await read(transport, request(server)) == b"hello"
        assert [len(peer.requests) for peer in server.peers] == [1, 1]


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"hello") + END,
        sized(b"hello") + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        sized(b"hello") + b"?",
    ],
    ids=["1.0", "close", "chunked, close", "unasked reply behind it", "garbage behind it"],
)
@on_each_loop
async def test_connection_that_cannot_be_trusted_serves_one_request(wire: bytes) -> None:
    async with serve(saying(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            assert await read(transport, request(server)) == b"hello"
        assert [len(peer.requests) for peer in server.peers] == [1, 1]


@on_each_loop
async def test_connection_of_http_1_0_is_kept_if_the_server_says_so() -> None:
    wire = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi"
    async with serve(saying(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert await response.aread() == b"hi"
        assert len(server.peers) == 1


@on_each_loop
async def test_reply_to_head_has_no_body_whatever_its_headers_say() -> None:
    async with (
        serve(saying(OK + b"Content-Length: 5\r\n\r\n")) as server,
        HTTPToolsTransport(trust_env=False) as transport,
    ):
        response = await transport.handle_async_request(request(server, "HEAD"))
        assert response.headers["content-length"] == "5"
        assert [data async for data in response.stream] == []  # type: ignore[union-attr]


@on_each_loop
async def test_head_of_a_reply_is_passed_on_unchanged() -> None:
    wire = b"HTTP/1.1 201 Made Up\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Empty:\r\nX-Wide: \t \xe9 \t\r\n"
    wire += b"Content-Length:0\r\n\r\n"
    async with serve(saying(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        assert response.status_code == 201
        assert response.headers.raw == [
            (b"Set-Cookie", b"a=1"),
            (b"Set-Cookie", b"b=2"),
            (b"X-Empty", b""),
            (b"X-Wide", b"\xe9"),
            (b"Content-Length", b"0"),
        ]


@on_each_loop
async def test_body_is_the_same_for_any_cut() -> None:
    wire = EARLY + OK + b"X: y\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"data: 1\n\n") + chunk(b"\r\n") + END

    async def script(peer: Peer) -> None:
        for at in range(1, len(wire)):
            await peer.request()
            await peer.send(wire[:at], wire[at:])
        await peer.request()
        await peer.send(*(wire[at : at + 1] for at in range(len(wire))))

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(len(wire)):
            response = await transport.handle_async_request(request(server))
            assert (response.headers.raw[0], await response.aread()) == ((b"X", b"y"), b"data: 1\n\n\r\n")
        assert len(server.peers) == 1


@on_each_loop
async def test_bytes_that_arrive_together_are_read_together() -> None:
    async with (
        serve(saying(CHUNKED, chunk(b"a") + chunk(b"b") + chunk(b"c"), chunk(b"d") + END)) as server,
        HTTPToolsTransport(trust_env=False) as transport,
    ):
        response = await transport.handle_async_request(request(server))
        assert [data async for data in response.stream] == [b"abc", b"d"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wire",
    [CHUNKED + chunk(b"hello"), CHUNKED + chunk(b"hello") + b"5\r\n", OK + b"Content-Length: 9\r\n\r\nhello"],
    ids=["between chunks", "in a chunk", "sized"],
)
@on_each_loop
async def test_body_that_breaks_off_is_an_error_after_all_that_came(wire: bytes) -> None:
    async with serve(saying_and_closing(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        await asyncio.sleep(0.05)  # a late reader
        received = []
        with pytest.raises(httpx.RemoteProtocolError, match="before its reply was complete"):
            async for data in response.stream:  # type: ignore[union-attr]
                received.append(data)
        assert received == [b"hello"]


@on_each_loop
async def test_connection_reset_in_a_body_is_a_read_error() -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"hello"))
        await seen.wait()
        peer.reset()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        stream = aiter(response.stream)  # type: ignore[arg-type]
        assert await anext(stream) == b"hello"
        seen.set()
        with pytest.raises(httpx.ReadError):
            await anext(stream)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200",
        b"<html>Bad gateway</html>",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
        OK + b"No colon here\r\n\r\n",
    ],
    ids=["nothing", "half a line", "a web page", "HTTP/2", "another protocol", "two lengths", "no colon"],
)
@on_each_loop
async def test_bytes_that_are_no_http_reply_are_a_protocol_error(wire: bytes) -> None:
    async with serve(saying_and_closing(wire)) as server, HTTPToolsTransport(trust_env=False) as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(request(server))
        assert len(server.requests) == 1


@on_each_loop
async def test_garbage_in_a_body_is_a_protocol_error_after_all_that_came() -> None:
    async with (
        serve(saying(CHUNKED + chunk(b"hello") + b"xyz\r\n")) as server,
        HTTPToolsTransport(trust_env=False) as transport,
    ):
        response = await transport.handle_async_request(request(server))
        stream = aiter(response.stream)  # type: ignore[arg-type]
        assert await anext(stream) == b"hello"
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(stream)


@pytest.mark.parametrize(
    ("beginning", "more"),
    [(OK, b"X: y\r\n" * 2000), (EARLY, EARLY * 200), (OK + b"X: ", b"x" * 10_000)],
    ids=["many headers", "many hints", "one header"],
)
@on_each_loop
async def test_head_without_an_end_is_refused(beginning: bytes, more: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(beginning)
        while True:
            await peer.send(more)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        with pytest.raises(httpx.RemoteProtocolError, match="too large"):
            await transport.handle_async_request(request(server))


@on_each_loop
async def test_trailers_without_an_end_are_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"hello") + b"0\r\nX: ")
        while True:
            await peer.send(b"x" * 10_000)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        with pytest.raises(httpx.RemoteProtocolError, match="too large"):
            await response.aread()


@on_each_loop
async def test_server_that_is_faster_than_the_reader_is_paused() -> None:
    total = 64 * HIGH_WATER

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + b"Content-Length: %d\r\n\r\n" % total)
        for _ in range(64):
            await peer.send(b"x" * HIGH_WATER)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        reply = response.extensions["stream"]
        while reply.unread <= HIGH_WATER:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        items = [len(data) async for data in reply]
        assert sum(items) == total
        assert max(items) < 3 * HIGH_WATER  # the buffer and one event loop read


@on_each_loop
async def test_read_on_a_reused_connection_does_not_run_in_the_first_requests_context() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.request()
        await peer.send(CHUNKED)
        await waiting.wait()
        await peer.send(chunk(b"hello"))
        await taken.wait()
        await peer.send(END)

    waiting, taken, contexts = asyncio.Event(), asyncio.Event(), []

    def take(data: bytes) -> bool:
        contexts.append(REQUEST.get())
        taken.set()
        return True

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        REQUEST.set("first")
        assert await read(transport, request(server)) == b"hello"
        REQUEST.set("second")
        response = await transport.handle_async_request(request(server))
        asyncio.get_running_loop().call_soon(waiting.set)
        with pytest.raises(StopAsyncIteration):
            await response.extensions["stream"].deliver(take)
        assert contexts == [None]
        assert len(server.peers) == 1
