"""How a connection ends, or does not: readers who leave, are cancelled or wait in vain."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.backends.transport import HTTPToolsTransport
from tests.support.raw_server import (
    CHUNKED,
    END,
    OK,
    Peer,
    chunk,
    on_each_loop,
    request,
    saying,
    serve,
)


@on_each_loop
async def test_body_that_is_closed_early_closes_the_socket() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"a"))
        await peer.hung_up()
        left.set()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        await response.aclose()
        await left.wait()
        with pytest.raises(httpx.StreamClosed):
            await anext(aiter(response.stream))  # type: ignore[arg-type]


@on_each_loop
async def test_body_that_is_complete_when_closed_keeps_its_connection() -> None:
    async with (
        serve(saying(CHUNKED + chunk(b"data: [DONE]\n\n") + END)) as server,
        HTTPToolsTransport(trust_env=False) as transport,
    ):
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            async for _ in response.stream:  # type: ignore[union-attr]
                break
            await response.aclose()
        assert len(server.peers) == 1


@on_each_loop
async def test_body_that_may_linger_and_ends_soon_keeps_its_connection() -> None:
    left, ended = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            left.clear()
            ended.clear()
            await peer.send(CHUNKED + chunk(b"data: [DONE]\n\n"))
            await left.wait()
            await peer.send(chunk(b": bye\n\n") + END)
            ended.set()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert await anext(aiter(response.stream)) == b"data: [DONE]\n\n"  # type: ignore[arg-type]
            response.extensions["stream"].linger(10)
            await response.aclose()
            left.set()
            await ended.wait()
        assert len(server.peers) == 1


@on_each_loop
async def test_body_that_may_linger_and_does_not_end_closes_the_socket() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"data: [DONE]\n\n"))
        await peer.hung_up()
        left.set()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        response.extensions["stream"].linger(0.02)
        await response.aclose()
        await left.wait()


@pytest.mark.parametrize("sent", [b"", OK, CHUNKED, CHUNKED + chunk(b"a")], ids=["nothing", "half", "head", "body"])
@on_each_loop
async def test_cancelled_reader_closes_the_socket(sent: bytes) -> None:
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

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        task = asyncio.create_task(ask())
        await waiting.wait()
        task.cancel()
        await left.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


@on_each_loop
async def test_body_with_two_readers_is_refused() -> None:
    async with serve(saying(CHUNKED)) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        first = asyncio.create_task(response.aread())
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="Another reader"):
            await anext(aiter(response.stream))  # type: ignore[arg-type]
        await response.aclose()
        with pytest.raises(httpx.StreamClosed):
            await first


@pytest.mark.parametrize("sent", [b"", OK], ids=["nothing", "half a head"])
@on_each_loop
async def test_head_that_does_not_come_is_a_read_timeout(sent: bytes) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sent)
        await peer.hung_up()
        left.set()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        with pytest.raises(httpx.ReadTimeout, match=r"0\.05 seconds"):
            await transport.handle_async_request(request(server, read=0.05))
        await left.wait()


@on_each_loop
async def test_body_that_stalls_is_a_read_timeout_after_all_that_came() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED, chunk(b"a"), chunk(b"b"))
        await peer.hung_up()
        left.set()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server, read=1))
        received = b""
        with pytest.raises(httpx.ReadTimeout):
            async for data in response.stream:  # type: ignore[union-attr]
                received += data
        assert received == b"ab"
        await left.wait()


@on_each_loop
async def test_read_timeout_is_for_each_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        for _ in range(8):
            await asyncio.sleep(0.2)
            await peer.send(chunk(b"a"))
        await peer.send(END)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server, read=1.5))
        assert await response.aread() == b"a" * 8


@on_each_loop
async def test_reply_that_delivers_reads_times_out_after_silence_only() -> None:
    left, taken = asyncio.Event(), list[bytes]()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"0"))
        for _ in range(8):
            await asyncio.sleep(0.2)
            await peer.send(chunk(b"a"))
        await peer.hung_up()
        left.set()

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server, read=1.5))
        reply = response.extensions["stream"]
        assert await anext(reply) == b"0"
        with pytest.raises(httpx.ReadTimeout):
            await reply.deliver(take)
        assert b"".join(taken) == b"a" * 8
        await left.wait()


@on_each_loop
async def test_reply_that_delivers_reads_returns_when_one_is_not_to_be_followed_and_keeps_the_rest() -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"a"))
        await go.wait()
        await peer.send(chunk(b"b"))
        await done.wait()

    taken = list[bytes]()

    def take(data: bytes) -> bool:
        taken.append(data)
        return False

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        reply = response.extensions["stream"]
        await reply.deliver(take)
        waiting = asyncio.ensure_future(reply.deliver(take))
        await asyncio.sleep(0)
        go.set()
        await waiting
        assert taken == [b"a", b"b"]
        await response.aclose()
        done.set()


@on_each_loop
async def test_reply_that_delivers_reads_raises_the_error_of_the_function() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + chunk(b"0"))
        await asyncio.sleep(0.05)
        await peer.send(chunk(b"a"))
        await peer.hung_up()
        left.set()

    def take(data: bytes) -> bool:
        raise ZeroDivisionError

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server))
        reply = response.extensions["stream"]
        assert await anext(reply) == b"0"
        with pytest.raises(ZeroDivisionError):
            await reply.deliver(take)
        await response.aclose()
        await left.wait()


@on_each_loop
async def test_read_timeout_can_be_changed_in_mid_stream() -> None:
    async with serve(saying(CHUNKED + chunk(b"a"))) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server, read=3600))
        reply = response.extensions["stream"]
        assert await anext(reply) == b"a"
        reply.wait_at_most(0.02)
        with pytest.raises(httpx.ReadTimeout, match=r"0\.02 seconds"):
            await anext(reply)


@pytest.mark.parametrize(("first", "second"), [(3600, 0.02), (0.02, 0.1)])
@on_each_loop
async def test_read_timeout_is_for_each_request_on_a_connection(first: float, second: float) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + END)
        await peer.request()
        await peer.hung_up()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server, read=3600))
        response.extensions["stream"].wait_at_most(first)
        assert not [data async for data in response.stream]  # type: ignore[union-attr]
        with pytest.raises(httpx.ReadTimeout, match=f"{second:g} seconds"):
            await transport.handle_async_request(request(server, read=second))
        assert len(server.peers) == 1


@on_each_loop
async def test_request_that_the_server_does_not_read_is_a_write_timeout() -> None:
    done = asyncio.Event()

    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await done.wait()

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        big = httpx.Request("POST", server.url, content=bytes(2**25), extensions={"timeout": {"write": 0.1}})
        with pytest.raises(httpx.WriteTimeout):
            await transport.handle_async_request(big)
        done.set()
