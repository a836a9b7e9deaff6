"""
Restricts web pages' access: to a server without API keys, by `Host` and `Origin`, and to responses (CORS).

Any page can send a simple POST without a preflight. DNS rebinding gives a page this server's origin; only the name in
`Host` reveals its GET requests, which have no `Origin`. Other clients send no `Origin`, or a custom scheme.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import error_response, refuse
from app.core.http import is_loopback, parse_address
from app.errors import InvalidRequest


def check_site(headers: Mapping[str, str]) -> None:
    """
    Raises `InvalidRequest` for cross-site requests without an `Origin`, for routes where a GET has effects.

    Browsers send such a GET for any page's images and links. `checking_origin` handles requests with an `Origin`. Only
    https and local servers receive `Sec-Fetch-Site`.
    """
    if headers.get("sec-fetch-site") == "cross-site" and "origin" not in headers:
        raise InvalidRequest(
            "Web pages from other sites must not send this request.", code="origin_not_allowed", status=403
        )


def checking_origin(app: ASGIApp, hosts: AllowedHosts, allowed: Collection[str] = ()) -> ASGIApp:
    """
    Middleware that rejects requests from web pages, except from origins in `allowed` (`*`: all), local pages, and the
    server's own pages.

    A page is the server's own if its host is an IP address or in `hosts`. Other local pages cannot open a WebSocket,
    because CORS does not protect its messages.
    """

    def is_allowed(origin: str, host: str, *, any_local: bool) -> bool:
        if origin in allowed or "*" in allowed:
            return True
        page = _split(origin)
        same_host = page.netloc == host
        if is_local_page(origin):
            return same_host or any_local or page.scheme not in _WEB
        # Other names can be rebound to this server. Pages of an IP address or a configured name are its own.
        return same_host and page.scheme in _WEB and hosts.is_own(host)

    async def check_origin(scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin")
        host = _header(scope, b"host") or ""
        if origin is None or is_allowed(origin, host, any_local=scope["type"] != "websocket"):
            await app(scope, receive, send)
            return
        message = (
            f"Pages of {origin[:100]!r} are not allowed to use this server. Add the origin to ANTIPHON_CORS_ORIGINS."
        )
        await refuse(InvalidRequest(message, code="origin_not_allowed", status=403), scope, receive, send)

    return check_origin


_WEB = ("http", "https")


def is_local_page(origin: str) -> bool:
    """Whether the origin is a local server or an application (`app://`, `file://`)."""
    page = _split(origin)
    if page.scheme not in _WEB:
        return bool(page.scheme)  # any page can have the opaque origin `null`
    return is_loopback(page.hostname or "")


def _split(origin: str) -> SplitResult:
    try:
        page = urlsplit(origin)
        _ = page.hostname
    except ValueError:
        return SplitResult("", "", "", "", "")
    return page


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope.get("headers", ()) if key == name), None)


class Cors(CORSMiddleware):
    """Also allows local pages, usually in development."""

    def is_allowed_origin(self, origin: str) -> bool:
        return super().is_allowed_origin(origin) or is_local_page(origin)

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        message = f"{bytes(response.body).decode()}; ANTIPHON_CORS_ORIGINS lists the allowed origins."
        return error_response(InvalidRequest(message, code="origin_not_allowed", status=403))


# An IPv6 address in brackets, or any other host, and an optional port (RFC 3986, 3.2.2).
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%~_-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_NO_HOST = b"/"  # never accepted
_NAME = re.compile(r"[a-z0-9._-]+")
_PORT = re.compile(r":[0-9]*\Z")


class AllowedHosts:
    """IP addresses, `localhost`, and `names`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names` are lower-case host names, `*.example.com` for subdomains, or `*` for any host."""
        names = frozenset(names)
        self._any = "*" in names
        self._names = names | {"", "localhost"}  # browsers never send an empty host
        self._suffixes = (".localhost", *(name.removeprefix("*") for name in names if name.startswith("*.")))
        self.accept = lru_cache(64)(self._accept)

    def is_own(self, host: str) -> bool:
        """Whether `host` is an IP address or a known name; `*` does not count."""
        name = _PORT.sub("", host.lower(), count=1).removesuffix(".")
        is_subdomain = _NAME.fullmatch(name) is not None and name.endswith(self._suffixes)
        address = parse_address(name.removeprefix("[").removesuffix("]"))
        return name in self._names or is_subdomain or address is not None

    def _accept(self, host: bytes) -> bool:
        return bool(_HOST.fullmatch(host)) and (self._any or self.is_own(host.decode("ascii")))


def host_error(scope: Scope, headers: Mapping[bytes, bytes], allowed: AllowedHosts) -> InvalidRequest | None:
    """
    Require a single valid and allowed `Host` header (RFC 9112, section 3.2), optional in HTTP/1.0.

    `headers` are the scope's as a mapping, which is as long as their list unless a header is repeated.
    """
    if len(headers) == len(scope["headers"]) and allowed.accept(headers.get(b"host", _NO_HOST)):
        return None
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) == 1 and allowed.accept(hosts[0]):
        return None
    if not hosts and scope.get("http_version") != "1.1":
        return None
    if len(hosts) == 1 and _HOST.fullmatch(hosts[0]):
        message = (
            "Invalid 'Host': must be an IP address, 'localhost' or a name in ANTIPHON_ALLOWED_HOSTS, not "
            f"'{hosts[0].decode('ascii')[:200]}'. "
            "This protects a server without API keys from web pages (DNS rebinding)."
        )
        return InvalidRequest(message, code="host_not_allowed", status=403)
    rule = "a host name or IP address, with an optional port" if len(hosts) == 1 else "sent exactly once"
    return InvalidRequest(f"Invalid 'Host': must be {rule}.", code="invalid_host")
