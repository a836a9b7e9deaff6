"""
What uvicorn does with an HTTP connection, but for three things: it would take any amount of a request's head or of its
trailers; it would wait for them for ever; and an offer of another protocol, HTTP/2 as a rule, would cost the body.

    uvicorn.run(..., http="app.api.uvicorn.http:Http")
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.api.errors import answer
from app.api.uvicorn import shutdown as stopping
from app.errors import APIError, InvalidRequest

MAX_HEAD_BYTES = 64 * 1024  # bytes of a head, with the request line; clients of ours send some hundreds
HEAD_TIMEOUT = 30.0  # seconds for all of it to come, counted from the connection on for the first
REFUSAL_LINGER = 1.0  # seconds in which what else a refused client sends is thrown away
SEND_TIMEOUT = (
    60  # seconds in which a client has to take in what it is sent; then it is not there, or wants nothing more
)
SHUTDOWN_HEAD_TIMEOUT = (
    1.0  # seconds in which the head of a request may still come to its end when the server is stopped
)

_TOO_LARGE = InvalidRequest(
    f"The head of the request is larger than {MAX_HEAD_BYTES} bytes.",
    code="request_header_fields_too_large",
    status=431,
)
_INVALID = InvalidRequest("This is not a request of HTTP/1.1.", code="invalid_http")
_NO_WEBSOCKET = InvalidRequest("A WebSocket begins with GET.", code="invalid_http")
_STOPPING = APIError("The server is being stopped.", status=503, retry_after=1)


class Refused(Exception):
    """The head of a request is not one to go on from."""


class Http(HttpToolsProtocol):
    """One HTTP connection."""

    unread = SEND_TIMEOUT
    _in_message = False  # has a request begun that is not here as a whole?
    _frame = 0  # bytes of a head, of trailers, of whatever is no body: since there was a body, or a request began
    _declined = False  # does the request that has just come offer to go on in a protocol that is not ours?
    _refused = False
    _stopping = False
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _watch(transport.get_extra_info("socket"), self.unread)
        self._close_after(HEAD_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; give up a client whose head is too large, or does not come to its end."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._frame += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(_INVALID)
        if self._frame > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        if self.transport.get_protocol() is not self:  # but a WebSocket
            self._stop_waiting()
        elif not self._refused and not self.transport.is_closing():
            self._wait()

    def _feed(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # "A server MAY ignore a received Upgrade header field" (RFC 9110, 7.8), but this parser would not: for
                # it the request ends here, without its body. So it is read once more, without the offer.
                data = memoryview(data)[offer.args[0] :]
                self._read_again()

    def _read_again(self) -> None:
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self._declined = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the one before, by uvicorn
        self.parser.feed_data(b"\r\n".join([line, *fields, b"", b""]))

    def _wait(self) -> None:
        """See to it that nobody has this connection for ever who does not get an answer."""
        if self.cycle and not self.cycle.response_complete:
            self._stop_waiting()
        elif self.cycle is None or self._in_message:
            if self._waiting is None:
                self._close_after(HEAD_TIMEOUT)
        else:
            self._stop_waiting()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        self._in_message = True
        self._frame = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        elif self.parser.should_upgrade():
            if not self._should_upgrade():
                self._declined = self.parser.get_method() != b"CONNECT"  # which is no offer
            elif self.parser.get_method() != b"GET":
                self._refuse(_NO_WEBSOCKET)
            elif self._stopping:
                self._refuse(_STOPPING)
        if self._refused:
            raise Refused  # so that the parser stops
        if self._declined:
            return
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False
        if not self.parser.should_upgrade():
            self.headers = []  # for the trailers, which are no headers

    def on_body(self, body: bytes) -> None:
        self._frame = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._declined:
            self._in_message = False
            super().on_message_complete()

    def shutdown(self) -> None:
        """Close once all is answered; also what may be on its way, on a connection that was made a moment ago."""
        stopping.begin_shutdown(self.app_state)
        asking = self.cycle is None or (self._in_message and self.cycle.response_complete)
        if self._refused or not asking:
            super().shutdown()
            return
        self._stopping = True
        self._stop_waiting()
        self._close_after(SHUTDOWN_HEAD_TIMEOUT)

    def _refuse(self, error: APIError) -> None:
        """End the connection: with a reason, or behind the answer that is under way, if that can still be."""
        if self._refused:
            return
        self._refused = True
        self.logger.warning("%s", error.message)
        self._stop_waiting()
        if self.cycle and not (self.cycle.response_complete or self.cycle.more_body):
            self.cycle.keep_alive = False  # the request before is whole, and is answered
            return
        if (self.cycle and not self.cycle.response_complete) or not self.transport.can_write_eof():
            self.transport.close()
            return
        # Whoever is still sending would see a reset, and not the answer, if the connection were closed at once.
        self.transport.write(_encoded(error))
        self.transport.write_eof()
        self._close_after(REFUSAL_LINGER)

    def _close_after(self, seconds: float) -> None:
        self._waiting = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None


def _watch(connection: socket.socket, unread: int) -> None:
    """
    Have the system break off a connection whose client is gone without a word, or takes nothing in for so long.

    Else it, and the backend that answers it, would be held for ever by a client that does not read, and for a quarter
    of an hour by one that was unplugged.
    """
    with contextlib.suppress(AttributeError, OSError):  # not all systems can do it, nor all sockets
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, unread)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, unread // 4))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread * 1000)


def _encoded(error: APIError) -> bytes:
    response = answer(error)
    headers = [*response.raw_headers, (b"connection", b"close")]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[error.status] + head + b"\r\n" + bytes(response.body)
