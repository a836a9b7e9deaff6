"""Verifies the identities of callers before a route runs: `[auth.jwt]` and `[auth.proxy]`."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import Auth
from app.api.auth.identity import IDENTIFIED


class IdentityCheck:
    """
    Middleware that finds out who sends a request, for `Auth.caller`.

    It refuses nothing: a route that needs no caller, such as `/healthz`, works whatever credentials a request has.
    """

    def __init__(self, app: ASGIApp, auth: Auth) -> None:
        self._app = app
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            IDENTIFIED.set(await self._auth.identified(scope))
        await self._app(scope, receive, send)
