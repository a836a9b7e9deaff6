"""
An HTTP/1.1 connection to a backend, and its reply.

Bytes go from the socket through httptools into a list; the reader drains the whole list.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import httptools
import httpx

if TYPE_CHECKING:
    from app.backends.transport import HTTPToolsTransport


# Unread bytes at which the socket is paused; also limits heads, interim responses and trailers.
HIGH_WATER = 256 * 1024
_SLICE = 1024 * 1024  # bytes per body write: a transport may copy unsent data


class Origin(NamedTuple):
    """Requests to the same origin share connections."""

    scheme: str
    host: str
    port: int


class Stale(Exception):
    """A reused connection closed before any reply byte, so the request can be sent again."""


class HTTPConnection(asyncio.Protocol):
    """A socket, for one request at a time."""

    idle_since: float  # loop time of its release

    def __init__(self, origin: Origin, pool: HTTPToolsTransport) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()
        self.gone = self.loop.create_future()  # done when the socket is closed
        self._pool = pool
        self._reply: Reply | None = None
        self._used = False  # it has served a request
        self._sent = False  # whole request
        self._blocked = False  # write buffer full
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # loop time
        self._pieces: list[bytes] = []  # of the current reply
        self._headers: list[tuple[bytes, bytes]] = []  # of the current head, or trailers
        self.on_body = self._pieces.append  # called by the parser: no Python code runs per body fragment
        self._parser = httptools.HttpResponseParser(self)

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def send(
        self,
        head: bytes,
        content: bytes | AsyncIterable[bytes],
        timeouts: Mapping[str, float | None],
        *,
        bodiless: bool = False,
    ) -> Reply:
        """
        Send a request; return after the reply's headers.

        Timeouts are `httpx`'s, in seconds: `write` per write, `read` per read. Raises `Stale` or the matching `httpx`
        error. A cancellation closes the socket. `bodiless`: the reply to HEAD has no body.
        """
        reply = self._reply = Reply(self, self._pieces, bodiless)
        self._sent = False
        if self.gone.done():
            self._cut_off(None)
        more: AsyncIterable[bytes] | None = None
        if not isinstance(content, bytes):
            more = content
        elif len(content) <= _SLICE:
            head += content
        else:
            more = _slices(content)
        try:
            written = self._write(head)
            if not written or more is not None:
                reply.wait_at_most(timeouts.get("write"), httpx.WriteTimeout)
                written = await self._writable(reply) and await self._write_all(more, reply)
            self._sent = written
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
        """Close the socket at once; a reply in progress ends with `reason`."""
        self._end(reason or httpx.StreamClosed(), reusable=False)

    def pause(self, paused: bool) -> None:
        if self.usable:
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def _write(self, data: bytes) -> bool:
        """Send data; return whether more can follow at once."""
        if self._transport.is_closing():
            return False
        self._transport.write(data)
        return not self._blocked

    async def _writable(self, reply: Reply) -> bool:
        """Wait until more data can follow; return False after the reply's end, or an error status."""
        # A closing socket accepts all data; the end follows soon.
        while (self._blocked or not self.usable) and not reply.end and reply.status < 400:
            await reply.changed()
        return not reply.end and reply.status < 400

    async def _write_all(self, pieces: AsyncIterable[bytes] | None, reply: Reply) -> bool:
        if pieces is not None:
            async for piece in pieces:
                self._write(piece)
                if not await self._writable(reply):
                    return False
                await asyncio.sleep(0)  # for other requests: a socket may accept chunk after chunk
        return True

    def _cut_off(self, error: Exception | None) -> None:
        if reply := self._reply:
            stale = self._used and not reply.status and not reply.unread
            self._end(Stale() if stale else reply.cut_off(error), reusable=False)

    def _end(self, end: Exception | type[Exception], *, reusable: bool) -> None:
        """Detach the reply, if any; its received bytes remain readable."""
        reply, self._reply = self._reply, None
        if not reusable:
            self._transport.abort()
        if reply:
            self._used = True
            reply.finish(end)
            self._pieces.clear()
            if reusable:
                self._pool.keep(self)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass; both set TCP_NODELAY
        # Reasoning models may send nothing for minutes, and gateways drop silent connections.
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()  # without a request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reply.keep_alive = False
            reply.end = reply.end or httpx.RemoteProtocolError(f"The reply is not HTTP/1.1: {error}")
        pieces, take = self._pieces, reply.take
        if reply.end:
            reply.unread += len(data)
            self._end(reply.end, reusable=self._sent and reply.keep_alive)
        elif take and pieces:
            body = b"".join(pieces)
            pieces.clear()
            try:
                if take(body):
                    reply.active_at = self.loop.time()
                else:
                    reply.wake(stopped=True)
            except Exception as error:
                reply.wake(error=error)
        else:
            reply.unread += len(data)
            if reply.unread <= HIGH_WATER:
                reply.wake()
            elif pieces:
                reply.pause()
            else:
                self.abort(httpx.RemoteProtocolError("The reply's head is too large."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._cut_off(exc)
        self._pool.closed(self)
        self.gone.set_result(None)
        if self._timer:
            self._timer.cancel()
        del self._parser  # breaks a reference cycle

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._reply:
            self._reply.wake()

    # Called by the parser. Errors stop it; after the end, they only prevent reuse.

    def on_message_begin(self) -> None:
        self._headers = []
        if self._reply and self._reply.end:
            raise ValueError("More than one reply was received.")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []  # later headers are trailers
        status = self._parser.get_status_code()
        if self._reply and status >= 200:  # not 100 Continue, 103 Early Hints
            self._reply.begin(status, headers)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply and reply.status:
            reply.keep_alive = self._parser.should_keep_alive()
            reply.end = StopAsyncIteration

    def end_at(self, deadline: float) -> None:
        """
        End the reply by `deadline` (loop time), unless bytes arrive.

        A single timer serves many replies. It is rescheduled when it fires, or for an earlier deadline.
        """
        if self._timer is None or deadline < self._timer_at:
            if self._timer:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        reply = self._reply
        if reply is None or (deadline := reply.deadline) is None:
            return
        if deadline - self.loop.time() > 0.001:  # timer tolerance
            self.end_at(deadline)
        else:
            self.abort(reply.timeout())


class Reply(httpx.AsyncByteStream):
    """
    The reply to a request: its head, and its body as an iterator.

    Each item contains all bytes received since the previous item. A reply remains readable after its connection closed
    or serves other requests.
    """

    headers: list[tuple[bytes, bytes]]
    fields: dict[bytes, bytes]  # headers, with names in lower case

    def __init__(self, connection: HTTPConnection, pieces: list[bytes], bodiless: bool) -> None:
        """`pieces` receives the body until the end."""
        self.status = 0  # 0 until the head is complete
        self.keep_alive = False  # whether the connection is reusable after a complete body
        self.end: Exception | type[Exception] | None = None  # raised after the last bytes
        self.pieces = pieces
        self.unread = 0  # bytes received since the last item
        self.take: Callable[[bytes], bool] | None = None  # set while `deliver` waits
        self.active_at = 0.0  # loop time of the last read, or of the wait's start
        self._connection = connection
        self._loop = connection.loop
        self._bodiless = bodiless
        self._paused = False
        self._lingers = False
        self._waiter: asyncio.Future[bool] | None = None
        self._timeout: float | None = None
        self._timeout_error: type[httpx.TimeoutException] = httpx.ReadTimeout
        self._lingering: asyncio.TimerHandle | None = None

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> bytes:
        while not self.pieces:
            if self.end:
                raise self.end
            try:
                await self.changed()
            except asyncio.CancelledError:
                self.close()
                raise
        return self._taken()

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """
        Pass received bytes and further reads to `take`, until it returns False.

        Avoids task switches. Raises the iterator's final exception, and exceptions from `take`.
        """
        try:
            while True:
                if self.pieces:
                    if not take(self._taken()):
                        return
                elif self.end:
                    raise self.end
                else:
                    changed = self.changed()
                    self.take = take
                    self.unread = 0
                    if await changed:
                        return
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self.take = None

    def _taken(self) -> bytes:
        pieces = self.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.unread = 0
        if self._paused:
            self._resume()
        return data

    async def aclose(self) -> None:
        """Stop reading. Closes the connection unless the body is complete or `linger` was called."""
        if not self._lingers:
            self.close()

    def close(self) -> None:
        """Close without lingering."""
        self.pieces.clear()
        if not self.end:
            self._connection.abort()

    def linger(self, seconds: float) -> None:
        """
        Stop reading, but let the body end within `seconds`, to reuse the connection.

        For streams with an end marker, for example `[DONE]`, before the body's end.
        """
        self._lingers = True
        self.pieces.clear()
        if not self.end:
            self._timeout = None
            self._lingering = self._loop.call_later(seconds, self.close)

    def response(self) -> httpx.Response:
        return httpx.Response(self.status, headers=self.headers, stream=self, extensions={"stream": self})

    def wait_at_most(self, seconds: float | None, error: type[httpx.TimeoutException] = httpx.ReadTimeout) -> None:
        """Set the timeout in seconds for each further wait."""
        self._timeout, self._timeout_error = seconds, error

    def changed(self) -> asyncio.Future[bool]:
        """
        A future for the next state change: True if `take` has returned False.

        A cancelled caller must call `close`.
        """
        if self._waiter and not self._waiter.done():
            raise RuntimeError("Another reader is waiting for this reply.")
        if self._timeout is not None:
            self.active_at = self._loop.time()
            self._connection.end_at(self.active_at + self._timeout)
        self._waiter = self._loop.create_future()
        return self._waiter

    def wake(self, *, stopped: bool = False, error: Exception | None = None) -> None:
        """Wake the reader after `take` has returned False (`stopped`) or raised `error`, or without `take`."""
        waiter, self._waiter, self.take = self._waiter, None, None
        if waiter and not waiter.done():
            if error:
                waiter.set_exception(error)
            else:
                waiter.set_result(stopped)

    def pause(self) -> None:
        """Stop receiving until all bytes have been read."""
        if not self._paused:
            self._paused = True
            self._connection.pause(True)
        self.wake()

    def _resume(self) -> None:
        self._paused = False
        self._connection.pause(False)

    def finish(self, end: Exception | type[Exception]) -> None:
        self.end = end
        self.pieces = [*self.pieces]
        if self._paused:
            self._resume()
        if self._lingering:
            self._lingering.cancel()
        if self._waiter:
            self.wake()

    def cut_off(self, error: Exception | None) -> Exception | type[Exception]:
        """How the reply ends if its connection closes now."""
        if error:
            return httpx.ReadError(str(error))
        if not self.status:
            return httpx.RemoteProtocolError("The server closed the connection before its reply began.")
        if b"content-length" in self.fields or b"chunked" in self.fields.get(b"transfer-encoding", b"").lower():
            return httpx.RemoteProtocolError("The server closed the connection before its reply was complete.")
        return StopAsyncIteration  # the connection's end is the body's end

    @property
    def deadline(self) -> float | None:
        """The loop time when the current wait times out, if any."""
        if self._timeout is None or not self._waiter or self._waiter.done():
            return None
        return self.active_at + self._timeout

    def timeout(self) -> httpx.TimeoutException:
        return self._timeout_error(f"No data was transferred for {self._timeout:g} seconds.")

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """The head is complete."""
        self.status = status
        self.headers = headers
        self.fields = {name.lower(): value for name, value in headers}
        if self._bodiless:
            # The parser ignores HEAD and would wait for a body.
            self.end = StopAsyncIteration
            raise ValueError("The reply has no body.")


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _SLICE):
        yield body[start : start + _SLICE]


DEFAULT_PORTS = {"http": 80, "https": 443}


class RequestTarget:
    """A request line, encoded once for many requests."""

    def __init__(self, method: str, url: httpx.URL) -> None:
        """Raises `httpx.LocalProtocolError` for an invalid method."""
        self.method = method
        self.url = url
        self.origin = Origin(url.scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS.get(url.scheme, 0))
        self.encoded = b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), url.raw_path)
        if len(self.encoded.split()) != 3:
            raise httpx.LocalProtocolError("The request line contains white space.")


# A target, encoded headers, and the body.
OutgoingRequest: TypeAlias = tuple[RequestTarget, bytes, bytes | AsyncIterable[bytes]]


def encoded_headers(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Raises `httpx.LocalProtocolError` for a line break."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    if lines.count(b"\r") != len(headers) or lines.count(b"\n") != len(headers) or b"\0" in lines:
        raise httpx.LocalProtocolError("A header of the request contains a line break.")
    return lines


def decoded_headers(lines: bytes) -> httpx.Headers:
    fields = [line.split(b": ", 1) for line in lines.split(b"\r\n") if line]
    return httpx.Headers([(name, value) for name, value in fields], encoding="utf-8")


async def chunked(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"
