"""
Restricts web pages' access: to a server without API keys, and to responses (CORS).

Any page can send a simple POST without a preflight, and DNS rebinding gives a page this server's origin. Other clients
send no `Origin`, or a custom scheme.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import error_response, refuse
from app.api.middleware.host import AllowedHosts
from app.core.http import is_loopback
from app.errors import InvalidRequest


def check_site(headers: Mapping[str, str]) -> None:
    """
    Raises `InvalidRequest` for cross-site requests without an `Origin`, for routes where a GET has effects.

    Browsers send such a GET for any page's images and links. `Origins` checks requests with an `Origin`. Only https and
    local servers receive `Sec-Fetch-Site`.
    """
    if headers.get("sec-fetch-site") == "cross-site" and "origin" not in headers:
        raise InvalidRequest(
            "Web pages from other sites must not send this request.", code="origin_not_allowed", status=403
        )


class Origins:
    """
    Rejects requests from web pages, except from origins in `allowed` (`*`: all), local pages, and the server's own
    pages.

    A page is the server's own if its host is an IP address or in `hosts`. Other local pages cannot open a WebSocket,
    because CORS does not protect its messages.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, allowed: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = hosts
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin")
        host = _header(scope, b"host") or ""
        if origin is None or self._is_allowed(origin, host, any_local=scope["type"] != "websocket"):
            await self._app(scope, receive, send)
            return
        message = (
            f"Pages of {origin[:100]!r} are not allowed to use this server. Add the origin to ANTIPHON_CORS_ORIGINS."
        )
        await refuse(InvalidRequest(message, code="origin_not_allowed", status=403), scope, receive, send)

    def _is_allowed(self, origin: str, host: str, *, any_local: bool) -> bool:
        if origin in self._allowed or "*" in self._allowed:
            return True
        page = _split(origin)
        same_host = page.netloc == host
        if is_local_page(origin):
            return same_host or any_local or page.scheme not in _WEB
        # Other names can be rebound to this server. Pages of an IP address or a configured name are its own.
        return same_host and page.scheme in _WEB and self._hosts.is_own(host)


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
