"""
What uvicorn does with an HTTP connection, but for the head of a request: of that it would take any amount, for ever,
and an offer of HTTP/2 in it would cost the body.

    uvicorn.run(..., http="app.api.uvicorn_http:Http")
"""

from __future__ import annotations

import asyncio
import re

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.errors import answer
from app.errors import APIError, InvalidRequest

MOST = 64 * 1024  # bytes of a head, with the request line; clients of ours send some hundreds
PATIENCE = 30.0  # seconds for all of it to come, counted from the connection on for the first
LINGER = 1.0  # seconds in which what else a refused client sends is thrown away

# Java's client offers to go on in HTTP/2, with every request. A server may ignore that, but the parser would not: for
# it the request ends here, without its body.
_OFFER = re.compile(rb"\r\nupgrade:[ \t]*h2c[ \t]*(?=\r\n)", re.IGNORECASE)

_TOO_LARGE = InvalidRequest(
    f"The head of the request is larger than {MOST} bytes.", code="request_header_fields_too_large", status=431
)
_NO_WEBSOCKET = InvalidRequest("A WebSocket begins with GET.", code="invalid_http")


class Refused(Exception):
    """The head of a request is not one to go on from."""


class Http(HttpToolsProtocol):
    """One HTTP connection."""

    _in_head = True  # is the head of a request still to come, or to be completed?
    _received = 0  # bytes of it
    _refused = False
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._close_after(PATIENCE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; give up a client whose head is too large, or does not come to its end."""
        if self._refused:
            return
        if self.cycle is None or not self.cycle.more_body:
            data = _without_offer(data)
        super().data_received(data)
        if self._refused:
            return
        if not self._in_head:
            self._stop_waiting()
            return
        self._received += len(data)
        if self._received > MOST:
            self._refuse(_TOO_LARGE)
        elif self._waiting is None:
            self._close_after(PATIENCE)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._received = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST:
            self._refuse(_TOO_LARGE)
        elif self.parser.should_upgrade() and self._should_upgrade() and self.parser.get_method() != b"GET":
            self._refuse(_NO_WEBSOCKET)
        if self._refused:
            raise Refused  # so that the parser stops
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """End the connection of a client that does not speak HTTP, or was just refused."""
        if not self._refused:
            self._refuse(InvalidRequest(msg, code="invalid_http"))

    def _refuse(self, error: APIError) -> None:
        self._refused = True
        self._stop_waiting()
        if (self.cycle and not self.cycle.response_complete) or not self.transport.can_write_eof():
            self.transport.close()
            return
        # Whoever is still sending would see a reset, and not the answer, if the connection were closed at once.
        self.transport.write(_encoded(error))
        self.transport.write_eof()
        self._close_after(LINGER)

    def _close_after(self, seconds: float) -> None:
        self._waiting = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None


def _without_offer(data: bytes) -> bytes:
    head, end, rest = data.partition(b"\r\n\r\n")
    return _OFFER.sub(b"", head + end, count=1) + rest


def _encoded(error: APIError) -> bytes:
    response = answer(error)
    headers = [*response.raw_headers, (b"connection", b"close")]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[error.status] + head + b"\r\n" + bytes(response.body)
