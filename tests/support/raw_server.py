r"""
A byte-level server: each connection follows a script, and detects when the client disconnects.

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with serve(script) as server:
        ...  # ask `server.url`
        assert len(server.peers) == 1
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
import ssl
import struct
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

PATIENCE = 120  # seconds after which a test hangs for certain
CERTIFICATE = Path(__file__).parent / "localhost.pem"

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def sized(body: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def on_each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's own event loop and on uvloop; it must leave no task behind."""

    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **values: Any) -> None:
        async def all_of_it() -> None:
            async with asyncio.timeout(PATIENCE):
                await test(**values)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(all_of_it())

    signature = inspect.signature(test)
    new_loop = inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), new_loop])  # type: ignore[attr-defined]
    loops = pytest.mark.parametrize(
        "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    return loops(run)  # type: ignore[no-any-return]


def request(
    server: Server, method: str = "GET", content: bytes | AsyncIterable[bytes] | None = None, **timeouts: float
) -> httpx.Request:
    return httpx.Request(method, server.url, content=content, extensions={"timeout": timeouts})


async def read(transport: httpx.AsyncBaseTransport, http_request: httpx.Request) -> bytes:
    response = await transport.handle_async_request(http_request)
    return await response.aread()


class Peer:
    """One connection, as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests: list[bytes] = []  # with their bodies

    async def request(self) -> bytes:
        """Return the next request as it came; end the script if there is none."""
        request = await self.reader.readuntil(b"\r\n\r\n")
        head = request.lower()
        if b"\r\ncontent-length: " in head:
            request += await self.reader.readexactly(int(head.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0]))
        elif b"\r\ntransfer-encoding: chunked" in head:
            while not request.endswith(b"\r\n0\r\n\r\n"):
                request += await self.reader.readuntil(b"\r\n")
        self.requests.append(request)
        return request

    async def send(self, *pieces: bytes) -> None:
        """Send pieces, each in a separate packet."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.002)
            for _ in range(10):  # uvloop handles the timeout before arrived data
                await asyncio.sleep(0)

    async def hung_up(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class Server:
    host: str
    port: int
    scheme: str
    peers: list[Peer] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}/"

    @property
    def requests(self) -> list[bytes]:
        return [request for peer in self.peers for request in peer.requests]


Script = Callable[[Peer], Awaitable[None]]


def saying(*pieces: bytes) -> Script:
    """Answer every request with these pieces."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(*pieces)

    return script


def saying_and_closing(*pieces: bytes) -> Script:
    """Answer one request with these pieces, and close."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(*pieces)
        peer.close()

    return script


@contextlib.asynccontextmanager
async def serve(script: Script, *, host: str = "127.0.0.1", encrypted: bool = False) -> AsyncIterator[Server]:
    """Serve on a free port. A connection stays open after its script until the client disconnects."""
    tasks: set[asyncio.Task[None]] = set()
    server: Server

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        peer = Peer(reader, writer)
        server.peers.append(peer)
        try:
            await script(peer)
            await peer.hung_up()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    context = None
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        context.set_alpn_protocols(["h2", "http/1.1"])
    listener = await asyncio.start_server(connected, host, 0, ssl=context, limit=2**20, backlog=1000)
    server = Server(host, listener.sockets[0].getsockname()[1], "https" if encrypted else "http")
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # for the sockets to close
