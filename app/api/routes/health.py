"""Is the process alive, and can it serve?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Response

from app.api.routes.responses import json
from app.errors import APIError
from app.responses import Responses

log = logging.getLogger(__name__)


def routes(responses: Responses) -> APIRouter:
    router = APIRouter(tags=["operation"])
    backend_check = _Check("backend", responses.backend.check)
    store_check = _Check("store", responses.store.check)

    # Balancers and `wget --spider` ask with HEAD.
    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="The process lives")
    async def healthz() -> Response:
        return json({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Backend and store answer")
    async def readyz() -> Response:
        backend, store = await asyncio.gather(backend_check(), store_check())
        ready = backend == store == "ok"
        answer = json({"status": "ok" if ready else "unavailable", "backend": backend, "store": store})
        answer.status_code = 200 if ready else 503
        return answer

    return router


class _Check:
    """One of the things that have to work; the log has a line when it stops working, and when it works again."""

    def __init__(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._check = check
        self._failing = False

    async def __call__(self) -> str:
        """Return "ok", or what anybody may hear of what is wrong."""
        try:
            await self._check()
        except APIError as error:
            if not self._failing:
                log.warning("not ready: %s", self._name, extra=error.log_fields())
            self._failing = True
            return error.reason
        if self._failing:
            log.info("ready again: %s", self._name)
        self._failing = False
        return "ok"
