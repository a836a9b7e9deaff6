"""The part of HTTP/1.1 that the benchmark needs, for both ends."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
LAST_CHUNK = b"0\r\n\r\n"


class Message:
    """A request or an answer, as it comes in."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._body_at = -1
        self._length: int | None = None

    def feed(self, data: bytes) -> bool:
        """Add received bytes; returns whether the message is complete."""
        self._received += data
        if self._body_at < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._body_at = end + 4
            length = _LENGTH.search(self.head)
            if not _CHUNKED.search(self.head):
                self._length = int(length[1]) if length else 0
        if self._length is None:
            return self._received.endswith(b"\r\n" + LAST_CHUNK)
        return len(self._received) >= self._body_at + self._length

    @property
    def head(self) -> bytes:
        return bytes(self._received[: self._body_at])

    @property
    def line(self) -> bytes:
        """The request line or the status line."""
        return self.head.partition(b"\r\n")[0]

    @property
    def body(self) -> bytes:
        body = bytes(self._received[self._body_at :])
        return b"".join(_chunks(body)) if self._length is None else body


def _chunks(body: bytes) -> Iterator[bytes]:
    at = 0
    while size := int(body[at : (end := body.index(b"\r\n", at))].partition(b";")[0], 16):
        yield body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


def chunk(data: bytes) -> bytes:
    """Return a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """Return a request."""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


def whole(body: bytes, status: str = "200 OK") -> bytes:
    """Return a JSON answer."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
