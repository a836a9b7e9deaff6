"""Is the process alive, and can it serve?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from fastapi import APIRouter, Response

from app.api.http import json
from app.errors import APIError
from app.responses import Responses


def routes(responses: Responses) -> APIRouter:
    router = APIRouter(tags=["operation"])

    # Balancers and `wget --spider` ask with HEAD.
    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="The process lives")
    async def healthz() -> Response:
        return json({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Backend and store answer")
    async def readyz() -> Response:
        backend, store = await asyncio.gather(_state(responses.backend.check()), _state(responses.store.check()))
        ready = backend == store == "ok"
        answer = json({"status": "ok" if ready else "unavailable", "backend": backend, "store": store})
        answer.status_code = 200 if ready else 503
        return answer

    return router


async def _state(check: Awaitable[None]) -> str:
    try:
        await check
    except APIError as error:
        return error.reason
    return "ok"
