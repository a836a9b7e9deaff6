"""An `httpx` transport for long streams: pooled HTTP/1.1, much cheaper than `httpx`'s own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, Mapping
from contextvars import Context
from itertools import zip_longest
from socket import SOCK_STREAM
from typing import TypeAlias
from urllib.request import getproxies, proxy_bypass

import httpx

from app.backends.transport.connection import (
    DEFAULT_PORTS,
    HTTPConnection,
    Origin,
    Reply,
    RequestTarget,
    Stale,
    chunked,
    encoded_headers,
)
from app.backends.transport.httpx_transport import HTTPXReply, HTTPXTransport

HTTPReply: TypeAlias = Reply | HTTPXReply

_NEXT_ADDRESS = 0.25  # seconds until the next address is also tried (RFC 8305, section 5)


class HTTPToolsTransport(httpx.AsyncBaseTransport):
    """
    For `httpx.AsyncClient(transport=...)`.

    `verify` and `trust_env` are as in `httpx`. The response extension `stream` is the reply, cheaper to iterate than
    `response.aiter_raw()`. Requests through a proxy use `httpx`'s own transport, without it.
    """

    def __init__(
        self,
        *,
        verify: ssl.SSLContext | bool = True,
        trust_env: bool = True,
        max_idle: int = 256,
        idle_seconds: float = 30,
    ) -> None:
        """Open connections are not limited: streams last minutes, and concurrency is limited elsewhere."""
        self._verify = verify
        self._trust_env = trust_env
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._ssl: ssl.SSLContext | None = None
        self._proxies = getproxies() if trust_env else {}
        self._proxied: dict[str, HTTPXTransport] = {}
        self._idle: list[HTTPConnection] = []  # most recently used last
        self._open: set[HTTPConnection] = set()  # idle or in use
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises `httpx.TransportError`."""
        if self._proxies and (proxy := self._proxy_for(request.url)):
            return await proxy.handle_async_request(request)
        target, headers = RequestTarget(request.method, request.url), encoded_headers(request.headers.raw)
        stream = request.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        content = b"".join(stream) if isinstance(stream, httpx.ByteStream) else stream
        reply = await self.send(target, headers, content, request.extensions.get("timeout", {}))
        return reply.response()

    async def send(
        self,
        target: RequestTarget,
        headers: bytes,
        content: bytes | AsyncIterable[bytes],
        timeouts: Mapping[str, float | None],
    ) -> HTTPReply:
        """
        Return after the reply's headers; raises `httpx.TransportError`.

        `headers` is from `encoded_headers`, with the body's length or transfer coding; `timeouts` are `httpx`'s. If a
        reused connection has just been closed, the request is sent again on a new connection.
        """
        if self._proxies and (proxy := self._proxy_for(target.url)):
            return await proxy.send(target, headers, content, timeouts)
        head = b"%b%b\r\n" % (target.encoded, headers)
        bodiless = target.method == "HEAD"
        if isinstance(content, bytes):
            if idle := self._pop_idle(target.origin):
                try:  # faster than `suppress`
                    return await idle.send(head, content, timeouts, bodiless=bodiless)
                except Stale:
                    pass
        # A generated body can be sent only once, so it needs a new connection.
        elif b"\r\ntransfer-encoding: chunked" in head.lower():
            content = chunked(content)
        connection = await self._connect(target.origin, timeouts.get("connect"))
        return await connection.send(head, content, timeouts, bodiless=bodiless)

    async def aclose(self) -> None:
        self._closed = True
        if self._expiry:
            self._expiry.cancel()
        connections = list(self._open)
        for connection in connections:
            connection.abort(httpx.ReadError("The connection was closed by this server."))
        if connections:
            await asyncio.wait([connection.gone for connection in connections])
        for proxied in self._proxied.values():
            await proxied.aclose()

    def _pop_idle(self, origin: Origin) -> HTTPConnection | None:
        """The most recently used connection: the least likely to be closed."""
        for connection in reversed(self._idle):
            if connection.origin == origin and connection.usable:
                self._idle.remove(connection)
                return connection
        return None

    async def _connect(self, origin: Origin, seconds: float | None) -> HTTPConnection:
        if origin.scheme not in DEFAULT_PORTS:
            raise httpx.UnsupportedProtocol(f"Invalid URL scheme: must be 'http' or 'https', not {origin.scheme!r}.")
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connect_to_any_address(origin)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("The server did not accept a connection in time.") from error
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(str(error)) from error
        if self._closed:
            connection.abort()
            raise httpx.ConnectError("The transport has been closed.")
        return connection

    async def _connect_to_any_address(self, origin: Origin) -> HTTPConnection:
        """
        Connect to a host's addresses, alternating between families, until one succeeds; raises the first error.

        The next address is tried after a failure or a delay (RFC 8305). Not all event loops support this.
        """
        loop = asyncio.get_running_loop()
        families: dict[int, list[str]] = {}
        for family, _, _, _, address in await loop.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM):
            families.setdefault(family, []).append(str(address[0]))
        addresses = [address for row in zip_longest(*families.values()) for address in row if address]
        attempts: set[asyncio.Task[HTTPConnection]] = set()
        errors = []
        try:
            while addresses or attempts:
                if addresses:
                    # Later requests' reads run in this context, so it contains nothing from the first request.
                    attempts.add(
                        loop.create_task(self._connect_to_address(origin, addresses.pop(0)), context=Context())
                    )
                wait = _NEXT_ADDRESS if addresses else None
                done, _ = await asyncio.wait(attempts, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                for attempt in done:
                    attempts.remove(attempt)
                    if error := attempt.exception():
                        errors.append(error)
                    else:
                        return attempt.result()
            raise errors[0]
        finally:
            # Not awaited: a cancellation during the wait would lose the connection.
            for attempt in attempts:
                attempt.add_done_callback(_abort_result)
                attempt.cancel()

    async def _connect_to_address(self, origin: Origin, address: str) -> HTTPConnection:
        encrypted = origin.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HTTPConnection(origin, self),
            address,
            origin.port,
            ssl=self._ssl_context() if encrypted else None,
            server_hostname=origin.host if encrypted else None,
        )
        # Not earlier: uvloop does not notify a connection closed after cancelled creation.
        if not connection.gone.done():
            self._open.add(connection)
        return connection

    def _ssl_context(self) -> ssl.SSLContext:
        if self._ssl is None:
            self._ssl = httpx.create_ssl_context(verify=self._verify, trust_env=self._trust_env)
            self._ssl.set_alpn_protocols(["http/1.1"])
        return self._ssl

    def _proxy_for(self, url: httpx.URL) -> HTTPXTransport | None:
        address = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not address or proxy_bypass(url.netloc.decode("ascii")):
            return None
        if address not in self._proxied:
            proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
            limits = httpx.Limits(max_keepalive_connections=self._max_idle, keepalive_expiry=self._idle_seconds)
            transport = httpx.AsyncHTTPTransport(verify=self._ssl_context(), proxy=proxy, limits=limits)
            self._proxied[address] = HTTPXTransport(transport)
        return self._proxied[address]

    # Called by connections.

    def keep(self, connection: HTTPConnection) -> None:
        """Keep a reusable connection for later requests."""
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        if len(self._idle) > self._max_idle:
            self._idle.pop(0).abort()
        if self._expiry is None:
            self._close_expired()

    def closed(self, connection: HTTPConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_expired(self) -> None:
        self._expiry = None
        seconds, loop = self._idle_seconds, asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since + seconds <= loop.time() + 0.001:
            self._idle.pop(0).abort()
        if self._idle:
            self._expiry = loop.call_at(self._idle[0].idle_since + seconds, self._close_expired)


def _abort_result(attempt: asyncio.Task[HTTPConnection]) -> None:
    if not attempt.cancelled() and not attempt.exception():
        attempt.result().abort()
