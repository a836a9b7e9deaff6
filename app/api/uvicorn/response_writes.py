"""Writes the response to a request: a head with a known length and its body in a single write."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle

_NO_BODY = frozenset({204, 304})  # statuses


class ResponseWrites(RequestResponseCycle):
    """uvicorn's request in progress, with a faster `send`."""

    _head = b""  # written with the body, or at the end of this iteration of the event loop

    async def send(self, message: ASGISendEvent) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start" and not self.response_started:
            self._begin(message["status"], [*self.default_headers, *message.get("headers", ())])
        elif message["type"] == "http.response.body" and self.response_started and not self.response_complete:
            self._write(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"Unexpected ASGI message '{message['type']}'.")

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        fields = {name.lower(): value for name, value in headers}
        if HEADER_RE.search(b"".join(fields)):
            raise RuntimeError("Invalid HTTP header name.")
        if HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("Invalid HTTP header value.")
        self.response_started = True
        self.waiting_for_100_continue = False
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % header for header in headers]]
        if b"connection" in fields and b"close" in fields[b"connection"].lower().replace(b" ", b"").split(b","):
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
            self.chunked_encoding = True
        elif length := fields.get(b"content-length"):
            self.chunked_encoding = False
            self.expected_content_length = int(length)
        elif self.scope["method"] != "HEAD" and status not in _NO_BODY:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if self.expected_content_length:
            self._head = head
            asyncio.get_running_loop().call_soon(self._write_head)
        else:
            self.transport.write(head)

    def _write_head(self) -> None:
        """Write a head whose body has not followed at once."""
        if self._head and not self.transport.is_closing():
            self.transport.write(self._head)
            self._head = b""

    def _write(self, body: bytes, *, more: bool) -> None:
        head, self._head = self._head, b""
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("Response content longer than Content-Length")
        if head or body:
            self.transport.writelines((head, body))
        if not more:
            if self.expected_content_length:
                raise RuntimeError("Response content shorter than Content-Length")
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
