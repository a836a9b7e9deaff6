"""What an `EventStream` writes, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from app.api.sse_response import EventStream


async def test_no_heartbeat_comes_behind_the_end() -> None:
    """The last write may take its time, and whatever is written behind it is an error of the server's."""
    began: list[tuple[bytes, bool]] = []

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"piece"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            began.append((message["body"], message["more_body"]))
            await asyncio.sleep(0.1 if not message["more_body"] else 0)

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(body(), bytes, last=b"end", heartbeat=0.01, beat=lambda: b"beat")
    await stream({"type": "http"}, receive, send)
    assert began[-1] == (b"end", False)


async def test_what_has_come_to_its_end_gets_no_last_words() -> None:
    """A server may have to stop in the very moment in which all is said."""
    written: list[tuple[bytes, bool]] = []

    async def body() -> AsyncGenerator[bytes, None]:
        yield b"piece"

    async def farewell() -> bytes:
        return b"farewell"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            written.append((message["body"], message["more_body"]))
            if not message["more_body"]:
                serving.cancel()

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(body(), bytes, last=b"end", heartbeat=0, beat=lambda: b"beat", farewell=farewell)
    serving = asyncio.ensure_future(stream({"type": "http"}, receive, send))
    await asyncio.wait({serving})
    assert serving.cancelled()
    assert written == [(b"piece", True), (b"end", False)]
