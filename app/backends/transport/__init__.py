"""An `httpx` transport for long streams: pooled HTTP/1.1, much cheaper than `httpx`'s own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from functools import cached_property
from itertools import zip_longest
from socket import SOCK_STREAM
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

from app.backends.transport.connection import HTTPConnection, Origin, Reply, Stale

# Unlimited connections: streams last minutes, and concurrency is limited elsewhere.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30)

_SLICE = 1024 * 1024  # bytes per body write
_PORTS = {"http": 80, "https": 443}
_NEXT_ADDRESS = 0.25  # seconds until the next address is also tried (RFC 8305, section 5)


class HTTPToolsTransport(httpx.AsyncBaseTransport):
    """
    A transport for `httpx.AsyncClient(transport=...)`.

    `verify` and `trust_env` are as in `httpx`. Responses have these extensions:

    - `stream`: the body, cheaper to iterate than `response.aiter_raw()`; `stream.wait_at_most` changes the read
      timeout;
    - `linger`: call it, with a number of seconds, before closing a response with an unfinished HTTP body, to reuse the
      connection if the body ends in time.

    Requests through a proxy use `httpx`'s own transport, without these extensions.
    """

    def __init__(
        self, *, verify: ssl.SSLContext | bool = True, trust_env: bool = True, limits: httpx.Limits = LIMITS
    ) -> None:
        self._verify = verify
        self._trust_env = trust_env
        self._limits = limits
        self._ssl: ssl.SSLContext | None = None
        self._proxies = getproxies() if trust_env else {}
        self._proxied: dict[str, httpx.AsyncHTTPTransport] = {}
        self._idle: list[HTTPConnection] = []  # most recently used last
        self._open: set[HTTPConnection] = set()  # idle or in use
        self._slots = asyncio.Semaphore(limits.max_connections) if limits.max_connections else None
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """
        Send a request, and return after the response headers; raises `httpx.TransportError`.

        If a reused connection has just been closed, the request is sent again on a new connection.
        """
        url = request.url
        if self._proxies and (proxy := self._proxy_for(url)):
            return await proxy.handle_async_request(request)
        if url.scheme not in _PORTS:
            raise httpx.UnsupportedProtocol(f"Invalid URL scheme: must be 'http' or 'https', not {url.scheme!r}.")
        origin = Origin(url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
        message, more = _encode(request)
        timeouts = request.extensions.get("timeout", {})
        try:
            # A generated body can be sent only once, so it needs a new connection.
            generated = more is not None and not isinstance(more, _Slices)
            connection = await self._connection_to(origin, timeouts, fresh=generated)
            reply = await connection.send(request.method, message, more, timeouts)
        except Stale:
            connection = await self._connection_to(origin, timeouts, fresh=True)
            reply = await connection.send(request.method, message, more, timeouts)
        return httpx.Response(reply.status, headers=reply.headers, stream=reply, extensions=_extensions(reply))

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

    async def _connection_to(self, origin: Origin, timeouts: dict[str, float | None], *, fresh: bool) -> HTTPConnection:
        """Return a connection; `released` frees its slot."""
        if self._slots:
            try:
                async with asyncio.timeout(timeouts.get("pool")):
                    await self._slots.acquire()
            except TimeoutError as error:
                raise httpx.PoolTimeout("All connections are in use.") from error
        try:
            return (None if fresh else self._take(origin)) or await self._connect(origin, timeouts.get("connect"))
        except BaseException:
            if self._slots:
                self._slots.release()
            raise

    def _take(self, origin: Origin) -> HTTPConnection | None:
        """Return the most recently used connection: the least likely to be closed."""
        for connection in reversed(self._idle):
            if connection.origin == origin and connection.usable:
                self._idle.remove(connection)
                return connection
        return None

    async def _connect(self, origin: Origin, seconds: float | None) -> HTTPConnection:
        limit = self._limits.max_connections
        if limit and len(self._open) >= limit and self._idle:
            self._idle.pop(0).abort()
        try:
            async with asyncio.timeout(seconds):
                connection = await self._reach(origin)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("The server did not accept a connection in time.") from error
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(str(error)) from error
        if self._closed:
            connection.abort()
            raise httpx.ConnectError("The transport has been closed.")
        return connection

    async def _reach(self, origin: Origin) -> HTTPConnection:
        """
        Connect to a host's addresses in order; return the first connection, or raise the first error.

        The next address, preferably from the other family, is tried after a failure or a delay (RFC 8305). Not all
        event loops support this.
        """
        loop = asyncio.get_running_loop()
        addresses = _in_turn(await loop.getaddrinfo(origin.host, origin.port, type=SOCK_STREAM))
        attempts: set[asyncio.Task[HTTPConnection]] = set()
        errors = []
        try:
            while addresses or attempts:
                if addresses:
                    attempts.add(loop.create_task(self._dial(origin, addresses.pop(0))))
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

    async def _dial(self, origin: Origin, address: str) -> HTTPConnection:
        encrypted = origin.scheme == "https"
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: HTTPConnection(origin, self),
            address,
            origin.port,
            ssl=self._context() if encrypted else None,
            server_hostname=origin.host if encrypted else None,
        )
        # Not earlier: uvloop does not notify a connection closed after cancelled creation.
        if not connection.gone.done():
            self._open.add(connection)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._ssl is None:
            self._ssl = httpx.create_ssl_context(verify=self._verify, trust_env=self._trust_env)
            self._ssl.set_alpn_protocols(["http/1.1"])
        return self._ssl

    def _proxy_for(self, url: httpx.URL) -> httpx.AsyncHTTPTransport | None:
        address = self._proxies.get(url.scheme) or self._proxies.get("all")
        if not address or proxy_bypass(url.netloc.decode("ascii")):
            return None
        if address not in self._proxied:
            proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
            self._proxied[address] = httpx.AsyncHTTPTransport(verify=self._context(), proxy=proxy, limits=self._limits)
        return self._proxied[address]

    # Called by connections.

    def released(self, connection: HTTPConnection, *, reusable: bool) -> None:
        """Free a connection's slot, and reuse the connection if possible."""
        if self._slots:
            self._slots.release()
        if not reusable:
            return
        connection.idle_since = connection.loop.time()
        self._idle.append(connection)
        limit = self._limits.max_keepalive_connections
        if limit is not None and len(self._idle) > limit:
            self._idle.pop(0).abort()
        if self._expiry is None:
            self._close_expired()

    def closed(self, connection: HTTPConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _close_expired(self) -> None:
        self._expiry = None
        seconds = self._limits.keepalive_expiry
        if seconds is None:
            return
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since + seconds <= loop.time() + 0.001:
            self._idle.pop(0).abort()
        if self._idle:
            self._expiry = loop.call_at(self._idle[0].idle_since + seconds, self._close_expired)


class PreparedRequest(httpx.Request):
    """A request with shared, encoded headers and a body in memory."""

    def __init__(
        self, method: str, url: httpx.URL, lines: bytes, content: bytes, extensions: Mapping[str, object]
    ) -> None:
        """`lines`: from `encoded_headers`. httpx's own initialization would copy, merge and encode headers."""
        self.method = method
        self.url = url
        self.stream = httpx.ByteStream(content)
        self.extensions = {**extensions}
        self.lines = lines if not content else b"%bContent-Length: %d\r\n" % (lines, len(content))

    @cached_property
    def headers(self) -> httpx.Headers:  # type: ignore[override]
        """Headers, for other transports."""
        fields = [line.split(b": ", 1) for line in self.lines.split(b"\r\n") if line]
        return httpx.Headers([(name, value) for name, value in fields], encoding="utf-8")


def encoded_headers(headers: httpx.Headers) -> bytes:
    """Encode header lines; raises `httpx.LocalProtocolError` for a line break."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers.raw])
    if lines.count(b"\r") != len(headers.raw) or lines.count(b"\n") != len(headers.raw) or b"\0" in lines:
        raise httpx.LocalProtocolError("A header of the request contains a line break.")
    return lines


def _encode(request: httpx.Request) -> tuple[bytes, AsyncIterable[bytes] | None]:
    """Return the head, with a short body, and the rest of the body."""
    line = b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), request.url.raw_path)
    if len(line.split()) != 3:
        raise httpx.LocalProtocolError("The request line contains white space.")
    head = line + (request.lines if isinstance(request, PreparedRequest) else encoded_headers(request.headers))
    stream = request.stream
    if isinstance(stream, httpx.ByteStream):
        body = b"".join(stream)
        return (head + b"\r\n" + body, None) if len(body) <= _SLICE else (head + b"\r\n", _Slices(body))
    assert isinstance(stream, httpx.AsyncByteStream)
    return head + b"\r\n", _chunked(stream) if "transfer-encoding" in request.headers else stream


class _Slices:
    """A long body in slices: a transport may copy unsent data."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), _SLICE):
            yield self._body[start : start + _SLICE]


async def _chunked(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def _extensions(reply: Reply) -> dict[str, object]:
    return {
        "http_version": f"HTTP/{reply.version}".encode("ascii"),
        "reason_phrase": reply.reason,
        "stream": reply,
        "linger": reply.linger,
    }


def _abort_result(attempt: asyncio.Task[HTTPConnection]) -> None:
    if not attempt.cancelled() and not attempt.exception():
        attempt.result().abort()


def _in_turn(addresses: list[Any]) -> list[str]:
    """Alternate `getaddrinfo`'s addresses between families."""
    families: dict[int, list[str]] = {}
    for family, _, _, _, address in addresses:
        families.setdefault(family, []).append(address[0])
    return [address for row in zip_longest(*families.values()) for address in row if address]
