"""
HTTP client for MCP servers: the guard's rules for `httpx2`, which the MCP SDK uses.

The SDK only reports that a call failed, but sends each message in the caller's context, so `current_call` records the
HTTP status.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import httpcore2
import httpx2

from app.tools.guard import BoundedBody, GuardedNetwork, OutboundRefused, plain_headers, tls
from app.tools.mcp.server import ServerAddress

MAX_RESULT_BYTES = 32 * 1024 * 1024  # per document, or per event in a stream
_MAX_STREAM_BYTES = 8 * MAX_RESULT_BYTES


@dataclass
class CallStatus:
    status: int | None = None  # last status of 300 or above
    on_refusal: Callable[[], None] | None = None  # called if a POST receives such a status


current_call: ContextVar[CallStatus | None] = ContextVar("current_call", default=None)


class ResponseTooLarge(httpx2.StreamError):
    """The SDK treats the response as unreadable, and continues."""


def http_client(address: ServerAddress, *, seconds: float) -> httpx2.AsyncClient:
    """Restricted to a server's origin; `seconds` limits each step, for example a read."""
    return httpx2.AsyncClient(
        transport=_GuardedTransport(address),
        headers=dict(address.headers),
        timeout=httpx2.Timeout(seconds),
        trust_env=False,
    )


class _GuardedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, address: ServerAddress) -> None:
        url = httpx2.URL(address.url)
        self._origin = (url.scheme, url.host, url.port)
        self._check = address.check
        network = GuardedNetwork(address.policy, library=httpcore2, resolver=address.resolver)
        self._http = httpx2.AsyncHTTPTransport(verify=tls(), trust_env=False)
        self._http._pool = httpcore2.AsyncConnectionPool(ssl_context=tls(), network_backend=network)  # type: ignore[arg-type]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if (request.url.scheme, request.url.host, request.url.port) != self._origin:
            raise OutboundRefused("The MCP server refers to another origin, which is not allowed.")
        self._check(str(request.url))  # the SDK follows redirects to the same origin
        request.headers["accept-encoding"] = "identity"
        response = await self._http.handle_async_request(request)
        current = current_call.get()
        if response.status_code >= 300 and current is not None:
            current.status = response.status_code
            if current.on_refusal and request.method == "POST":
                current.on_refusal()
        streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        return httpx2.Response(
            response.status_code,
            headers=plain_headers(response.headers.multi_items()),
            stream=_Body(response, _MAX_STREAM_BYTES if streamed else MAX_RESULT_BYTES),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._http.aclose()


class _Body(BoundedBody, httpx2.AsyncByteStream):
    _too_large = ResponseTooLarge
