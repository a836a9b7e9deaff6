"""
The HTTP client for MCP servers: the guard's rules applied to `httpx2`, which the MCP SDK uses.

`exchange` is a context variable through which a call gets the HTTP status of its own request: the SDK reports only that
there was an error, but sends each message in the context of the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

import httpcore2
import httpx2

from app.tools.guard import BoundedBody, GuardedNetwork, OutboundRefused, plain_headers, tls
from app.tools.mcp.server import ServerAddress

MAX_RESULT_BYTES = 32 * 1024 * 1024  # of one document, or of one event of a stream
_MAX_STREAM_BYTES = 8 * MAX_RESULT_BYTES  # of a whole event stream


@dataclass
class Exchange:
    """The outcome of the HTTP requests of one call."""

    status: int | None = None  # of the last response with a status of 300 or more
    on_refusal: Callable[[], None] | None = None  # called when a POST gets such a response


exchange: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


class ResponseTooLarge(httpx2.StreamError):
    """A response exceeds the size limit. The SDK treats it as unreadable, and continues."""


def http_client(address: ServerAddress, *, seconds: float) -> httpx2.AsyncClient:
    """Return a client for the server at an address only; `seconds` is the timeout of each step, such as a read."""
    return httpx2.AsyncClient(
        transport=_GuardedTransport(address),
        headers=dict(address.headers),
        timeout=httpx2.Timeout(seconds),
        trust_env=False,
    )


class _GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to one origin only, at checked addresses, and limits the size of responses."""

    def __init__(self, address: ServerAddress) -> None:
        url = httpx2.URL(address.url)
        self._origin = (url.scheme, url.host, url.port)
        self._check = address.check
        network = GuardedNetwork(address.reach, library=httpcore2, resolver=address.resolver)
        self._http = httpx2.AsyncHTTPTransport(verify=tls(), trust_env=False)
        self._http._pool = httpcore2.AsyncConnectionPool(ssl_context=tls(), network_backend=network)  # type: ignore[arg-type]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and record a status of 300 or more in the current `Exchange`."""
        if (request.url.scheme, request.url.host, request.url.port) != self._origin:
            raise OutboundRefused("The MCP server refers to another origin, to which no request is sent.")
        self._check(str(request.url))  # the SDK follows redirects of the same origin
        request.headers["accept-encoding"] = "identity"
        response = await self._http.handle_async_request(request)
        current = exchange.get()
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
