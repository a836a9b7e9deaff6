"""
Outbound requests to hosts chosen by a caller or a model, guarded against server-side request forgery (SSRF).

    patterns = [URLPattern.parse("https://*.example.com/*")]
    url = checked_url("https://mcp.example.com/mcp", allowed=patterns)
    async with httpx.AsyncClient(transport=GuardedTransport("public"), trust_env=False) as client: ...
    page = await fetch("https://example.com/")     # follows redirects and checks each hop

Each connection resolves the name once and checks all addresses, so DNS rebinding has no effect (TLS still verifies the
name).

`AddressPolicy` is the set of allowed addresses: "public" (globally routable), "private" (also private networks, but no
link-local addresses or metadata services), "any" (for hosts configured by the operator).
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import SOCK_STREAM, gaierror
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

import httpcore
import httpx

from app.core.charsets import codec_of, declared_charset
from app.core.http import parse_address
from app.tools import CallFailed

AddressPolicy: TypeAlias = Literal["public", "private", "any"]
Address: TypeAlias = IPv4Address | IPv6Address
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]  # (host, port) -> IP addresses

MAX_RESPONSE_BYTES = 2_000_000  # per page
MAX_SECONDS = 15.0  # per page, including redirects
MAX_REDIRECTS = 5
USER_AGENT = "antiphon"

_MAX_URL = 8192  # characters
_PIECE = 65_536  # bytes per decompression step
_MAX_MEMBERS = 1000  # per gzip body
_PORTS = {"http": 80, "https": 443}


class OutboundRefused(CallFailed):
    """By the rules above, or because the response is too large."""


_GLOBAL_UNICAST = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")
# Local NAT64 prefixes, with a variable IPv4 position (RFC 8215, RFC 6052).
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
_COMPATIBLE = ip_network("::/96")
# Some Python versions report these as global: IETF protocols, 6to4 relays, IPv6 documentation.
_NOT_PUBLIC = (ip_network("192.0.0.0/24"), ip_network("192.88.99.0/24"), ip_network("3fff::/20"))
# Cloud metadata services, which return credentials. Link-local ones are refused anyway.
_METADATA = frozenset(
    map(
        ip_address,
        (
            "168.63.129.16",  # Azure
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle
            "fd00:ec2::254",  # AWS, and its pods
            "fd00:ec2::23",
            "fd20:ce::254",  # Google
        ),
    )
)


def is_allowed(address: Address, policy: AddressPolicy) -> bool:
    """Checks the address, or its embedded IPv4 address."""
    if policy == "any":
        return True
    if (embedded := _embedded(address)) is not None:
        return is_allowed(embedded, policy)
    if address in _LOCAL_NAT64:
        # The IPv4 address can begin after 48, 56, 64 or 96 bits. The byte after the first 64 bits is skipped.
        data = address.packed
        possible = [*((data[start:8] + data[9:])[:4] for start in (6, 7, 8)), data[12:]]
        return policy == "private" and not any(
            inner in _METADATA or inner.is_link_local for inner in map(IPv4Address, possible)
        )
    if address in _METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    if isinstance(address, IPv4Address):
        usable, unused = True, address.is_reserved  # 240/4 is reported as private
    else:
        usable, unused = address in _GLOBAL_UNICAST and address.teredo is None, address.teredo is not None
    public = usable and address.is_global and not address.is_reserved
    if public and not any(address in network for network in _NOT_PUBLIC):
        return True
    return policy == "private" and address.is_private and not unused


def _embedded(address: Address) -> IPv4Address | None:
    if isinstance(address, IPv4Address):
        return None
    if embedded := address.ipv4_mapped or address.sixtofour:
        return embedded
    compatible = address in _COMPATIBLE and int(address) > 1
    if compatible or address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


@dataclass(frozen=True, slots=True)
class URLPattern:
    """
    A pattern for allowed URLs: `https://*.example.com/*`.

    `*.` before a host matches subdomains at any depth, and `*` alone matches every host. A path may contain `*`
    anywhere; without a path, any path matches. The default port is the scheme's; `:*` matches any port.
    """

    scheme: str
    host: str
    port: int | None  # None: any
    path: str

    @classmethod
    def parse(cls, pattern: str) -> URLPattern:
        match = re.fullmatch(r"(https?)://(\*|(?:\*\.)?[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(\d+|\*))?(/[^?#\s]*)?", pattern)
        if match is None:
            raise ValueError("must be a URL, such as https://mcp.example.com/* or https://*.example.com/*")
        scheme, host, port, path = match.groups()
        return cls(scheme, host.lower().strip("[]"), None if port == "*" else int(port or _PORTS[scheme]), path or "/*")

    def matches(self, url: httpx.URL) -> bool:
        if url.scheme != self.scheme or self.port not in (None, url.port or _PORTS[self.scheme]):
            return False
        host = url.host.rstrip(".")
        host_matches = host.endswith(self.host[1:]) if self.host.startswith("*.") else self.host in ("*", host)
        path = url.raw_path.partition(b"?")[0].decode("ascii", "replace")
        return host_matches and (
            self.path in ("/*", "*") or (fnmatchcase(path, self.path) and not _LEAVES_PATH.search(path))
        )


URL_NOT_ALLOWED = "Requests to this URL are not allowed."

# Servers may decode `%2e%2e/` or `%252e%252e/` to `../`, or treat `..;` like `..`.
_LEAVES_PATH = re.compile(r"%(25|2e|2f|5c)|/\.\.?(;|/|$)", re.IGNORECASE)
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_NUMBER = re.compile(r"\d+|0x[\da-f]*", re.IGNORECASE)


def checked_url(
    url: str, *, allowed: Sequence[URLPattern] | None = None, policy: AddressPolicy = "public"
) -> httpx.URL:
    """
    Check a URL's spelling; connecting checks the host's addresses.

    With `allowed`, a pattern must match; otherwise, any https URL with the standard port is allowed. Raises
    `OutboundRefused`.
    """
    if len(url) > _MAX_URL or _FORBIDDEN.search(url):
        raise OutboundRefused(
            "The URL must not contain spaces, backslashes or control characters, and not be too long."
        )
    try:
        parsed = httpx.URL(url)
        host = parsed.host
    except (httpx.InvalidURL, ValueError):  # an invalid IDNA name
        raise OutboundRefused("The URL is invalid.") from None
    if parsed.scheme not in _PORTS:
        raise OutboundRefused("The URL must begin with https://.")
    if parsed.userinfo or "@" in re.split(r"[/?#]", url.partition("//")[2], maxsplit=1)[0]:
        raise OutboundRefused("The URL must not contain a user name or password.")
    _check_host(host, policy)
    if allowed is None:
        if parsed.scheme != "https":
            raise OutboundRefused("The URL must begin with https://.")
        if parsed.port not in (None, 443):
            raise OutboundRefused("The URL must not contain a port.")
    elif not any(pattern.matches(parsed) for pattern in allowed):
        raise OutboundRefused(URL_NOT_ALLOWED)
    return parsed


def urls_equivalent(url: str, known: str | None) -> bool:
    """
    Whether a server may treat a URL as the `known` URL, regardless of spelling.

    Queries must be equal if the known URL has a query.
    """
    try:
        parsed, other = httpx.URL(url), httpx.URL(known or "")
    except (httpx.InvalidURL, ValueError):
        return False
    return _normalized_url(parsed) == _normalized_url(other) and other.query in (b"", parsed.query)


def _normalized_url(url: httpx.URL) -> tuple[str, bytes, int | None, list[str]]:
    steps: list[str] = []
    for part in unquote(url.path).split("/"):
        step = part.partition(";")[0]
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    return url.scheme, url.raw_host.rstrip(b"."), url.port or _PORTS.get(url.scheme), steps


def _check_host(host: str, policy: AddressPolicy) -> None:
    if not host or "%" in host or ".." in host or host.startswith("."):
        raise OutboundRefused("The URL must have a valid host.")
    if (address := parse_address(host)) is None:
        # Some resolvers read 2130706433, 0x7f.1 and 127.1 as 127.0.0.1, others as names.
        if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
            raise OutboundRefused("The host in the URL must not be an unusually spelled IP address.")
    elif not is_allowed(address, policy):
        raise OutboundRefused("The address in the URL is not allowed.")


async def resolve(host: str, port: int) -> Sequence[str]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """
    Connects only to checked addresses. `library` is `httpcore` or `httpcore2`.

    Refuses a host if any of its addresses is not allowed.
    """

    def __init__(self, policy: AddressPolicy, *, library: Any = httpcore, resolver: Resolver = resolve) -> None:
        self._policy = policy
        self._resolver = resolver
        self._network = library.AnyIOBackend()
        self._timed_out: type[Exception] = library.ConnectTimeout
        self._failed: type[Exception] = library.ConnectError

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's signature
        local_address: str | None = None,
        socket_options: object = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises `OutboundRefused`, or the library's errors."""
        failure = self._failed("The host has no address.")
        try:
            async with asyncio.timeout(timeout):
                for address in await self._addresses(host, port):
                    try:
                        stream: httpcore.AsyncNetworkStream = await self._network.connect_tcp(
                            address, port, local_address=local_address, socket_options=socket_options
                        )
                    except self._failed as error:
                        failure = error
                    else:
                        return stream
        except TimeoutError:
            raise self._timed_out("The connection timed out.") from None
        raise failure

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = await self._resolver(host, port)
        except (gaierror, UnicodeError):
            return ()
        # Only link-local addresses have a scope (`fe80::1%eth0`).
        if not all(is_allowed(ip_address(address.partition("%")[0]), self._policy) for address in addresses):
            raise OutboundRefused("The host resolves to an address that is not allowed.")
        return addresses

    async def connect_unix_socket(self, path: str, *args: object, **options: object) -> httpcore.AsyncNetworkStream:
        raise OutboundRefused("Unix sockets are not allowed.")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@cache
def tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


async def _inflated(body: AsyncIterable[bytes], error: type[Exception]) -> AsyncIterator[bytes]:
    inflate, members = None, 0
    try:
        async for packed in body:
            while packed:
                if inflate is None or inflate.eof:
                    if members == _MAX_MEMBERS:
                        raise zlib.error
                    inflate, members = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32), members + 1  # gzip or zlib
                yield inflate.decompress(packed, _PIECE)
                packed = inflate.unconsumed_tail or inflate.unused_data
    except zlib.error:
        raise error("The response cannot be decompressed.") from None
    if inflate and not inflate.eof:
        raise error("The response cannot be decompressed: it is truncated.")


class GuardedTransport(httpx.AsyncBaseTransport):
    def __init__(
        self, policy: AddressPolicy, *, max_bytes: int = MAX_RESPONSE_BYTES, resolver: Resolver = resolve
    ) -> None:
        self._max_bytes = max_bytes
        self._http = httpx.AsyncHTTPTransport(verify=tls(), trust_env=False)
        network = GuardedNetwork(policy, resolver=resolver)
        self._http._pool = httpcore.AsyncConnectionPool(ssl_context=tls(), network_backend=network)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"  # a compressed body's size is not known in advance
        response = await self._http.handle_async_request(request)
        return httpx.Response(
            response.status_code,
            headers=plain_headers(response.headers.multi_items()),
            stream=BoundedBody(response, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._http.aclose()


def plain_headers(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """For the decompressed body, with a safe charset: `httpx` would decode with any Python codec."""
    plain: list[tuple[str, str]] = []
    for name, value in headers:
        if name.lower() == "content-type":
            codec = codec_of(declared_charset(value) or "")
            value = value.partition(";")[0].strip() + (f"; charset={codec}" if codec else "")
        if name.lower() not in ("content-encoding", "content-length"):
            plain.append((name, value))
    return plain


class BoundedBody(httpx.AsyncByteStream):
    """A response's body, decompressed in pieces; raises `_error` beyond `max_bytes`."""

    _error: type[Exception] = OutboundRefused

    def __init__(self, response: Any, max_bytes: int) -> None:
        self._response = response
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body: AsyncIterable[bytes] = self._response.stream
        encoding = self._response.headers.get("content-encoding", "").strip().lower()
        if encoding in ("gzip", "x-gzip", "deflate"):
            body = _inflated(body, self._error)
        elif encoding not in ("", "identity"):
            raise self._error("The response has a content encoding that was not requested.")
        left = self._max_bytes
        async for piece in body:
            left -= len(piece)
            if left < 0:
                raise self._error(f"The response is larger than {self._max_bytes} bytes.")
            yield piece

    async def aclose(self) -> None:
        await self._response.aclose()


async def fetch(
    url: str,
    *,
    allowed: Sequence[URLPattern] | None = None,
    policy: AddressPolicy = "public",
    seconds: float = MAX_SECONDS,
    resolver: Resolver = resolve,
) -> httpx.Response:
    """
    Read a page, and check each redirect's target.

    Raises `OutboundRefused` for disallowed URLs and large responses, `TimeoutError`, and `httpx.HTTPError`.
    """
    transport = GuardedTransport(policy, resolver=resolver)
    headers = {"user-agent": USER_AGENT}
    async with asyncio.timeout(seconds):
        async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=seconds, headers=headers) as client:
            for _ in range(MAX_REDIRECTS + 1):
                checked = checked_url(url, allowed=allowed, policy=policy)
                async with client.stream("GET", checked) as response:
                    if response.next_request is None:
                        await response.aread()
                        return response
                    url = str(response.next_request.url)
    raise OutboundRefused(f"The URL redirects more than {MAX_REDIRECTS} times.")
