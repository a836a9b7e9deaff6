"""What a connection makes of the bytes that a server sends, and of those that it does not send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from app.backends.connection import HIGH_WATER
from app.backends.transport import HTTPToolsTransport
from tests.backends.raw_server import CHUNKED, END, OK, Peer, Script, Server, chunk, on_each_loop, serve, sized

EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@asynccontextmanager
async def asking(script: Script) -> AsyncIterator[tuple[HTTPToolsTransport, Server]]:
    transport = HTTPToolsTransport(trust_env=False)
    async with serve(script) as server:
        try:
            yield transport, server
        finally:
            await transport.aclose()


def request(server: Server, method: str = "GET", **timeouts: float) -> httpx.Request:
    return httpx.Request(method, server.url, extensions={"timeout": timeouts})


def saying(*pieces: bytes) -> Script:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces)

    return script


def saying_and_closing(*pieces: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)
        peer.close()

    return script


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
async def test_a_reply_that_ends_by_itself_leaves_its_connection_for_the_next(
    wire: bytes, status: int, body: bytes
) -> None:
    async with asking(saying(wire)) as (transport, server):
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert (response.status_code, await response.aread()) == (status, body)
            assert "link" not in response.headers and "digest" not in response.headers
        assert len(server.peers) == 1


@pytest.mark.parametrize(
    "wire",
    [
        OK + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"hello") + END,
        sized(b"hello") + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
        sized(b"hello") + b"?",
    ],
    ids=["unframed", "unframed 1.0", "1.0", "close", "chunked, close", "unasked reply behind it", "garbage behind it"],
)
@on_each_loop
async def test_a_connection_that_cannot_be_trusted_serves_one_request_only(wire: bytes) -> None:
    async with asking(saying_and_closing(wire)) as (transport, server):
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert await response.aread() == b"hello"
        assert [len(peer.requests) for peer in server.peers] == [1, 1]


@on_each_loop
async def test_a_connection_of_http_1_0_is_kept_if_the_server_says_so() -> None:
    wire = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi"
    async with asking(saying(wire)) as (transport, server):
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert await response.aread() == b"hi"
            assert response.http_version == "HTTP/1.0"
        assert len(server.peers) == 1


@on_each_loop
async def test_a_reply_to_head_has_no_body_whatever_its_headers_say() -> None:
    async with asking(saying(OK + b"Content-Length: 5\r\n\r\n")) as (transport, server):
        response = await transport.handle_async_request(request(server, "HEAD"))
        assert response.headers["content-length"] == "5"
        assert [data async for data in response.stream] == []  # type: ignore[union-attr]


@on_each_loop
async def test_the_head_is_passed_on_as_it_came() -> None:
    wire = b"HTTP/1.1 201 Made Up\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Empty:\r\nX-Wide: \t \xe9 \t\r\n"
    wire += b"Content-Length:0\r\n\r\n"
    async with asking(saying(wire)) as (transport, server):
        response = await transport.handle_async_request(request(server))
        assert response.reason_phrase == "Made Up"
        assert response.headers.raw == [
            (b"Set-Cookie", b"a=1"),
            (b"Set-Cookie", b"b=2"),
            (b"X-Empty", b""),
            (b"X-Wide", b"\xe9"),
            (b"Content-Length", b"0"),
        ]


@on_each_loop
async def test_where_the_bytes_are_cut_makes_no_difference() -> None:
    wire = EARLY + OK + b"X: y\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"data: 1\n\n") + chunk(b"\r\n") + END

    async def script(peer: Peer) -> None:
        for at in range(1, len(wire)):
            await peer.request()
            await peer.send(wire[:at], wire[at:])
        await peer.request()
        await peer.send(*(wire[at : at + 1] for at in range(len(wire))))

    async with asking(script) as (transport, server):
        for _ in range(len(wire)):
            response = await transport.handle_async_request(request(server))
            assert (response.headers.raw[0], await response.aread()) == ((b"X", b"y"), b"data: 1\n\n\r\n")
        assert len(server.peers) == 1


@on_each_loop
async def test_what_arrives_together_is_read_together() -> None:
    async with asking(saying(CHUNKED, chunk(b"a") + chunk(b"b") + chunk(b"c"), chunk(b"d") + END)) as (
        transport,
        server,
    ):
        response = await transport.handle_async_request(request(server))
        assert [data async for data in response.stream] == [b"abc", b"d"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wire",
    [CHUNKED + chunk(b"hello"), CHUNKED + chunk(b"hello") + b"5\r\n", OK + b"Content-Length: 9\r\n\r\nhello"],
    ids=["between chunks", "in a chunk", "sized"],
)
@on_each_loop
async def test_a_body_that_breaks_off_is_an_error_behind_all_that_came(wire: bytes) -> None:
    async with asking(saying_and_closing(wire)) as (transport, server):
        response = await transport.handle_async_request(request(server))
        await asyncio.sleep(0.05)  # however late one reads
        received = []
        with pytest.raises(httpx.RemoteProtocolError, match="before its reply was complete"):
            async for data in response.stream:  # type: ignore[union-attr]
                received.append(data)
        assert received == [b"hello"]


@on_each_loop
async def test_a_connection_that_is_reset_in_a_body_is_a_read_error() -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"hello"))
        await seen.wait()
        peer.reset()

    async with asking(script) as (transport, server):
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
async def test_what_is_no_http_reply_is_a_protocol_error(wire: bytes) -> None:
    async with asking(saying_and_closing(wire)) as (transport, server):
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(request(server))
        assert len(server.requests) == 1


@on_each_loop
async def test_garbage_in_a_body_is_a_protocol_error_behind_all_that_came() -> None:
    async with asking(saying(CHUNKED + chunk(b"hello") + b"xyz\r\n")) as (transport, server):
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
async def test_a_head_without_an_end_is_refused(beginning: bytes, more: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(beginning)
        while True:
            await peer.send(more)

    async with asking(script) as (transport, server):
        with pytest.raises(httpx.RemoteProtocolError, match="too large"):
            await transport.handle_async_request(request(server))


@on_each_loop
async def test_trailers_without_an_end_are_refused() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"hello") + b"0\r\nX: ")
        while True:
            await peer.send(b"x" * 10_000)

    async with asking(script) as (transport, server):
        response = await transport.handle_async_request(request(server))
        with pytest.raises(httpx.RemoteProtocolError, match="too large"):
            await response.aread()


@on_each_loop
async def test_a_server_that_is_faster_than_the_reader_is_held_back() -> None:
    total = 64 * HIGH_WATER

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + b"Content-Length: %d\r\n\r\n" % total)
        for _ in range(64):
            await peer.send(b"x" * HIGH_WATER)

    async with asking(script) as (transport, server):
        response = await transport.handle_async_request(request(server))
        reply = response.extensions["stream"]
        while reply.unread <= HIGH_WATER:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        items = [len(data) async for data in reply]
        assert sum(items) == total
        assert max(items) < 3 * HIGH_WATER  # what may wait, and what one read of the event loop brings on top


@on_each_loop
async def test_a_body_that_is_left_early_closes_the_socket() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"a"))
        await peer.hung_up()
        left.set()

    async with asking(script) as (transport, server):
        response = await transport.handle_async_request(request(server))
        await response.aclose()
        await left.wait()
        with pytest.raises(httpx.StreamClosed):
            await anext(aiter(response.stream))  # type: ignore[arg-type]


@on_each_loop
async def test_a_body_that_is_complete_when_it_is_left_keeps_its_connection() -> None:
    async with asking(saying(CHUNKED + chunk(b"data: [DONE]\n\n") + END)) as (transport, server):
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            async for _ in response.stream:  # type: ignore[union-attr]
                break
            await response.aclose()
        assert len(server.peers) == 1


@on_each_loop
async def test_a_body_that_may_linger_keeps_its_connection_if_it_ends_soon() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            left.clear()
            await peer.send(CHUNKED + chunk(b"data: [DONE]\n\n"))
            await left.wait()
            await peer.send(chunk(b": bye\n\n") + END)

    async with asking(script) as (transport, server):
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert await anext(aiter(response.stream)) == b"data: [DONE]\n\n"  # type: ignore[arg-type]
            response.extensions["linger"](10)
            await response.aclose()
            left.set()
            await asyncio.sleep(0.05)
        assert len(server.peers) == 1


@on_each_loop
async def test_a_body_that_may_linger_but_does_not_end_closes_the_socket() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"data: [DONE]\n\n"))
        await peer.hung_up()
        left.set()

    async with asking(script) as (transport, server):
        response = await transport.handle_async_request(request(server))
        response.extensions["linger"](0.02)
        await response.aclose()
        await left.wait()


@pytest.mark.parametrize("sent", [b"", OK, CHUNKED, CHUNKED + chunk(b"a")], ids=["nothing", "half", "head", "body"])
@on_each_loop
async def test_whoever_is_cancelled_leaves_a_closed_socket(sent: bytes) -> None:
    waiting, left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        waiting.set()
        await peer.hung_up()
        left.set()

    async def ask() -> None:
        response = await transport.handle_async_request(request(server))
        async for _ in response.stream:  # type: ignore[union-attr]
            pass

    async with asking(script) as (transport, server):
        asked = asyncio.create_task(ask())
        await waiting.wait()
        asked.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await asked


@on_each_loop
async def test_two_cannot_read_one_body() -> None:
    async with asking(saying(CHUNKED)) as (transport, server):
        response = await transport.handle_async_request(request(server))
        first = asyncio.create_task(response.aread())
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="Somebody else"):
            await anext(aiter(response.stream))  # type: ignore[arg-type]
        await response.aclose()
        with pytest.raises(httpx.StreamClosed):
            await first


@pytest.mark.parametrize("sent", [b"", OK], ids=["nothing", "half a head"])
@on_each_loop
async def test_a_head_that_does_not_come_is_a_read_timeout(sent: bytes) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.hung_up()
        left.set()

    async with asking(script) as (transport, server):
        with pytest.raises(httpx.ReadTimeout, match=r"0\.05 seconds"):
            await transport.handle_async_request(request(server, read=0.05))
        await left.wait()


@on_each_loop
async def test_a_body_that_stalls_is_a_read_timeout_behind_all_that_came() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"a"), chunk(b"b"))
        await peer.hung_up()
        left.set()

    async with asking(script) as (transport, server):
        response = await transport.handle_async_request(request(server, read=0.3))
        received = b""
        with pytest.raises(httpx.ReadTimeout):
            async for data in response.stream:  # type: ignore[union-attr]
                received += data
        assert received == b"ab"
        await left.wait()


@on_each_loop
async def test_the_read_timeout_is_for_each_read_alone() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(8):
            await asyncio.sleep(0.1)
            await peer.send(chunk(b"a"))
        await peer.send(END)

    async with asking(script) as (transport, server):
        response = await transport.handle_async_request(request(server, read=0.6))
        assert await response.aread() == b"a" * 8


@on_each_loop
async def test_the_read_timeout_can_be_changed_in_mid_stream() -> None:
    async with asking(saying(CHUNKED + chunk(b"a"))) as (transport, server):
        response = await transport.handle_async_request(request(server, read=3600))
        reply = response.extensions["stream"]
        assert await anext(reply) == b"a"
        reply.wait_at_most(0.02)
        with pytest.raises(httpx.ReadTimeout, match=r"0\.02 seconds"):
            await anext(reply)


@on_each_loop
async def test_a_request_that_the_server_does_not_read_is_a_write_timeout() -> None:
    done = asyncio.Event()

    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()

    async with asking(script) as (transport, server):
        big = httpx.Request("POST", server.url, content=bytes(2**25), extensions={"timeout": {"write": 0.1}})
        with pytest.raises(httpx.WriteTimeout):
            await transport.handle_async_request(big)
        done.set()
