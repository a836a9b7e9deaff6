"""
How requests to an MCP server go out: the guard's rules, for `httpx2`, which is what the MCP SDK asks with.

`exchange` is the variable by which a call learns the HTTP status of its own request: the SDK tells it no more than that
there was an error, but sends each message in the context of whoever wrote it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

import httpcore2
import httpx2

from app.tools.guard import GuardedNetwork, OutboundRefused, Reach, Resolver, bounded, plain_headers, resolve, tls

MAX_RESULT_BYTES = 32 * 1024 * 1024  # of one document, or of one event of a stream
_MAX_STREAM_BYTES = 8 * MAX_RESULT_BYTES  # of a whole event stream


@dataclass
class Exchange:
    """What came of the requests that one call made."""

    status: int | None = None  # of the last one that was not answered with 2xx
    on_refusal: Callable[[], None] | None = None  # called when there is one


exchange: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


class ResponseTooLarge(httpx2.StreamError):
    """A response is larger than it may be. The SDK takes it for one that cannot be read, and goes on."""


def http_client(
    url: str, headers: Mapping[str, str], reach: Reach, *, seconds: float, resolver: Resolver = resolve
) -> httpx2.AsyncClient:
    """Return a client for the one server at a URL; a response may be silent for so many seconds."""
    return httpx2.AsyncClient(
        transport=_GuardedTransport(httpx2.URL(url), reach, resolver),
        headers=dict(headers),
        timeout=httpx2.Timeout(seconds),
        trust_env=False,
    )


class _GuardedTransport(httpx2.AsyncBaseTransport):
    """Asks one origin alone, at addresses that were checked, and bounds what comes back."""

    def __init__(self, url: httpx2.URL, reach: Reach, resolver: Resolver) -> None:
        self._origin = (url.scheme, url.host, url.port)
        network = GuardedNetwork(reach, library=httpcore2, resolver=resolver)
        self._http = httpx2.AsyncHTTPTransport(verify=tls(), trust_env=False)
        self._http._pool = httpcore2.AsyncConnectionPool(ssl_context=tls(), network_backend=network)  # type: ignore[arg-type]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and note a status that says that it was refused."""
        if (request.url.scheme, request.url.host, request.url.port) != self._origin:
            raise OutboundRefused("The MCP server leads to another server, which is not asked.")
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
        """Close every connection."""
        await self._http.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        encoding = self._response.headers.get("content-encoding", "").strip().lower()
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        return bounded(self._response.stream, encoding, self._max_bytes, ResponseTooLarge)

    async def aclose(self) -> None:
        await self._response.aclose()
