"""Verifies callers' identities before a route runs: `[auth.jwt]` and `[auth.proxy]`."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import Auth
from app.api.auth.identity import IDENTIFIED


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
