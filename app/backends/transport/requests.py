"""Encode requests as HTTP/1.1 bytes."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

import httpx

from app.backends.transport.connection import Origin

DEFAULT_PORTS = {"http": 80, "https": 443}

_SLICE = 1024 * 1024  # bytes per body write


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


def encoded_headers(headers: httpx.Headers) -> bytes:
    """Raises `httpx.LocalProtocolError` for a line break."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers.raw])
    if lines.count(b"\r") != len(headers.raw) or lines.count(b"\n") != len(headers.raw) or b"\0" in lines:
        raise httpx.LocalProtocolError("A header of the request contains a line break.")
    return lines


def decoded_headers(lines: bytes) -> httpx.Headers:
    fields = [line.split(b": ", 1) for line in lines.split(b"\r\n") if line]
    return httpx.Headers([(name, value) for name, value in fields], encoding="utf-8")


def encoded_content(request: httpx.Request) -> bytes | AsyncIterable[bytes]:
    """The body as it is sent; bytes if it can be sent again."""
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        return b"".join(stream)
    assert isinstance(stream, httpx.AsyncByteStream)
    return _chunked(stream) if "transfer-encoding" in request.headers else stream


async def _chunked(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def first_write(head: bytes, content: bytes | AsyncIterable[bytes]) -> tuple[bytes, AsyncIterable[bytes] | None]:
    """The head, with a short body, and the rest of the body."""
    if not isinstance(content, bytes):
        return head, content
    return (head + content, None) if len(content) <= _SLICE else (head, _Slices(content))


class _Slices:
    """A long body in slices: a transport may copy unsent data."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), _SLICE):
            yield self._body[start : start + _SLICE]
