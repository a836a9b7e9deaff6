"""Requires an API key for pages outside the API, such as `/metrics`."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import Auth
from app.api.errors import refuse
from app.errors import Unauthorized


class KeyRequired:
    """Refuses requests without a valid API key at `paths` and below them."""

    def __init__(self, app: ASGIApp, auth: Auth, paths: Collection[str]) -> None:
        self._app = app
        self._auth = auth
        self._paths = frozenset(paths)
        self._prefixes = tuple(f"{path}/" for path in paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in self._paths or path.startswith(self._prefixes):
            try:
                self._auth.caller(Headers(scope=scope))
            except Unauthorized as error:
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)
