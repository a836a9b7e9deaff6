"""Adapters for `httpx`'s own transports, which proxies need, and for compressed bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Self

import httpx

from app.backends.transport.connection import Reply, RequestTarget, decoded_headers

_PIECE = 256  # bytes decompressed at once, to a few megabytes at worst


class HTTPXTransport:
    """Sends requests through another transport."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self.handle_async_request = transport.handle_async_request
        self.aclose = transport.aclose

    async def send(
        self,
        target: RequestTarget,
        headers: bytes,
        content: bytes | AsyncIterable[bytes],
        timeouts: Mapping[str, float | None],
    ) -> HTTPXReply:
        """See `HTTPToolsTransport.send`."""
        fields, seconds = decoded_headers(headers), timeouts.get("read")
        if isinstance(content, bytes):
            # `httpx` cannot change the read timeout after the head, so it gets none.
            timeouts = {name: timeouts.get(name) for name in ("connect", "pool")}
        else:
            seconds = None  # an upload can take longer
        request = httpx.Request(
            target.method, target.url, headers=fields, content=content, extensions={"timeout": timeouts}
        )
        try:
            async with asyncio.timeout(seconds):
                reply = HTTPXReply(await self.handle_async_request(request))
        except TimeoutError as error:
            raise httpx.ReadTimeout("The server did not answer in time.") from error
        reply.wait_at_most(seconds)
        return reply


class HTTPXReply:
    """Like `Reply`. A timeout raises `TimeoutError`, and ends the reads."""

    def __init__(self, response: httpx.Response, *, decoded: bool = False) -> None:
        """`decoded`: without the content encoding."""
        self.status = response.status_code
        self.headers = response.headers.raw
        self.fields = {name.lower(): value for name, value in self.headers}
        self._response = response
        self._reads = aiter(response.aiter_bytes() if decoded else response.aiter_raw())
        self._seconds: float | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        async with asyncio.timeout(self._seconds):
            return await anext(self._reads)

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        async with asyncio.timeout(self._seconds) as timeout:
            while take(await anext(self._reads)):
                if self._seconds is not None:
                    timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def wait_at_most(self, seconds: float | None) -> None:
        self._seconds = seconds

    def linger(self, seconds: float) -> None:
        """The connection is not reused after an unfinished body."""

    async def aclose(self) -> None:
        if isinstance(self._reads, AsyncGenerator):
            await self._reads.aclose()
        stream = self._response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        await stream.aclose()

    def response(self) -> httpx.Response:
        return self._response


def decompressed(reply: Reply | HTTPXReply) -> Reply | HTTPXReply:
    """Decompress a body in small steps, although requests allow only `identity`."""
    if reply.fields.get(b"content-encoding", b"") in (b"", b"identity"):
        return reply
    response = reply.response()
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _CompressedBody(response.stream)
    return HTTPXReply(response, decoded=True)


class _CompressedBody(httpx.AsyncByteStream):
    """Small pieces: `httpx` decompresses each piece as a whole."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            for at in range(0, len(data), _PIECE):
                yield data[at : at + _PIECE]

    async def aclose(self) -> None:
        await self._stream.aclose()
