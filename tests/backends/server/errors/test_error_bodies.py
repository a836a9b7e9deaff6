"""Error bodies in any form."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx

from app.backends.server import client
from app.backends.transport.httpx_transport import HTTPXReply


class Sips(httpx.AsyncByteStream):
    """A body with this many bytes, a few at a time."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.left > 0:
            self.left -= 64
            yield b"x" * 64

    async def aclose(self) -> None:
        self.closed = True


async def error_body(stream: Sips) -> bytearray:
    body = bytearray()
    await client._read(HTTPXReply(httpx.Response(500, stream=stream)), body, client._ERROR_LIMIT)
    return body


async def seconds(size: int) -> float:
    times = []
    for _ in range(3):
        stream = Sips(size)
        began = time.thread_time()
        body = await error_body(stream)
        times.append(time.thread_time() - began)
        assert (len(body), stream.closed) == (size, True)
    return min(times)


async def test_error_body_of_ten_times_the_length_takes_ten_times_as_long() -> None:
    assert await seconds(960_000) < 25 * await seconds(96_000)


async def test_error_body_without_an_end_is_read_in_part() -> None:
    stream = Sips(100_000_000)
    body = await error_body(stream)
    assert 1_000_000 < len(body) < 1_000_100
    assert stream.closed
