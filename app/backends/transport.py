"""
HTTP/1.1 to a backend: an `httpx` transport made for long streams, on httptools.

It is a third of the cost per read of `httpx`'s own transport, and it gives two things that no other does: what came in
before a connection broke can still be read, however late one reads, and a stream that was left behind its last event
still goes back to the pool (`linger`). There is no limit on connections; whoever asks is already limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

import httptools
import httpx

_HIGH_WATER = 256 * 1024  # bytes of a body that wait to be read, before the socket is paused
_IDLE_LIMIT = 256  # connections per origin that are kept for the next request


class Origin(NamedTuple):
    """What connections can be shared for."""

    scheme: str
    host: str
    port: int


class HTTPTransport(httpx.AsyncBaseTransport):
    """
    Sends requests whose body is known, and streams the answers.

    The timeout extensions `connect` is obeyed; how long an answer may take is for the caller to say, who may cancel at
    any await. `keepalive` is for how many seconds a connection that is not in use is trusted.
    """

    def __init__(self, *, keepalive: float = 30) -> None:
        self._keepalive = keepalive
        self._ssl: ssl.SSLContext | None = None
        self._all: set[Connection] = set()
        self._idle: dict[Origin, list[Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """
        Send the request, and return once the headers of the answer are there.

        Raises `httpx.ConnectError`, `ConnectTimeout`, `ReadError` (reset), `RemoteProtocolError` (closed, or not HTTP).
        """
        message = _encode(request)
        origin = Origin(request.url.scheme, request.url.host, request.url.port or _PORTS[request.url.scheme])
        while connection := self._take(origin):
            with contextlib.suppress(_Stale):
                return await connection.ask(message, request)
        connection = await self._connect(origin, request.extensions.get("timeout", {}).get("connect"))
        return await connection.ask(message, request)

    async def aclose(self) -> None:
        """Close every connection, in use or not."""
        for connection in list(self._all):
            connection.abort()
        for _ in range(10):  # the loop closes sockets in its next rounds
            if not self._all:
                break
            await asyncio.sleep(0)

    async def _connect(self, origin: Origin, seconds: float | None) -> Connection:
        if origin.scheme == "https" and self._ssl is None:
            self._ssl = httpx.create_ssl_context()
            self._ssl.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._release, self._all),
                    origin.host,
                    origin.port,
                    ssl=self._ssl if origin.scheme == "https" else None,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("The server did not accept the connection in time.") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        connection.origin = origin
        return connection

    def _take(self, origin: Origin) -> Connection | None:
        """Return the connection that was used last, if there is one to be trusted."""
        idle = self._idle.get(origin, [])
        oldest = asyncio.get_running_loop().time() - self._keepalive
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and connection.alive:
                return connection
            connection.abort()
        return None

    def _release(self, connection: Connection) -> None:
        idle = self._idle.setdefault(connection.origin, [])
        connection.idle_since = asyncio.get_running_loop().time()
        idle.append(connection)
        while idle and (len(idle) > _IDLE_LIMIT or idle[0].idle_since < connection.idle_since - self._keepalive):
            idle.pop(0).abort()


class Connection(asyncio.Protocol):
    """One socket, and the answer that is being read from it, if any."""

    origin: Origin
    idle_since: float

    def __init__(self, release: Callable[[Connection], None], connections: set[Connection]) -> None:
        self.loop = asyncio.get_running_loop()
        self._release = release
        self._connections = connections
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._fresh = True  # has nothing been asked before?
        self._reusable = False  # may something be asked after this answer?

    async def ask(self, message: bytes, request: httpx.Request) -> httpx.Response:
        """Send a message, and return the answer with its body to be read; raises `_Stale` if nobody listened."""
        answer = self._answer = Answer(self)
        stale, self._fresh = not self._fresh, False
        self._transport.write(message)
        try:
            while not answer.status:
                if answer.end:
                    raise _Stale if stale and answer.untouched else answer.end
                await answer.changed()
        except BaseException:
            self.abort()
            raise
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=answer,
            extensions={"linger": answer.linger},
            request=request,
        )

    @property
    def alive(self) -> bool:
        return not self._transport.is_closing()

    def abort(self) -> None:
        """Close the socket now, whatever was still to be sent or read."""
        self._transport.abort()

    def pause(self, paused: bool) -> None:
        """Stop or resume reading from the socket."""
        if not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        if sock := transport.get_extra_info("socket"):
            with contextlib.suppress(OSError):
                # A model that thinks is silent for minutes, and gateways forget silent connections.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort()  # nobody asked
            return
        answer.untouched = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not answer.end:
                answer.finish(httpx.RemoteProtocolError(f"The answer is not HTTP: {error}"))
            self.abort()
        answer.wake()
        if answer.end and answer is self._answer:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        answer, self._answer = self._answer, None
        if answer and not answer.end:
            answer.finish(answer.broken(exc))
            answer.wake()

    # What the parser tells.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer and not self._answer.status:
            self._answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer and not self._answer.status:
            if status < 200:  # 100 Continue, 103 Early Hints: the answer is yet to come
                self._answer.headers.clear()
            else:
                self._answer.status = status

    def on_body(self, body: bytes) -> None:
        if self._answer and not self._answer.end:
            self._answer.feed(body)

    def on_message_complete(self) -> None:
        if self._answer and self._answer.status:
            self._reusable = self._parser.should_keep_alive()
            self._answer.finish(StopAsyncIteration())

    def _next(self) -> None:
        """Be ready for the next question, or close."""
        self._answer = None
        if self._reusable and self.alive:
            self._release(self)
        else:
            self.abort()


class Answer(httpx.AsyncByteStream):
    """The body of one answer: an item is all that has come in since the last."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.end: Exception | None = None  # what to raise behind the last piece
        self.untouched = True  # has not a single byte come?
        self._connection = connection
        self._pieces: list[bytes] = []
        self._waiting = 0  # bytes in the pieces
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            if self.end:
                raise self.end
            await self.changed()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        self._pause(False)
        return data

    async def changed(self) -> None:
        """Wait until something has come in."""
        self._waiter = self._connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def aclose(self) -> None:
        """Close the connection now, unless the body has been received whole: then it is in the pool already."""
        if not self.end:
            self.finish(httpx.StreamClosed())
            self._connection.abort()

    def linger(self, seconds: float) -> None:
        """Read no more; but give the body so many seconds to end, so that its connection can be used again."""
        if not self.end:
            self._pieces.clear()
            self._pause(False)
            self._lingering = self._connection.loop.call_later(seconds, self._connection.abort)

    def feed(self, piece: bytes) -> None:
        """Take in a piece of the body."""
        if self._lingering:
            return
        self._pieces.append(piece)
        self._waiting += len(piece)
        self._pause(self._waiting > _HIGH_WATER)

    def finish(self, end: Exception) -> None:
        """Note that no piece will follow, and why."""
        self.end = end
        self._pause(False)
        if self._lingering:
            self._lingering.cancel()

    def _pause(self, paused: bool) -> None:
        if paused is not self._paused:
            self._paused = paused
            self._connection.pause(paused)

    def wake(self) -> None:
        """Tell whoever waits that something has come in."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def broken(self, error: Exception | None) -> Exception:
        """Return how the body ends if its connection does so now."""
        if error:
            return httpx.ReadError(str(error))
        if not self.status:
            return httpx.RemoteProtocolError("The server closed the connection without an answer.")
        if {name.lower() for name, _ in self.headers}.isdisjoint({b"content-length", b"transfer-encoding"}):
            return StopAsyncIteration()  # the body is all that comes until the connection is closed
        return httpx.RemoteProtocolError("The server closed the connection before the answer was complete.")


class _Stale(Exception):
    """The server closed a connection from the pool just when it was to be used again: that is no answer."""


_PORTS = {"http": 80, "https": 443}


def _encode(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % header for header in request.headers.raw]
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or b"\0" in head:
        raise httpx.LocalProtocolError("A header contains a line break.")
    return head + b"\r\n\r\n" + request.content
