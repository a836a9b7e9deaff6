"""The pool: which connection serves which request, and for how long it is kept."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.backends.transport import HTTPToolsTransport
from tests.support.raw_server import (
    CHUNKED,
    END,
    Peer,
    chunk,
    on_each_loop,
    read,
    request,
    saying,
    serve,
    sized,
)

HELLO = saying(sized(b"hello"))


class Doors:
    """Answers a request when its door is opened."""

    def __init__(self) -> None:
        self.requests = asyncio.Semaphore(0)
        self.open = asyncio.Semaphore(0)

    async def __call__(self, peer: Peer) -> None:
        while True:
            await peer.request()
            self.requests.release()
            await self.open.acquire()
            await peer.send(sized(b"hello"))


@on_each_loop
async def test_requests_in_turn_share_a_connection_and_concurrent_ones_do_not() -> None:
    doors = Doors()
    async with serve(doors) as server, HTTPToolsTransport(trust_env=False) as transport:
        for at_once in (1, 1, 3, 2):
            tasks = [asyncio.create_task(read(transport, request(server))) for _ in range(at_once)]
            for _ in tasks:
                await doors.requests.acquire()
            for _ in tasks:
                doors.open.release()
            assert await asyncio.gather(*tasks) == [b"hello"] * at_once
        assert len(server.peers) == 3


@on_each_loop
async def test_origins_do_not_share_connections() -> None:
    async with serve(HELLO) as one, serve(HELLO) as other, HTTPToolsTransport(trust_env=False) as transport:
        for server in (one, other, one, other):
            assert await read(transport, request(server)) == b"hello"
        assert (len(one.peers), len(other.peers)) == (1, 1)


@on_each_loop
async def test_connection_closed_while_idle_is_replaced() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        peer.close()

    async with serve(once) as server, HTTPToolsTransport(trust_env=False) as transport:
        assert await read(transport, request(server)) == b"hello"
        await asyncio.sleep(0.05)
        assert await read(transport, request(server)) == b"hello"
        assert [len(peer.requests) for peer in server.peers] == [1, 1]


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@on_each_loop
async def test_request_on_a_closing_connection_is_sent_again_on_a_new_one(reset: bool) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.request()
        peer.reset() if reset else peer.close()

    async with serve(once) as server, HTTPToolsTransport(trust_env=False) as transport:
        assert await read(transport, request(server, "POST", b"one")) == b"hello"
        assert await read(transport, request(server, "POST", b"two")) == b"hello"
        assert [received[-3:] for received in server.requests] == [b"one", b"two", b"two"]


@on_each_loop
async def test_request_with_a_byte_of_its_reply_is_not_sent_again() -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.request()
        await peer.send(b"H")
        peer.close()

    async with serve(half) as server, HTTPToolsTransport(trust_env=False) as transport:
        assert await read(transport, request(server)) == b"hello"
        with pytest.raises(httpx.RemoteProtocolError, match="before its reply began"):
            await read(transport, request(server))
        assert len(server.requests) == 2


@on_each_loop
async def test_request_on_a_new_connection_that_closes_is_not_sent_again() -> None:
    async def never(peer: Peer) -> None:
        await peer.request()
        peer.close()

    async with serve(never) as server, HTTPToolsTransport(trust_env=False) as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await read(transport, request(server))
        assert len(server.requests) == 1


@on_each_loop
async def test_idle_connections_expire() -> None:
    expired = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.hung_up()
        expired.set()

    async with (
        serve(script) as server,
        HTTPToolsTransport(trust_env=False, idle_seconds=0.05) as transport,
    ):
        assert await read(transport, request(server)) == b"hello"
        await expired.wait()


@on_each_loop
async def test_idle_connections_beyond_the_limit_are_closed() -> None:
    doors, closed = Doors(), asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        try:
            await doors(peer)
        finally:
            closed.release()

    async with (
        serve(script) as server,
        HTTPToolsTransport(trust_env=False, max_idle=1) as transport,
    ):
        tasks = [asyncio.create_task(read(transport, request(server))) for _ in range(3)]
        for _ in tasks:
            await doors.requests.acquire()
            doors.open.release()
        await asyncio.gather(*tasks)
        await closed.acquire()
        await closed.acquire()
        assert closed.locked()


@on_each_loop
async def test_five_hundred_concurrent_streams_are_read() -> None:
    everybody = asyncio.Barrier(500)

    async def script(peer: Peer) -> None:
        received = await peer.request()
        await peer.send(CHUNKED)
        await everybody.wait()
        for n in range(5):
            await peer.send(chunk(received[-3:] + b"%d " % n))
        await peer.send(END)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        reads = [read(transport, request(server, "POST", b"%03d" % n)) for n in range(500)]
        assert await asyncio.gather(*reads) == [b"%03d0 %03d1 %03d2 %03d3 %03d4 " % ((n,) * 5) for n in range(500)]


@on_each_loop
async def test_closing_the_transport_closes_every_connection() -> None:
    left = asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        received = await peer.request()
        await peer.send(sized(b"hello") if b"idle" in received else CHUNKED + chunk(b"hel"))
        await peer.hung_up()
        left.release()

    async with serve(script) as server:
        transport = HTTPToolsTransport(trust_env=False)
        in_use = await transport.handle_async_request(request(server))
        assert await read(transport, request(server, "POST", b"idle")) == b"hello"
        reading = asyncio.create_task(in_use.aread())
        await asyncio.sleep(0.01)
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await reading
        await left.acquire()
        await left.acquire()
        with pytest.raises(httpx.ConnectError, match="has been closed"):
            await read(transport, request(server))
