"""Puts pages beside the API, such as `/metrics`, behind a key."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import Auth
from app.api.errors import refuse
from app.errors import Unauthorized


class KeyRequired:
    """Asks for a caller's key where a path is one of `paths`, or below one of them."""

    def __init__(self, app: ASGIApp, auth: Auth, paths: Collection[str]) -> None:
        self._app = app
        self._auth = auth
        self._paths = frozenset(paths)
        self._below = tuple(f"{path}/" for path in paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in self._paths or path.startswith(self._below):
            try:
                self._auth.caller(Headers(scope=scope))
            except Unauthorized as error:
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)
