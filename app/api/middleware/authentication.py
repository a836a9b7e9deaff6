"""Identify callers before a route runs, and require an API key for pages outside the API."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import Auth
from app.api.auth.identity import IDENTIFIED
from app.api.errors import refuse
from app.errors import PermissionDenied, Unauthorized


class IdentityCheck:
    """
    Identifies the caller for `Auth.caller`.

    Rejects nothing: routes without authentication, for example `/healthz`, work with any credentials.
    """

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            IDENTIFIED.set(await self._auth.identified(scope))
        await self._app(scope, receive, send)


class KeyRequired:
    """Guards `paths` and below; keys with a table must be admin keys at `admin_paths`."""

    def __init__(
        self, app: ASGIApp, auth: Auth, paths: Collection[str], admin_paths: Collection[str] = ("/metrics",)
    ) -> None:
        self._app = app
        self._auth = auth
        self._paths = frozenset(paths)
        self._admin_paths = frozenset(admin_paths)
        self._prefixes = tuple(f"{path}/" for path in paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in self._paths or path.startswith(self._prefixes):
            try:
                access = self._auth.caller(Headers(scope=scope)).access
                if path.rstrip("/") in self._admin_paths:
                    access.check_admin()
            except (Unauthorized, PermissionDenied) as error:
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)
