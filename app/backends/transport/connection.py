"""
One HTTP/1.1 connection to a backend, and the reply that is read from it.

Bytes go from the socket through httptools into a list, and a reader takes all of them at once: what arrived together
leaves together. Which connection serves which request is not its concern, but the pool's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterable, Mapping
from typing import NamedTuple, Protocol, cast

import httptools
import httpx

# Bytes that may wait to be read before the socket is paused. It bounds as well what a server can send without sending
# any body: a head, interim answers, trailers.
HIGH_WATER = 256 * 1024


class Origin(NamedTuple):
    """What a connection leads to; requests to the same origin share connections."""

    scheme: str
    host: str
    port: int


class ConnectionPool(Protocol):
    """Who hears of what becomes of a connection."""

    def released(self, connection: HTTPConnection, *, reusable: bool) -> None: ...

    def closed(self, connection: HTTPConnection) -> None: ...


class Stale(Exception):
    """A connection that had been idle closed without a byte of a reply: the request can be sent on another one."""


class HTTPConnection(asyncio.Protocol):
    """One socket, which serves one request at a time."""

    idle_since: float  # in the loop's time, once it was released

    def __init__(self, origin: Origin, pool: ConnectionPool) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()
        self.gone = self.loop.create_future()  # done when the socket is closed
        self._pool = pool
        self._reply: Reply | None = None  # the one that is being received
        self._used = False  # has it served a request before?
        self._sent = False  # has the whole request been sent?
        self._blocked = False  # does the server read more slowly than we write?

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def ask(
        self, method: str, message: bytes, more: AsyncIterable[bytes] | None, timeouts: Mapping[str, float | None]
    ) -> Reply:
        """
        Send a request, then what there is more of its body, and return the reply once its head is complete.

        The timeouts are those of `httpx`: `write` for each write, `read` for each read. Raises `Stale`, or the error
        that `httpx` has for what went wrong. Whoever is cancelled here leaves a closed socket behind.
        """
        reply = self._reply = Reply(self, bodiless=method == "HEAD")
        self._sent = False
        if self.gone.done():
            self._cut_off(None)
        try:
            reply.wait_at_most(timeouts.get("write"), httpx.WriteTimeout)
            self._sent = await self._write(message, reply) and await self._write_all(more, reply)
            reply.wait_at_most(timeouts.get("read"))
            while not reply.status:
                if reply.end:
                    raise reply.end
                await reply.changed()
        except BaseException:
            reply.close()
            raise
        return reply

    def abort(self, reason: Exception | None = None) -> None:
        """Close the socket now, whatever was still to be sent or received; a reply under way ends for that reason."""
        self._end(reason or httpx.StreamClosed(), reusable=False)

    def pause(self, paused: bool) -> None:
        """Stop or resume reading from the socket."""
        if self.usable:
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    async def _write(self, data: bytes, reply: Reply) -> bool:
        """Send data, and return whether there is any use in sending more."""
        if self.usable:
            self._transport.write(data)
        # A socket that is about to close takes everything, and will soon be an end.
        while (self._blocked or not self.usable) and not reply.end and not reply.refuses:
            await reply.changed()
        return not reply.end and not reply.refuses

    async def _write_all(self, pieces: AsyncIterable[bytes] | None, reply: Reply) -> bool:
        if pieces is not None:
            async for piece in pieces:
                if not await self._write(piece, reply):
                    return False
        return True

    def _cut_off(self, error: Exception | None) -> None:
        if reply := self._reply:
            self._end(Stale() if self._used and reply.untouched else reply.cut_off(error), reusable=False)

    def _end(self, end: Exception | type[Exception], *, reusable: bool) -> None:
        """Let go of the reply, if there is one: what has been received of it can still be read."""
        reply, self._reply = self._reply, None
        if not reusable:
            self._transport.abort()
        if reply:
            self._used = True
            reply.finish(end)
            self._pool.released(self, reusable=reusable)

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by name; both set TCP_NODELAY
        # A model that thinks is silent for minutes, and gateways forget silent connections.
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()  # nobody asked
            return
        reusable = self._sent
        try:
            reply.parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reusable = False
            reply.end = reply.end or httpx.RemoteProtocolError(f"The reply is not HTTP/1.1: {error}")
        reply.unread += len(data)
        if reply.end:
            self._end(reply.end, reusable=reusable and reply.keep_alive)
        elif reply.unread > HIGH_WATER:
            if reply.pieces:
                reply.pause()
            else:
                self.abort(httpx.RemoteProtocolError("The reply's head is too large."))
        else:
            reply.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cut_off(exc)
        self._pool.closed(self)
        self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._reply:
            self._reply.wake()


class Reply(httpx.AsyncByteStream):
    """
    The reply to one request: its head, and its body as an iterator.

    An item is all that has come in since the last one. Behind the last follows what the reply ended with: an error, if
    it broke off or nothing came for too long. It may be read long after its connection has gone or serves others.
    """

    def __init__(self, connection: HTTPConnection, *, bodiless: bool) -> None:
        self.status = 0  # until the head is complete
        self.reason = b""
        self.version = ""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False  # may the connection be used again, once the body is complete?
        self.end: Exception | type[Exception] | None = None  # what to raise behind the last piece
        self.pieces: list[bytes] = []
        self.unread = 0  # bytes received since the last item was taken
        self._connection = connection
        self._loop = connection.loop
        self._bodiless = bodiless
        self._paused = False
        self._lingers = False
        self._waiter: asyncio.Future[None] | None = None
        self._patience: float | None = None
        self._too_late: type[httpx.TimeoutException] = httpx.ReadTimeout
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.on_body = self.pieces.append  # for the parser, which so calls no Python for a piece of body
        self._parser = httptools.HttpResponseParser(self)
        self.parse = self._parser.feed_data

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> bytes:
        pieces = self.pieces
        while not pieces:
            if self.end:
                raise self.end
            try:
                await self.changed()
            except asyncio.CancelledError:
                self.close()
                raise
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.unread = 0
        if self._paused:
            self._resume()
        return data

    async def aclose(self) -> None:
        """Read no more: close the connection at once, unless the body is complete or `linger` was called."""
        if not self._lingers:
            self.close()

    def close(self) -> None:
        """Do what `aclose` does, without lingering."""
        self.pieces.clear()
        if not self.end:
            self._connection.abort()

    def linger(self, seconds: float) -> None:
        """
        Read no more, but let the body end within some seconds, so that the connection can be used again.

        For streams that say in their own words where they end, when the last of HTTP's words is still to come.
        """
        self._lingers = True
        self.pieces.clear()
        self.wait_at_most(None)
        if not self.end:
            self._timer = self._loop.call_later(seconds, self.close)

    def wait_at_most(self, seconds: float | None, error: type[httpx.TimeoutException] = httpx.ReadTimeout) -> None:
        """From now on, each wait for the server may last that long."""
        self._patience, self._too_late = seconds, error
        self._cancel_timer()

    def changed(self) -> asyncio.Future[None]:
        """Return what is done when there is something new to see; whoever is cancelled meanwhile has to `close`."""
        if self._waiter and not self._waiter.done():
            raise RuntimeError("Somebody else is waiting for this reply.")
        if self._patience is not None:
            # One timer serves many waits: it is moved on only when it fires.
            self._deadline = self._loop.time() + self._patience
            if self._timer is None:
                self._timer = self._loop.call_later(self._patience, self._expire)
        self._waiter = self._loop.create_future()
        return self._waiter

    def wake(self) -> None:
        """Tell whoever waits that there is something new to see."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def pause(self) -> None:
        """Stop receiving until all that has come in was taken."""
        if not self._paused:
            self._paused = True
            self._connection.pause(True)
        self.wake()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._connection.pause(False)

    def finish(self, end: Exception | type[Exception]) -> None:
        """Note that nothing more will be received."""
        self.end = end
        self._resume()
        self._cancel_timer()
        self.wake()
        del self._parser, self.parse  # which hold their reply, and would keep it for the garbage collector

    @property
    def refuses(self) -> bool:
        """Has the server said that it need not read the rest of the request?"""
        return self.status >= 400

    @property
    def untouched(self) -> bool:
        """Has not a single byte come in?"""
        return not self.status and not self.unread

    def cut_off(self, error: Exception | None) -> Exception | type[Exception]:
        """Return what the reply ends with if its connection closes now."""
        if error:
            return httpx.ReadError(str(error))
        if not self.status:
            return httpx.RemoteProtocolError("The server closed the connection before its reply began.")
        framing = {name.lower(): value.lower() for name, value in self.headers}
        if b"content-length" in framing or b"chunked" in framing.get(b"transfer-encoding", b""):
            return httpx.RemoteProtocolError("The server closed the connection before its reply was complete.")
        return StopAsyncIteration  # such a body is all that comes until the connection closes

    def _expire(self) -> None:
        self._timer = None
        if not self._waiter or self._waiter.done():
            return
        left = self._deadline - self._loop.time()
        if left > 0.001:  # what clocks and timers may differ by
            self._timer = self._loop.call_later(left, self._expire)
        else:
            self._connection.abort(self._too_late(f"Nothing happened for {self._patience:g} seconds."))

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # What the parser tells. An error raised here stops it; one behind the end only says that something followed it.

    def on_message_begin(self) -> None:
        if self.end:
            raise ValueError("There is more than one reply.")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # else it is a trailer
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, 103 Early Hints: the reply is still to come
            self.headers.clear()
            self.reason = b""
            return
        self.status = status
        self.version = self._parser.get_http_version()
        if self._bodiless:
            # The parser does not know: it would wait for the body that the headers tell of.
            self.end = StopAsyncIteration
            raise ValueError("There is no body.")

    def on_message_complete(self) -> None:
        if self.status:
            self.keep_alive = self._parser.should_keep_alive()
            self.end = StopAsyncIteration
