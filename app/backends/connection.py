"""
One HTTP/1.1 connection to a backend, and the answer that is read from it.

Bytes go from the socket through httptools into a list, and a reader takes all of them at once: what arrived together
leaves together. Which connection serves which request is none of its business; that is the pool's.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterable
from typing import NamedTuple, Protocol

import httptools
import httpx

# Bytes that may wait to be read before the socket is paused. It bounds everything else that a server can send without
# sending any body, too: a head, interim answers, trailers.
HIGH_WATER = 256 * 1024


class Origin(NamedTuple):
    """What a connection leads to; requests to the same origin share connections."""

    scheme: str
    host: str
    port: int


class Pool(Protocol):
    """What a connection tells of itself."""

    def opened(self, connection: Connection) -> None: ...

    def answered(self, connection: Connection, reusable: bool) -> None:
        """The answer has come in whole or never will: nothing more will be read for it."""
        ...

    def closed(self, connection: Connection) -> None: ...


class Stale(Exception):
    """The server had closed an idle connection by the time it was used again: the request may be sent on another."""


class Connection(asyncio.Protocol):
    """One socket, which serves one request at a time."""

    idle_since: float

    def __init__(self, origin: Origin, pool: Pool) -> None:
        self.origin = origin
        self.loop = asyncio.get_running_loop()
        self.gone = self.loop.create_future()  # done when the socket is closed
        self._pool = pool
        self._answer: Answer | None = None
        self._used = False  # has it served a request before?
        self._blocked = False  # does the server read more slowly than we write?
        self._sent = False  # is the request sent to its end?

    async def ask(
        self, message: bytes, more: AsyncIterable[bytes] | None, chunked: bool, answer: Answer, timeouts: Timeouts
    ) -> None:
        """
        Send a request, whose body may have more to come, and return once the head of its answer is there.

        Raises `Stale`, or what `httpx` raises for a request that fails. Whoever leaves early leaves a closed socket.
        """
        self._answer = answer
        self._sent = False
        answer.wait_at_most(timeouts.get("write"), httpx.WriteTimeout)
        try:
            await self._write(message)
            if more is not None:
                await self._write_all(more, chunked)
            self._sent = not self._blocked
            answer.wait_at_most(timeouts.get("read"))
            while not answer.status:
                if answer.end:
                    raise answer.end
                await answer.changed()
        except BaseException:
            answer.close()
            raise

    def abort(self, reason: Exception | None = None) -> None:
        """Close the socket now, whatever was still to be sent or read; an answer under way ends for that reason."""
        self._transport.abort()
        if self._answer:
            self._end(reason or httpx.StreamClosed(), reusable=False)

    def pause(self, paused: bool) -> None:
        """Stop or resume reading from the socket."""
        if not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pool.opened(self)
        # A model that thinks is silent for minutes, and gateways forget silent connections.
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort()  # nobody asked
            return
        reusable = self._sent
        try:
            answer.parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            reusable = False
            if not answer.end:
                answer.end = httpx.RemoteProtocolError(f"The answer is not HTTP/1.1: {error}")
        answer.unread += len(data)
        if answer.end:
            self._end(answer.end, reusable and answer.keep_alive)
        elif answer.unread > HIGH_WATER:
            if answer.pieces:
                answer.pause()
            else:
                self.abort(httpx.RemoteProtocolError("The answer has too many headers."))
        answer.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer:
            untouched = not self._answer.status and not self._answer.unread
            stale = self._used and untouched
            self._end(Stale() if stale else self._answer.cut_off(exc), reusable=False)
        self._pool.closed(self)
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._answer:
            self._answer.wake()

    def _end(self, end: Exception, reusable: bool) -> None:
        answer, self._answer = self._answer, None
        assert answer
        self._used = True
        answer.finish(end)
        if not reusable:
            self._transport.abort()
        self._pool.answered(self, reusable)
