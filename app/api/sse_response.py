"""
Server-sent events over ASGI.

One task of its own reads and writes, so that nothing but the way from the backend to the socket is walked for each
write; there is no lock, no scope and no other task in that way.
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
    Sends each item of `body` in one write, in the bytes that `encode` makes of it, and `last` when it is over.

    After `heartbeat` seconds of silence (0: never) it sends what `beat` returns. When the client goes, the body is
    closed at once. When the server has to stop and cannot wait any longer, the body is closed and `farewell` gives
    the last words.
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
        self._first = first  # what was taken of the body before this response was made
        self._end = last
        self._heartbeat = heartbeat
        self._beat = beat
        self._farewell = farewell
        self._heart: asyncio.Future[None] | None = None
        self._last = 0.0  # when something was written, in loop time
        self._unsent = b""  # the piece that a slow client has no room for yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send, scope.get("state", {}).get("send", send)))
        watch = asyncio.ensure_future(disconnected(receive))
        watch.add_done_callback(lambda _: pump.cancel())
        if self._heartbeat:
            self._heart = asyncio.ensure_future(self._beats(send))
        try:
            await asyncio.wait({pump})
        except asyncio.CancelledError:
            pump.cancel()
            await asyncio.wait({pump})
            if self._farewell and pump.cancelled():
                self._still()
                await _write(send, self._unsent + await self._farewell())
                await _write(send, b"", more=False)
            raise
        finally:
            watch.cancel()
            self._still()
            await self._body.aclose()  # a pump that was cancelled before its first step has not closed it
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
                self._last = clock()
                self._unsent = piece = encode(item)
                await send_piece({"type": "http.response.body", "body": piece, "more_body": True})
                self._unsent = b""
            self._still()
            await _write(send, self._end, more=False)
        finally:
            await self._body.aclose()

    def _still(self) -> None:
        """Let the heart beat no more: nothing may be written behind the end."""
        heart, self._heart = self._heart, None  # they would hold each other until the collector comes
        if heart:
            heart.cancel()

    async def _beats(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._last = clock()
        while True:
            await asyncio.sleep(self._last + self._heartbeat - clock())
            if clock() - self._last >= self._heartbeat:
                self._last = clock()
                await _write(send, self._beat())


async def _write(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
