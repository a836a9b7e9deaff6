"""
What uvicorn does with an HTTP connection, but for the head of a request: of that it would take any amount, for ever.

    uvicorn.run(..., http="app.api.uvicorn_http:Http")
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.errors import answer
from app.errors import APIError, InvalidRequest

MOST = 64 * 1024  # bytes of a head, with the request line; clients of ours send some hundreds
PATIENCE = 30.0  # seconds for all of it to come, counted from the connection on for the first


class HeadTooLarge(Exception):
    """The head of a request is larger than `MOST`."""


class Http(HttpToolsProtocol):
    """One HTTP connection."""

    _in_head = True  # is the head of a request still to come, or to be completed?
    _received = 0  # bytes of it
    _too_large = False
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting = self.loop.call_later(PATIENCE, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; give up a client whose head is too large, or does not come to its end."""
        super().data_received(data)
        if not self._in_head:
            self._stop_waiting()
            return
        self._received += len(data)
        if self._received > MOST:
            self._too_large = True
            self.send_400_response("")
        elif self._waiting is None:
            self._waiting = self.loop.call_later(PATIENCE, self.transport.close)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._received = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST:
            self._too_large = True
            raise HeadTooLarge  # the parser makes an error of it, which ends the connection
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """End the connection, and say why."""
        if self._too_large:
            message = f"The head of the request is larger than {MOST} bytes."
            error = InvalidRequest(message, code="request_header_fields_too_large", status=431)
        else:
            error = InvalidRequest(msg, code="invalid_http")
        self.transport.write(_encoded(error))
        self.transport.close()

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None


def _encoded(error: APIError) -> bytes:
    response = answer(error)
    headers = [*response.raw_headers, (b"connection", b"close")]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[error.status] + head + b"\r\n" + bytes(response.body)
