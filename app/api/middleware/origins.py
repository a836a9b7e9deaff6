"""
Which web pages may use a server that wants no key.

A browser lets any page send a plain POST, and a page whose name its owner has led to 127.0.0.1 is of one origin with
the server that listens there. What is no page of the web has no `Origin`, or one of a scheme of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.errors import refuse
from app.errors import InvalidRequest


class Origins:
    """
    Refuses what pages ask, but for those that are `allowed` (`*`: all), those of this very machine, and the
    server's own at an address.

    To a WebSocket only the server's own pages may connect, of these: there is no browser to keep the answers from
    others.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] = ()) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin")
        host = _header(scope, b"host") or ""
        if origin is None or self._may(origin, host, of_any=scope["type"] != "websocket"):
            await self._app(scope, receive, send)
            return
        message = f"Pages of {origin[:100]!r} may not use this server; ANTIPHON_CORS_ORIGINS names those that may."
        await refuse(InvalidRequest(message, code="origin_not_allowed", status=403), scope, receive, send)

    def _may(self, origin: str, host: str, *, of_any: bool) -> bool:
        """Tell if a page may ask the server at `host`; `of_any`: may it be a page of any server of this machine?"""
        if origin in self._allowed or "*" in self._allowed:
            return True
        page = _split(origin)
        own = page.netloc == host
        if is_local_page(origin):
            return own or of_any or page.scheme not in _WEB
        # Nobody can lead an address elsewhere, as one can a name: a page from there is this server's.
        return own and page.scheme in _WEB and _address(page.hostname or "") is not None


_WEB = ("http", "https")


def is_local_page(origin: str) -> bool:
    """Tell if a page is of this machine: of a server here, or of an application (`app://`, `file://`)."""
    page = _split(origin)
    if page.scheme not in _WEB:
        return bool(page.scheme)  # a page without an origin, `null`, may be anybody's
    return _is_here(page.hostname or "")


def _split(origin: str) -> SplitResult:
    """Return the parts of an origin; empty ones, if it is none."""
    try:
        page = urlsplit(origin)
        _ = page.hostname
    except ValueError:
        return SplitResult("", "", "", "", "")
    return page


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope.get("headers", ()) if key == name), None)


def _is_here(name: str) -> bool:
    address = _address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
