"""Cancels responses of revoked keys, for `ANTIPHON_REVOKED_RESPONSES=cancel`."""

from __future__ import annotations

from app.api.auth import Auth
from app.errors import Unauthorized
from app.observability.lifecycle import Observer, ResponseLifecycle


class RevokedResponses(Observer):
    def __init__(self) -> None:
        self._running: dict[int, ResponseLifecycle] = {}

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        self._running[id(lifecycle)] = lifecycle

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        self._running.pop(id(lifecycle), None)

    def follow(self, auth: Auth) -> None:

        def end() -> None:
            for lifecycle in self._running.values():
                if not auth.is_known(lifecycle.key, lifecycle.owner):
                    lifecycle.stop(Unauthorized("This API key was revoked.", code="revoked_api_key"))

        auth.on_change = end
