"""Routes for files, multipart uploads and batches, as in OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.multipart import FormPart, form_parts
from app.api.openapi import api_router, request_body
from app.api.pagination import After, Limit, Order, parse_whole_number
from app.api.request_body import BodyLimits, read_body, report_unknown
from app.errors import InvalidRequest, missing_parameter
from app.responses import Caller
from app.tools.files import Page
from app.tools.files.batches import Batches, CreateBatchJob
from app.tools.files.uploads import (
    MAX_LIFETIME,
    MAX_PART_BYTES,
    MIN_LIFETIME,
    CompleteUpload,
    CreateUpload,
    Files,
    MultipartUploads,
    upload_too_large,
)

MAX_FIELD = 4096  # bytes in a form field other than the file
_LIFETIME = "expires_after[seconds]"
_FILE_FIELDS = ("file", "purpose", "expires_after[anchor]", _LIFETIME)

_BINARY = {"type": "string", "format": "binary"}


def _form(fields: Mapping[str, object], required: Sequence[str]) -> dict[str, object]:
    schema = {"type": "object", "properties": fields, "required": required}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_FILE_FORM = _form(
    {
        "file": _BINARY,
        "purpose": {"type": "string", "example": "user_data"},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        _LIFETIME: {"type": "integer", "minimum": MIN_LIFETIME, "maximum": MAX_LIFETIME},
    },
    required=["file", "purpose"],
)
_PART_FORM = _form({"data": _BINARY}, required=["data"])


def routes(api: APIDependencies, files: Files) -> APIRouter:
    router = api_router("files")

    owner_of, admitted_caller = api.owner_dependency(), api.admitted_dependency()

    @router.post("/files", summary="Upload a file", openapi_extra=_FILE_FORM)
    async def upload(request: Request, caller: Caller = admitted_caller) -> Response:
        return json_response(await _upload(request, files, caller.owner, api.body_limits))

    @router.get("/files", summary="List files")
    async def listed(
        purpose: str | None = Query(None, description="only files of this purpose"),
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Order = "desc",
        after: After = None,
        owner: str = owner_of,
    ) -> Response:
        return json_response(await files.list(owner, Page(limit, order == "desc", after or None), purpose))

    @router.get("/files/{file_id}", summary="Retrieve a file's description")
    async def retrieve(file_id: str, owner: str = owner_of) -> Response:
        return json_response((await files.file(owner, file_id)).resource())

    @router.get("/files/{file_id}/content", summary="Retrieve a file's content")
    async def content(file_id: str, owner: str = owner_of) -> Response:
        file = await files.file(owner, file_id)
        return await file_download(files.content(file), file.filename, file.bytes)

    @router.delete("/files/{file_id}", summary="Delete a file")
    async def delete(file_id: str, owner: str = owner_of) -> Response:
        return json_response(await files.delete(owner, file_id))

    return router


async def _upload(request: Request, files: Files, owner: str, limits: BodyLimits) -> dict[str, object]:
    """Store a form's file on arrival; raises `InvalidRequest`."""
    pieces = _form_file(request, "file", files.max_bytes)
    fields: dict[str, bytes] = {}
    filename = None
    async with files.upload(owner) as upload:
        async for part, data in pieces:
            if part.name == "file":
                filename = part.filename
                await upload.write(data)
                continue
            fields[part.name] = fields.get(part.name, b"") + data
            if len(fields[part.name]) > MAX_FIELD:
                message = f"Invalid '{part.name[:64]}': must be at most {MAX_FIELD} bytes long."
                raise InvalidRequest(message, param=part.name[:64])
        if "purpose" not in fields:
            raise missing_parameter("purpose")
        report_unknown(request, {name: _FILE_FIELDS for name in fields if name not in _FILE_FIELDS}, limits)
        purpose = fields["purpose"].decode("utf-8", "replace")
        return (await files.add(owner, upload, filename or "file", purpose, _lifetime(fields))).resource()


def _lifetime(fields: dict[str, bytes]) -> int | None:
    """Seconds in `expires_after`; raises `InvalidRequest`."""
    anchor = fields.get("expires_after[anchor]")
    if _LIFETIME not in fields:
        if anchor is not None:
            raise missing_parameter(_LIFETIME)
        return None
    if anchor not in (None, b"created_at"):
        message = "Invalid 'expires_after[anchor]': must be 'created_at'."
        raise InvalidRequest(message, param="expires_after[anchor]")
    seconds = parse_whole_number(fields[_LIFETIME].decode("ascii", "replace"))
    if seconds is None or not MIN_LIFETIME <= seconds <= MAX_LIFETIME:
        message = f"Invalid '{_LIFETIME}': must be an integer from {MIN_LIFETIME} to {MAX_LIFETIME}."
        raise InvalidRequest(message, param=_LIFETIME)
    return seconds


_OVERHEAD = 64 * 1024  # bytes in a form besides its file


async def _form_file(request: Request, name: str, max_bytes: int) -> AsyncIterator[tuple[FormPart, bytes]]:
    """
    Chunks with their parts; the part `name` is the file.

    Raises `InvalidRequest` for a large body, and for no file or more than one.
    """
    length = parse_whole_number(request.headers.get("content-length", ""))
    if length is not None and length > max_bytes + _OVERHEAD:
        raise upload_too_large(max_bytes, name)
    file: FormPart | None = None
    async for part, data in form_parts(request):
        if part.name == name:
            if file is not None and part is not file:
                raise InvalidRequest(f"Send one file at a time, as '{name}'.", param=name)
            file = part
        yield part, data
    if file is None:
        raise missing_parameter(name)


async def file_download(content: AsyncIterator[bytes], filename: str, length: int | None = None) -> StreamingResponse:
    """
    A download that browsers never render as a page of this server's origin.

    Reads the first chunk before sending the status, so that unreadable files become errors.
    """
    first = await anext(content, b"")

    async def pieces() -> AsyncIterator[bytes]:
        if first:
            yield first
        async for piece in content:
            yield piece

    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(filename)}",
        "x-content-type-options": "nosniff",
        **({} if length is None else {"content-length": str(length)}),
    }
    return StreamingResponse(pieces(), headers=headers, media_type="application/octet-stream")


def upload_routes(api: APIDependencies, uploads: MultipartUploads) -> APIRouter:
    router = api_router("uploads")
    owner_of, admitted_caller = api.owner_dependency(), api.admitted_dependency()

    @router.post("/uploads", summary="Create an upload in parts", openapi_extra=request_body(CreateUpload))
    async def create(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateUpload, api.body_limits)
        return json_response(await uploads.create(caller.owner, body))

    @router.post("/uploads/{upload_id}/parts", summary="Add a part to an upload", openapi_extra=_PART_FORM)
    async def part(request: Request, upload_id: str, owner: str = owner_of) -> Response:
        pieces = _form_file(request, "data", MAX_PART_BYTES)
        data = (piece async for form_part, piece in pieces if form_part.name == "data")
        return json_response(await uploads.add_part(owner, upload_id, data))

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


def batch_routes(api: APIDependencies, batches: Batches) -> APIRouter:
    router = api_router("batches")
    owner_of, admitted_caller = api.owner_dependency(), api.admitted_dependency()

    @router.post("/batches", summary="Create a batch of requests", openapi_extra=request_body(CreateBatchJob))
    async def create(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateBatchJob, api.body_limits)
        return json_response(await batches.create(caller.owner, caller.access.name, body))

    @router.get("/batches", summary="List batches")
    async def listed(limit: Limit = 20, after: After = None, owner: str = owner_of) -> Response:
        return json_response(await batches.list(owner, Page(limit, after=after or None)))

    @router.get("/batches/{batch_id}", summary="Retrieve a batch")
    async def retrieve(batch_id: str, owner: str = owner_of) -> Response:
        return json_response(await batches.retrieve(owner, batch_id))

    @router.post("/batches/{batch_id}/cancel", summary="Cancel a batch")
    async def cancel(batch_id: str, owner: str = owner_of) -> Response:
        return json_response(await batches.cancel(owner, batch_id))

    return router
