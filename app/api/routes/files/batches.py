"""Routes for batches, as in OpenAI's API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import ERRORS, request_body
from app.api.pagination import After, Limit, parse_page
from app.api.request_body import read_body
from app.api.routes.lazy_route import LazyRoute
from app.tools.files.batches import Batches, CreateBatchJob


def batch_routes(api: APIDependencies, batches: Batches) -> APIRouter:
    router = APIRouter(route_class=LazyRoute, tags=["batches"], responses=ERRORS)
    owner_of = api.owner_dependency()

    @router.post("/batches", summary="Create a batch of requests", openapi_extra=request_body(CreateBatchJob))
    async def create(request: Request) -> Response:
        caller = api.caller(request.headers)
        await api.admit(caller)
        body = await read_body(request, CreateBatchJob, api.body_limits)
        return json_response(await batches.create(caller.owner, caller.access.name, body))

    @router.get("/batches", summary="List batches")
    async def listed(limit: Limit = "20", after: After = None, owner: str = owner_of) -> Response:
        return json_response(await batches.list(owner, parse_page(limit, "desc", after)))

    @router.get("/batches/{batch_id}", summary="Retrieve a batch")
    async def retrieve(batch_id: str, owner: str = owner_of) -> Response:
        return json_response(await batches.retrieve(owner, batch_id))

    @router.post("/batches/{batch_id}/cancel", summary="Cancel a batch")
    async def cancel(batch_id: str, owner: str = owner_of) -> Response:
        return json_response(await batches.cancel(owner, batch_id))

    return router
