"""Answers to disconnected or slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from app.api.uvicorn.http import HTTPProtocol
from tests.faults.callers import ASK, COMPLETED, HELLO, WAYS, calling, outcomes
from tests.faults.faulty_stores import kept
from tests.faults.servers import LINUX, server
from tests.responses.test_background import parsed, until, until_ended
from tests.support import laws
from tests.support.sockets import dial, hear, hear_out, listening, send
from tests.support.upstream import DONE, HANG, Step, Upstream, chunk, finish, piece, sse
from tests.support.upstream import upstream as upstream

# More than the sockets between a backend and a client hold.
PIECES = 300
FLOOD = [*sse()[:1], *[piece(b"data: %s\n\n" % json.dumps(chunk("x" * 65_000)).encode())] * PIECES]
# The same data, event by event.
PACED = [*sse()[:1], *[piece(b"data: %s\n\n" % json.dumps(chunk("x" * 8_000)).encode()), 0.0005] * 8 * PIECES]


class Hasty(HTTPProtocol):
    """A connection with a read timeout of a second."""

    unread = 1


@contextlib.asynccontextmanager
async def serving(upstream: Upstream, directory: Path, **config: Any) -> AsyncIterator[str]:
    """A server whose store is empty at the end, and which answers another request."""
    store_url = f"sqlite:///{directory}/antiphon.db"
    options = {"http": Hasty, **config}
    async with listening(None, config=options, backend_url=upstream.url, store_url=store_url, shutdown_grace=0) as url:
        yield url
        assert kept(directory) == []
        upstream.always(HELLO)
        async with calling(url) as caller:
            assert outcomes(await caller.ask_all()) == dict.fromkeys(WAYS, COMPLETED)


@contextlib.contextmanager
def connected(url: str, receives: int = 0) -> Iterator[Line]:
    """Connect a client with a kernel buffer for this many bytes."""
    line = Line(url, receives)
    try:
        yield line
    finally:
        line.close()


class Line:
    """A client's connection, byte by byte."""

    def __init__(self, url: str, receives: int = 0) -> None:
        self.url = url
        self.socket = socket.socket()
        if receives:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        self.socket.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        self.socket.setblocking(False)
        self._talking: ClientConnection | None = None

    async def ask(self, **fields: Any) -> None:
        body = json.dumps({**ASK, **fields}).encode()
        head = (
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        )
        message = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        await asyncio.get_running_loop().sock_sendall(self.socket, message)

    async def read(self, size: int = 65536) -> bytes:
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().sock_recv(self.socket, size)

    async def read_until(self, words: bytes) -> bytes:
        data = b""
        while words not in data:
            read = await self.read()
            assert read, "the connection ended"
            data += read
        return data

    async def talk(self) -> ClientConnection:
        """Go on as a WebSocket, which asks."""
        self._talking = await dial(self.url, sock=self.socket, ping_interval=None)
        await send(self._talking)
        return self._talking

    def close(self) -> None:
        if self._talking:
            self._talking.transport.abort()
        else:
            self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("how", ["close", "reset", "half_close"])
@pytest.mark.parametrize("way", ["json", "sse", "websocket"])
async def test_client_that_disconnects_closes_the_backends_stream(
    way: str, how: str, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.say(sse(chunk("Hel"), HANG))
    async with serving(upstream, tmp_path) as url:
        with connected(url) as line:
            if way == "websocket":
                client = await line.talk()
                while "delta" not in await hear(client):
                    pass
            else:
                await line.ask(stream=way == "sse")
                await until(lambda: upstream.requests and upstream.requests[0].sent == 3)
                if way == "sse":
                    await line.read_until(b"Hel")
            getattr(line, how)()
            async with asyncio.timeout(60):
                await upstream.requests[0].gone.wait()


async def test_client_that_disconnects_from_a_background_response_does_not_end_it(
    upstream: Upstream, tmp_path: Path
) -> None:
    go = asyncio.Event()
    upstream.say(sse(chunk("Hel"), go, chunk("lo"), finish(), DONE))
    store_url = f"sqlite:///{tmp_path}/antiphon.db"
    async with listening(None, backend_url=upstream.url, store_url=store_url) as url, calling(url) as caller:
        with connected(url) as line:
            await line.ask(background=True, stream=True)
            await line.read_until(b"Hel")
        await asyncio.sleep(0.2)
        go.set()
        await until(lambda: [each["status"] for each in kept(tmp_path)] == ["completed"])
        assert (await until_ended(caller.http, kept(tmp_path)[0]["id"]))["output"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    ("way", "flood", "size"), [("sse", FLOOD, 65_000), ("sse", PACED, 8_000), ("websocket", FLOOD, 65_000)]
)
async def test_client_that_reads_slowly_pauses_the_backend(
    way: str, flood: list[Step], size: int, upstream: Upstream
) -> None:
    upstream.say(flood + sse(finish(), DONE)[1:])
    with server(backend_url=upstream.url) as served, connected(served.url, receives=65536) as line:
        if way == "websocket":
            client = await line.talk()
        else:
            await line.ask(stream=True)
        assert 0 < await stalled(upstream) < len(flood), "the backend is held back"

        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        if way == "websocket":
            events = await hear_out(client)
        else:
            answer = bytearray()
            while data := await line.read(1 << 20):
                answer += data
            events = parsed(dechunked(bytes(answer.partition(b"\r\n\r\n")[2])).decode())
        laws.check(events)
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "x" * size * flood.count(flood[1])


@LINUX
@pytest.mark.parametrize("way", ["sse", "websocket"])
async def test_client_that_reads_nothing_is_disconnected(way: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.say(FLOOD, HANG)
    async with serving(upstream, tmp_path, ws_ping_interval=1, ws_ping_timeout=2) as url:
        with connected(url, receives=65536) as line:
            await (line.talk() if way == "websocket" else line.ask(stream=True))
            async with asyncio.timeout(60):
                await until(lambda: upstream.requests)
                await upstream.requests[0].gone.wait()
            assert upstream.requests[0].sent < PIECES


async def stalled(upstream: Upstream) -> int:
    """Return how many steps of an answer were sent when no more are."""
    sent = -1
    while not upstream.requests or upstream.requests[0].sent != sent:
        sent = upstream.requests[0].sent if upstream.requests else -1
        await asyncio.sleep(0.3)
    return sent


def dechunked(body: bytes) -> bytes:
    """Take the framing off a chunked body."""
    pieces, at = [], 0
    while size := int(body[at : (end := body.index(b"\r\n", at))], 16):
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(pieces)
