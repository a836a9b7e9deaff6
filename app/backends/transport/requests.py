"""Encode requests as HTTP/1.1 bytes."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import TypeAlias

import httpx

from app.backends.transport.connection import Origin

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
