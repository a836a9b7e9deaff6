"""Prometheus metrics: `GET /metrics`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from app.api.routes.lazy_route import LazyRoute
from app.observability.metrics import Metrics

LABELS_TIMEOUT = 1.0  # seconds to wait for the model labels of completed responses


def routes(metrics: Metrics) -> APIRouter:
    router = APIRouter(route_class=LazyRoute, tags=["operation"])

    @router.get("/metrics", summary="Metrics, for Prometheus", response_class=PlainTextResponse)
    async def expose(request: Request) -> Response:
        await metrics.models.wait(LABELS_TIMEOUT)
        metrics.flush()
        # With several workers, this reads a file per worker.
        body, media_type = await asyncio.to_thread(metrics.expose, request.headers.get("accept", ""))
        return Response(body, media_type=media_type)

    return router
