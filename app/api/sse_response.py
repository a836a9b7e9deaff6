"""
Server-sent events over ASGI.

A single task reads the body and writes to the socket, so a write costs no lock, cancel scope or task switch. While it
waits for the body, items may also be written by the code that receives them: see `Sink`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.core.stream.event_batch import Sink
from app.errors import APIError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SendCoroutine: TypeAlias = Callable[[Message], Coroutine[Any, None, None]]  # a `Send`, which is an `async def`


class EventStream(Response, Generic[T]):
    """
    Sends each item of `body`, encoded by `encode`, in one write, and `last` at the end. An item for which `pieces`
    returns an iterator is large: its pieces are encoded and sent one by one.

    Items that the body passes to `sink` while it is awaited are sent without resuming the task that awaits it.

    If the pieces of an item end with an `APIError`, the stream is cut off.

    After `heartbeat` seconds without a write (0: never) it sends the bytes that `beat` returns. If the client
    disconnects, the body is closed at once. If the server shuts down and its grace period is over, the body is closed
    and the bytes that `farewell` returns are sent last. If an item cannot be encoded, those that `breaks` returns are.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        body: AsyncGenerator[T, None],
        encode: Callable[[T], bytes],
        *,
        pieces: Callable[[T], AsyncIterator[bytes] | None] = lambda item: None,
        first: T | None = None,
        sink: Sink[T] | None = None,
        last: bytes = b"",
        heartbeat: float,
        beat: Callable[[], bytes],
        farewell: Callable[[], Awaitable[bytes]] | None = None,
        breaks: Callable[[Exception], Awaitable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        self._body = body
        self._encode = encode
        self._pieces = pieces
        self._first = first  # the item that was already taken from the body
        self._sink = sink or Sink()
        self._end = last
        self._heartbeat = heartbeat
        self._beat = beat
        self._farewell = farewell
        self._breaks = breaks
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._last_write = 0.0  # in loop time
        self._unsent = b""  # what a slow client blocks
        self._rest: AsyncIterator[bytes] | None = None  # of a large item
        self._blocked: asyncio.Future[None] | None = None  # the rest of a write outside of the task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._clock = asyncio.get_running_loop().time
        self._send_piece: _SendCoroutine = scope.get("state", {}).get("send", send)
        pump = asyncio.ensure_future(self._pump(send))
        watch = asyncio.ensure_future(disconnected(receive))
        watch.add_done_callback(lambda _: pump.cancel())
        self._last_write = self._clock()
        self._schedule_heartbeat()
        try:
            await asyncio.wait({pump})
        except asyncio.CancelledError:
            pump.cancel()
            await asyncio.wait({pump})
            if self._farewell and pump.cancelled():
                self._stop()
                last = await self._farewell()
                if self._rest:
                    async for piece in self._rest:  # of a large item that was sent in part
                        await _write(send, self._unsent)
                        self._unsent = piece
                await _write(send, self._unsent + last)
                await _write(send, b"", more=False)
            raise
        finally:
            watch.cancel()
            self._stop()
            await self._body.aclose()  # a pump that is cancelled before its first step does not close it
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send) -> None:
        sink, send_piece = self._sink, self._send_piece
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._first is not None:
                first, self._first = self._first, None
                if pieces := self._pieces(first):
                    await self._send_pieces(pieces, send)
                else:
                    self._unsent = self._encode(first)
                    await _write(send, self._unsent)
                    self._unsent = b""
                del first
            sink.send = self._send_at_once
            async for item in self._body:
                sink.send = None
                self._last_write = self._clock()
                if pieces := self._pieces(item):
                    del item
                    await self._send_pieces(pieces, send)
                    del pieces
                    sink.send = self._send_at_once
                    continue
                piece = self._encode(item)
                self._unsent += piece
                if self._blocked:
                    await self._wait_for_client()
                    self._unsent = piece
                await send_piece({"type": "http.response.body", "body": piece, "more_body": True})
                self._unsent = b""
                sink.send = self._send_at_once
            await self._wait_for_client()
            self._unsent = b""
            self._stop()
            await _write(send, self._end, more=False)
        except APIError as error:  # the rest of a large item cannot be read: the server closes the connection
            logger.warning("stream cut off", extra={"reason": str(error)})
        except Exception as error:
            if self._breaks is None or self._rest or isinstance(error, OSError):
                raise
            self._stop()
            await self._body.aclose()
            await _write(send, self._unsent + await self._breaks(error), more=False)
        finally:
            await self._body.aclose()

    async def _send_pieces(self, pieces: AsyncIterator[bytes], send: Send) -> None:
        """Send a large item, with time for other tasks between its pieces."""
        self._rest = pieces
        await self._wait_for_client()
        async for self._unsent in pieces:
            await _write(send, self._unsent)
            self._unsent = b""
            self._last_write = self._clock()
            await asyncio.sleep(0)

    def _send_at_once(self, item: T) -> None:
        """Send an item while the task waits for the body."""
        clock, encode = self._clock, self._encode  # in Python 3.11, `self.f()` is slow if `f` is not a method
        self._last_write = clock()
        self._write_at_once(encode(item))

    def _write_at_once(self, piece: bytes) -> None:
        """
        Write outside of the task.

        If the write has to wait for the client, it continues in a task of its own, and all that follows waits for it.
        """
        send_piece = self._send_piece
        write = send_piece({"type": "http.response.body", "body": piece, "more_body": True})
        try:
            awaited = write.send(None)  # runs the coroutine up to its first wait
        except StopIteration:
            return
        except Exception as error:
            self._blocked = asyncio.get_running_loop().create_future()
            self._blocked.set_exception(error)
            self._blocked.exception()  # retrieved, in case that nothing follows
        else:
            self._blocked = asyncio.ensure_future(_resume(write, awaited))
            self._blocked.add_done_callback(self._on_unblocked)
        self._unsent = piece
        self._sink.send = None

    def _on_unblocked(self, write: asyncio.Future[None]) -> None:
        """Open the sink again, unless the task has an item that waits for the same write."""
        if self._blocked is write and not write.cancelled() and not write.exception():
            self._blocked, self._unsent = None, b""
            self._sink.send = self._send_at_once

    async def _wait_for_client(self) -> None:
        """Wait for a write outside of the task, if there is one."""
        blocked, self._blocked = self._blocked, None
        if blocked:
            await blocked

    def _schedule_heartbeat(self) -> None:
        if self._heartbeat:
            due = self._last_write + self._heartbeat
            self._heartbeat_timer = asyncio.get_running_loop().call_at(due, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat if there was no write, unless the last one is still blocked; schedule the next."""
        now = self._clock()
        if now - self._last_write >= self._heartbeat:
            self._last_write = now
            if self._sink.send:
                self._write_at_once(self._beat())
        self._schedule_heartbeat()

    def _stop(self) -> None:
        """Stop the heartbeat and all writes outside of the task: nothing may be written after the end."""
        self._sink.send = None
        if self._blocked:
            self._blocked.cancel()
        if self._heartbeat_timer:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None  # breaks a reference cycle


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _resume(write: Coroutine[Any, None, None], awaited: asyncio.Future[Any] | None) -> None:
    """Resume a write once what it waits for is done."""
    try:
        if awaited:
            await asyncio.wait({awaited})
    except asyncio.CancelledError:
        write.close()
        raise
    await asyncio.ensure_future(write)


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
