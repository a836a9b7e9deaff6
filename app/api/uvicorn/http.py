"""
uvicorn's HTTP protocol with these changes:

- Headers and trailers are limited in size and time.
- A request that offers an upgrade to another protocol, usually HTTP/2, keeps its body.
- Connection loss is reported, and streams are written, without a task: see `DisconnectWatch` and `BodyWriter`.

    uvicorn.run(..., http="app.api.uvicorn.http:HTTPProtocol")
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable
from operator import itemgetter

import httptools
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from app.api.errors import error_response
from app.api.uvicorn import PEER_KEY
from app.api.uvicorn.disconnect import CONNECTION_KEY
from app.api.uvicorn.shutdown import begin_shutdown
from app.core.bounded_json import LARGE
from app.errors import APIError, InvalidRequest
from app.runtime.tasks import let_others_run

MAX_HEAD_BYTES = 64 * 1024  # request line and headers; clients send a few hundred
HEAD_TIMEOUT = 30.0  # seconds until the first request's headers are complete
REFUSAL_LINGER = 1.0  # seconds for discarding a rejected client's further data
SEND_TIMEOUT = 60  # seconds without acknowledging sent data until a client counts as gone
SHUTDOWN_IDLE_TIMEOUT = 0.25  # seconds for a new request on an idle connection
SHUTDOWN_HEAD_TIMEOUT = 1.0  # seconds to complete partial headers


class HTTPProtocol(HttpToolsProtocol):
    unread = SEND_TIMEOUT
    _in_message = False  # a request was partly received
    _head_bytes = 0  # received bytes of the current headers or trailers
    _declined = False  # the current request's upgrade offer is declined
    _refused = False
    _stopping = False
    _on_loss: Callable[[], None] | None = None  # called when the connection is lost
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, PEER_KEY: self.client}
        _set_timeouts(transport.get_extra_info("socket"), self.unread)
        self._close_after(HEAD_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)
        if self._on_loss:
            self._on_loss()

    # For `DisconnectWatch`, and as a `BodyWriter`.

    def watch(self, on_loss: Callable[[], None]) -> bool:
        """Return False if the connection does not report its loss."""
        if self._on_loss or self.cycle.disconnected or self.cycle.more_body:
            return False
        self.flow.resume_reading()  # paused after a large body, it would not notice a disconnect
        self._on_loss = on_loss
        return True

    def unwatch(self, on_loss: Callable[[], None]) -> None:
        if self._on_loss == on_loss:
            self._on_loss = None

    def write(self, data: bytes) -> bool:
        """Write without waiting; return False if `drain` must be awaited before the next write."""
        if data and not self.transport.is_closing():  # an empty chunk would end the body
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not self.flow.write_paused

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        await self.flow.drain()

    # Called by the event loop and the parser.

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(InvalidRequest("The request is not valid HTTP/1.1.", code="invalid_http"))
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        if self.transport.get_protocol() is not self:  # upgraded to a WebSocket
            self._cancel_timer()
        elif not self._refused and not self.transport.is_closing():
            self._update_timer()

    def _feed(self, data: bytes | memoryview) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                # "A server MAY ignore a received Upgrade header field" (RFC 9110, 7.8), but httptools ends the request
                # here, without its body, so the headers are parsed again without the field.
                data = memoryview(data)[upgrade.args[0] :]
                self._parse_without_upgrade()

    def _parse_without_upgrade(self) -> None:
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        fields = [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self._declined = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
        self.parser.feed_data(b"\r\n".join([line, *fields, b"", b""]))

    def _update_timer(self) -> None:
        """Limit the time for incomplete headers or, between requests, uvicorn's keep-alive."""
        if self.cycle and not self.cycle.response_complete:
            self._cancel_timer()
        elif self.cycle is None or self._in_message:
            if self._timer is None:
                self._close_after(HEAD_TIMEOUT)
        else:
            self._cancel_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        self._in_message = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(map(len, itertools.chain.from_iterable(self.headers))) > MAX_HEAD_BYTES:
            self._refuse(_head_too_large())
        elif self.parser.should_upgrade():
            if not self._should_upgrade():
                self._declined = self.parser.get_method() != b"CONNECT"  # CONNECT does not offer an upgrade
            elif self.parser.get_method() != b"GET":
                self._refuse(InvalidRequest("A WebSocket handshake must use GET.", code="invalid_http"))
            elif self._stopping:
                self._refuse(APIError("The server is shutting down.", status=503, retry_after=1))
        if self._refused:
            raise httptools.HttpParserError  # stops the parser
        if self._declined:
            return
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False
        if not self.parser.should_upgrade():
            self.headers = []  # trailers are collected separately
            self.scope["state"][CONNECTION_KEY] = self

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        super()._start_asgi_task(cycle, lambda scope, receive, send: app(scope, receive, ResponseWriter(cycle).send))

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._declined:
            self._in_message = False
            super().on_message_complete()

    def shutdown(self) -> None:
        """
        Close after the current response, or after the response to a request that may be arriving.

        A proxy can send a request before it notices the connection's end. After a reset it would answer 502, because a
        POST may not be repeatable.
        """
        begin_shutdown(self.app_state)
        if self._refused or (self.cycle and not self.cycle.response_complete):
            super().shutdown()
            return
        self._stopping = True
        self._cancel_timer()
        self._unset_keepalive_if_required()
        idle = self.cycle is not None and not self._in_message
        self._close_after(SHUTDOWN_IDLE_TIMEOUT if idle else SHUTDOWN_HEAD_TIMEOUT)

    def _refuse(self, error: APIError) -> None:
        """Send an error and close; during a response, close after it or at once."""
        if self._refused:
            return
        self._refused = True
        self.logger.warning("HTTP request rejected", extra={"reason": error.message})
        self._cancel_timer()
        if self.cycle and not (self.cycle.response_complete or self.cycle.more_body):
            return  # the previous request still gets its response
        if (self.cycle and not self.cycle.response_complete) or not self.transport.can_write_eof():
            self.transport.close()
            return
        response = error_response(error)
        headers = [*response.raw_headers, (b"connection", b"close")]
        head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + bytes(response.body))
        self._close_with_linger()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refused and self.cycle.response_complete and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._close_with_linger()

    def _close_with_linger(self) -> None:
        """Close after a delay: unread data would cause a reset before the client has read the response."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._close_after(REFUSAL_LINGER)
        else:
            self.transport.close()

    def _close_after(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


def _head_too_large() -> InvalidRequest:
    return InvalidRequest(
        f"The request line and headers must be at most {MAX_HEAD_BYTES} bytes.",
        code="request_header_fields_too_large",
        status=431,
    )


def _set_timeouts(connection: socket.socket, unread: int) -> None:
    """
    The kernel drops a connection after `unread` seconds without an acknowledgement.

    Otherwise a client that does not read would hold this connection and the backend's indefinitely, and an unplugged
    client for a quarter of an hour.
    """
    with contextlib.suppress(AttributeError, OSError):  # not supported by all systems and sockets
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, unread)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, unread // 4))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread * 1000)


_NO_BODY = frozenset({204, 304})  # statuses
_NAME, _VALUE = itemgetter(0), itemgetter(1)

# The bytes that uvicorn's expressions find; `translate` is several times faster than a search.
_NOT_IN_NAMES, _NOT_IN_VALUES = (
    bytes(byte for byte in range(256) if invalid.match(bytes([byte]))) for invalid in (HEADER_RE, HEADER_VALUE_RE)
)


class ResponseWriter:
    """
    Replaces uvicorn's `send`: sends the headers together with the body's first part if its length is known.

    ASGI allows a server to keep the headers until then.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._head = b""  # written with the first part of the body

    async def send(self, message: ASGISendEvent) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.body" and len(message.get("body", b"")) > LARGE:
            await let_others_run()  # asyncio copies the body
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start" and not cycle.response_started:
            self._begin(message["status"], [*cycle.default_headers, *message.get("headers", ())])
        elif message["type"] == "http.response.body" and cycle.response_started and not cycle.response_complete:
            self._write(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}'.")

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        cycle = self._cycle
        names, values = b"".join(map(_NAME, headers)), b"".join(map(_VALUE, headers))
        if names != names.translate(None, _NOT_IN_NAMES):
            raise RuntimeError("Invalid HTTP header name.")
        if values != values.translate(None, _NOT_IN_VALUES):
            raise RuntimeError("Invalid HTTP header value.")
        fields = dict(headers)
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        if b"connection" in fields and b"close" in fields[b"connection"].lower().replace(b" ", b"").split(b","):
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            headers.append((b"connection", b"close"))
        if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
            cycle.chunked_encoding = True
        elif length := fields.get(b"content-length"):
            cycle.chunked_encoding = False
            cycle.expected_content_length = int(length)
        elif cycle.scope["method"] != "HEAD" and status not in _NO_BODY:
            cycle.chunked_encoding = True
            headers.append((b"transfer-encoding", b"chunked"))
        head = b"%b%b\r\n\r\n" % (STATUS_LINE[status], b"\r\n".join(map(b": ".join, headers)))
        if cycle.expected_content_length:
            self._head = head
        else:
            cycle.transport.write(head)

    def _write(self, body: bytes, *, more: bool) -> None:
        cycle = self._cycle
        head, self._head = self._head, b""
        if cycle.scope["method"] == "HEAD":
            cycle.expected_content_length = 0
            body = b""
        elif cycle.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        else:
            cycle.expected_content_length -= len(body)
            if cycle.expected_content_length < 0:
                raise RuntimeError("Response content longer than Content-Length")
        if head or body:
            cycle.transport.writelines((head, body))
        if not more:
            if cycle.expected_content_length:
                raise RuntimeError("Response content shorter than Content-Length")
            cycle.response_complete = True
            cycle.message_event.set()
            if not cycle.keep_alive:
                cycle.transport.close()
            cycle.on_response()
