"""Routes for multipart uploads, as in OpenAI's API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import ERRORS, request_body
from app.api.request_body import read_body
from app.api.routes.files.form import form_file
from app.api.routes.lazy_route import LazyRoute
from app.tools.files.multipart import MAX_PART_BYTES, CompleteUpload, CreateUpload, MultipartUploads

_PART: dict[str, object] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"data": {"type": "string", "format": "binary"}},
                    "required": ["data"],
                }
            }
        },
    }
}


def upload_routes(api: APIDependencies, uploads: MultipartUploads) -> APIRouter:
    router = APIRouter(route_class=LazyRoute, tags=["uploads"], responses=ERRORS)
    owner_of = api.owner_dependency()

    @router.post("/uploads", summary="Create an upload in parts", openapi_extra=request_body(CreateUpload))
    async def create(request: Request) -> Response:
        owner = await api.admitted_owner(request.headers)
        return json_response(await uploads.create(owner, await read_body(request, CreateUpload, api.body_limits)))

    @router.post("/uploads/{upload_id}/parts", summary="Add a part to an upload", openapi_extra=_PART)
    async def part(request: Request, upload_id: str, owner: str = owner_of) -> Response:
        return json_response(await _receive_part(request, uploads, owner, upload_id))

    @router.post(
        "/uploads/{upload_id}/complete",
        summary="Make the file of an upload",
        openapi_extra=request_body(CompleteUpload),
    )
    async def complete(request: Request, upload_id: str, owner: str = owner_of) -> Response:
        body = await read_body(request, CompleteUpload, api.body_limits)
        return json_response(await uploads.complete(owner, upload_id, body))

    @router.post("/uploads/{upload_id}/cancel", summary="Cancel an upload")
    async def cancel(upload_id: str, owner: str = owner_of) -> Response:
        return json_response(await uploads.cancel(owner, upload_id))

    return router


async def _receive_part(request: Request, uploads: MultipartUploads, owner: str, upload_id: str) -> dict[str, object]:
    """Store a form's part on arrival; raises `InvalidRequest`."""
    pieces = form_file(request, "data", MAX_PART_BYTES)
    async with await uploads.part(owner, upload_id) as writer:
        async for form_part, data in pieces:
            if form_part.name == "data":
                await writer.write(data)
        return (await writer.finish()).resource()
