"""
Server-sent events over ASGI.

A single task reads the body and writes to the socket, so a write costs no lock, cancel scope or task switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class EventStream(Response, Generic[T]):
    """
    Sends each item of `body`, encoded by `encode`, in one write, and `last` at the end.

    After `heartbeat` seconds without a write (0: never) it sends the bytes that `beat` returns. If the client
    disconnects, the body is closed at once. If the server shuts down and its grace period is over, the body is closed
    and the bytes that `farewell` returns are sent last.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        body: AsyncGenerator[T, None],
        encode: Callable[[T], bytes],
        *,
        first: T | None = None,
        last: bytes = b"",
        heartbeat: float,
        beat: Callable[[], bytes],
        farewell: Callable[[], Awaitable[bytes]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        self._body = body
        self._encode = encode
        self._first = first  # the item that was already taken from the body
        self._end = last
        self._heartbeat = heartbeat
        self._beat = beat
        self._farewell = farewell
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._heartbeat_write: asyncio.Future[None] | None = None  # the latest one
        self._last_write = 0.0  # in loop time
        self._unsent = b""  # the write that is blocked by a slow client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send, scope.get("state", {}).get("send", send)))
        watch = asyncio.ensure_future(disconnected(receive))
        watch.add_done_callback(lambda _: pump.cancel())
        self._last_write = asyncio.get_running_loop().time()
        self._schedule_heartbeat(send)
        try:
            await asyncio.wait({pump})
        except asyncio.CancelledError:
            pump.cancel()
            await asyncio.wait({pump})
            if self._farewell and pump.cancelled():
                self._stop_heartbeat()
                await _write(send, self._unsent + await self._farewell())
                await _write(send, b"", more=False)
            raise
        finally:
            watch.cancel()
            self._stop_heartbeat()
            await self._body.aclose()  # a pump that is cancelled before its first step does not close it
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Send, send_piece: Send) -> None:
        clock, encode = asyncio.get_running_loop().time, self._encode
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._first is not None:
                self._unsent = encode(self._first)
                await _write(send, self._unsent)
                self._unsent = b""
            async for item in self._body:
                self._last_write = clock()
                self._unsent = piece = encode(item)
                await send_piece({"type": "http.response.body", "body": piece, "more_body": True})
                self._unsent = b""
            self._stop_heartbeat()
            await _write(send, self._end, more=False)
        finally:
            await self._body.aclose()

    def _schedule_heartbeat(self, send: Send) -> None:
        if self._heartbeat:
            due = self._last_write + self._heartbeat
            self._heartbeat_timer = asyncio.get_running_loop().call_at(due, self._send_heartbeat, send)

    def _send_heartbeat(self, send: Send) -> None:
        """Send a heartbeat if there was no write, unless the last one is still blocked; schedule the next."""
        now = asyncio.get_running_loop().time()
        if now - self._last_write >= self._heartbeat:
            self._last_write = now
            if self._heartbeat_write is None or self._heartbeat_write.done():
                self._heartbeat_write = asyncio.ensure_future(_write(send, self._beat()))
        self._schedule_heartbeat(send)

    def _stop_heartbeat(self) -> None:
        """Stop the heartbeat: nothing may be written after the end."""
        if self._heartbeat_timer:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None  # breaks a reference cycle
        if self._heartbeat_write:
            self._heartbeat_write.cancel()


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
