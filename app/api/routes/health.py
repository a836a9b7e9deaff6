"""Liveness, readiness and metrics: `GET /healthz` (also `/health`, for some routers), `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from app.api.json_response import json_response
from app.api.openapi import LazyRoute
from app.errors import APIError
from app.observability.metrics import Metrics
from app.responses import Responses

logger = logging.getLogger(__name__)

LABELS_TIMEOUT = 1.0  # seconds to wait for the model labels of completed responses


def routes(responses: Responses) -> APIRouter:
    router = APIRouter(route_class=LazyRoute, tags=["operation"])
    backend_check = _logged("backend", responses.backend.check)
    store_check = _logged("store", responses.store.check)

    # Load balancers and `wget --spider` use HEAD.
    @router.head("/health", include_in_schema=False)
    @router.get("/health", include_in_schema=False)
    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="Whether the process is alive")
    async def healthz() -> Response:
        return json_response({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", summary="Whether the backend and the store are reachable")
    async def readyz() -> Response:
        backend, store = await asyncio.gather(backend_check(), store_check())
        ready = backend == store == "ok"
        response = json_response({"status": "ok" if ready else "unavailable", "backend": backend, "store": store})
        response.status_code = 200 if ready else 503
        return response

    return router


def _logged(name: str, check: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[str]]:
    """`check` with its first failure and recovery logged: returns "ok", or the reason without confidential details."""
    failing = False

    async def run() -> str:
        nonlocal failing
        try:
            await check()
        except APIError as error:
            if not failing:
                logger.warning("readiness check failed", extra={"check": name, **error.log_fields()})
            failing = True
            return error.reason
        if failing:
            logger.info("readiness check recovered", extra={"check": name})
        failing = False
        return "ok"

    return run


def metrics_routes(metrics: Metrics) -> APIRouter:
    router = APIRouter(route_class=LazyRoute, tags=["operation"])

    @router.get("/metrics", summary="Metrics, for Prometheus", response_class=PlainTextResponse)
    async def expose(request: Request) -> Response:
        await metrics.models.wait(LABELS_TIMEOUT)
        metrics.flush()
        # With several workers, this reads a file per worker.
        body, media_type = await asyncio.to_thread(metrics.expose, request.headers.get("accept", ""))
        return Response(body, media_type=media_type)

    return router
