"""
Server-sent events over ASGI.

The call that creates events writes them, without a lock, cancel scope or task switch; only writes that wait for the
client use a task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.uvicorn.disconnect import BodyWriter, DisconnectWatch, body_writer

T = TypeVar("T")


class EventStream(Response, Generic[T]):
    """
    Sends items from `produce`, each in a single write.

    `produce` starts in `begin` or with the response. `encode` returns bytes, or smaller items in place of a large item.
    `beat` is written after `heartbeat` seconds without a write (0: never), `last` at the end. A disconnect cancels
    `produce` at once. After an encoding error, or a shutdown's grace period (None), `on_abort`'s bytes are sent last.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Callable[[EventStream[T]], Coroutine[Any, Any, None]],
        encode: Callable[[T], bytes | list[T]],
        *,
        heartbeat: float = 0,
        beat: Callable[[], bytes] = lambda: b"",
        last: bytes = b"",
        on_abort: Callable[[Exception | None], Awaitable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        self.paused = True  # items wait for the response's start or for the client
        self._produce = produce
        self._producer: asyncio.Future[None] | None = None
        self._encode = encode
        self._heartbeat = heartbeat
        self._beat = beat
        self._last = last
        self._on_abort = on_abort
        self._encode_error: Exception | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._send_message: Send
        self._writer: BodyWriter
        self._clock = asyncio.get_running_loop().time
        self._last_write = 0.0  # loop time
        self._waiting: deque[T] = deque()
        self._writing: asyncio.Future[None] | None = None  # waits for the client
        self._failure: Exception | None = None
        self._begun = False  # the head was sent
        self._ended = False  # the end was sent
        self._changed = asyncio.Event()  # set when `paused` becomes False or the first item arrives

    # Called by `produce`.

    def send(self, item: T) -> None:
        """Send an item, now or when the client is ready."""
        if self.paused:
            self._waiting.append(item)
            self._changed.set()
            return
        encode, clock = self._encode, self._clock  # in Python 3.11, `self.f()` is slow if `f` is not a method
        try:
            encoded = encode(item)
        except Exception as error:
            self._encode_error = error
            self._cut_off()
            return
        if isinstance(encoded, bytes):
            self._last_write = clock()
            if not self._writer.write(encoded):
                self._write_slowly(self._writer.drain())
        else:
            self._waiting.extendleft(reversed(encoded))
            self._write_slowly(asyncio.sleep(0))  # other requests first

    async def drain(self) -> None:
        """Wait until the client is ready."""
        while self.paused:
            self._changed.clear()
            await self._changed.wait()

    async def begin(self) -> None:
        """Wait for the first item; raises `produce`'s error if it ends without an item."""
        producer = self._start()
        try:
            while not (self._waiting or producer.done()):
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            producer.cancel()
            await asyncio.wait({producer})
            if not producer.cancelled():
                producer.exception()  # so that asyncio does not log it
            raise
        if not self._waiting:
            producer.result()

    def _start(self) -> asyncio.Future[None]:
        if self._producer is None:
            self._producer = asyncio.ensure_future(self._produce(self))
            self._producer.add_done_callback(lambda _: self._changed.set())
        return self._producer

    # The response.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send_message, self._writer = send, body_writer(scope, send)
        producer = self._start()

        def disconnected() -> None:
            if not producer.cancel() and self._writing:
                self._writing.cancel()

        watch = DisconnectWatch(scope, receive, disconnected)
        self._last_write = self._clock()
        self._schedule_heartbeat()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._continue()
            await asyncio.wait({producer})
            await self._finish(producer, watch)
        except asyncio.CancelledError:
            producer.cancel()
            await asyncio.wait({producer})
            if self._on_abort:
                await self._end_after_shutdown(self._on_abort)
            raise
        finally:
            watch.stop()
            self._stop()
            producer.cancel()
            await asyncio.wait({producer})
        if self._failure:
            raise self._failure
        if not producer.cancelled():
            producer.result()

    async def _finish(self, producer: asyncio.Future[None], watch: DisconnectWatch) -> None:
        """Send waiting items and the end, unless `produce` failed."""
        if not self._encode_error:
            if producer.cancelled() or producer.exception():
                return
            while self._writing and not watch.disconnected:
                await asyncio.wait({self._writing})
        if self._encode_error is None and self.paused:
            return
        if self._encode_error and self._on_abort is None:
            raise self._encode_error
        self._stop()
        self._ended = True
        aborted = self._encode_error and self._on_abort
        await self._write_last(await aborted(self._encode_error) if aborted else self._last)

    async def _end_after_shutdown(self, on_abort: Callable[[Exception | None], Awaitable[bytes]]) -> None:
        writing = self._writing
        self._stop()
        if writing:
            await asyncio.wait({writing})
        last = await on_abort(None)
        if not self._begun or self._ended or self._failure:
            return
        while self._waiting:
            encoded = self._encode(self._waiting.popleft())
            if isinstance(encoded, bytes):
                self._writer.write(encoded)
            else:
                self._waiting.extendleft(reversed(encoded))
        self._writer.write(last)
        await self._writer.drain()
        await self._write_last(b"")

    def _continue(self) -> None:
        self._begun = True
        self.paused = False
        if self._waiting:
            self.send(self._waiting.popleft())
        if self._waiting and not self.paused:
            self._write_slowly(asyncio.sleep(0))  # other requests first
        if not self.paused:
            self._changed.set()

    def _write_slowly(self, write: Coroutine[object, object, None]) -> None:
        """Wait for the client to read; further items wait meanwhile."""
        self.paused = True
        self._writing = asyncio.ensure_future(write)
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, write: asyncio.Future[None]) -> None:
        self._writing = None
        if write.cancelled():
            return
        if isinstance(error := write.exception(), Exception):
            self._failure = error
            self._cut_off()
        else:
            self._continue()

    def _cut_off(self) -> None:
        """The server then closes the connection."""
        self.paused = True
        if self._producer:
            self._producer.cancel()

    async def _write_last(self, data: bytes) -> None:
        await self._send_message({"type": "http.response.body", "body": data, "more_body": False})

    def _schedule_heartbeat(self) -> None:
        if self._heartbeat:
            due = self._last_write + self._heartbeat
            self._heartbeat_timer = asyncio.get_running_loop().call_at(due, self._send_heartbeat)

    def _send_heartbeat(self) -> None:
        """Send a heartbeat, unless a write is blocked, and schedule the next."""
        now = self._clock()
        if now - self._last_write >= self._heartbeat:
            self._last_write = now
            if not self.paused and not self._writer.write(self._beat()):
                self._write_slowly(self._writer.drain())
        self._schedule_heartbeat()

    def _stop(self) -> None:
        self.paused = True
        if self._writing:
            self._writing.cancel()
        if self._heartbeat_timer:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None  # breaks a reference cycle
