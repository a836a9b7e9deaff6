"""Routes for files, as in OpenAI's API."""

from __future__ import annotations

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.download import file_download
from app.api.json_response import json_response
from app.api.openapi import ERRORS
from app.api.pagination import After, Order, parse_page, parse_whole_number
from app.api.request_body import BodyLimits, report_unknown
from app.api.routes.files.form import form_file, missing
from app.api.routes.lazy_route import LazyRoute
from app.errors import InvalidRequest
from app.tools.files.uploads import MAX_LIFETIME, MIN_LIFETIME, Files

MAX_FIELD = 4096  # bytes in a form field other than the file
_LIFETIME = "expires_after[seconds]"
_FIELDS = ("file", "purpose", "expires_after[anchor]", _LIFETIME)

_FORM: dict[str, object] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "example": "user_data"},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        _LIFETIME: {"type": "integer", "minimum": MIN_LIFETIME, "maximum": MAX_LIFETIME},
                    },
                    "required": ["file", "purpose"],
                }
            }
        },
    }
}


def routes(api: APIDependencies, files: Files) -> APIRouter:
    router = APIRouter(route_class=LazyRoute, tags=["files"], responses=ERRORS)

    owner_of = api.owner_dependency()

    @router.post("/files", summary="Upload a file", openapi_extra=_FORM)
    async def upload(request: Request) -> Response:
        owner = await api.admitted_owner(request.headers)
        return json_response(await _upload(request, files, owner, api.body_limits))

    @router.get("/files", summary="List files")
    async def listed(
        purpose: str | None = Query(None, description="only files of this purpose"),
        limit: str = Query("10000", description="1 to 10000"),
        order: Order = "desc",
        after: After = None,
        owner: str = owner_of,
    ) -> Response:
        return json_response(await files.list(owner, parse_page(limit, order, after, maximum=10_000), purpose))

    @router.get("/files/{file_id}", summary="Retrieve a file's description")
    async def retrieve(file_id: str, owner: str = owner_of) -> Response:
        return json_response((await files.file(file_id, owner)).resource())

    @router.get("/files/{file_id}/content", summary="Retrieve a file's content")
    async def content(file_id: str, owner: str = owner_of) -> Response:
        file = await files.file(file_id, owner)
        return await file_download(files.content(file), file.filename, file.bytes)

    @router.delete("/files/{file_id}", summary="Delete a file")
    async def delete(file_id: str, owner: str = owner_of) -> Response:
        return json_response(await files.delete(file_id, owner))

    return router


async def _upload(request: Request, files: Files, owner: str, limits: BodyLimits) -> dict[str, object]:
    """Store a form's file on arrival; raises `InvalidRequest`."""
    pieces = form_file(request, "file", files.max_bytes)
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
            raise missing("purpose")
        report_unknown(request, {name: _FIELDS for name in fields if name not in _FIELDS}, limits)
        purpose = fields["purpose"].decode("utf-8", "replace")
        return (await upload.finish(filename or "file", purpose, _lifetime(fields))).resource()


def _lifetime(fields: dict[str, bytes]) -> int | None:
    """Seconds in `expires_after`; raises `InvalidRequest`."""
    anchor = fields.get("expires_after[anchor]")
    if _LIFETIME not in fields:
        if anchor is not None:
            raise missing(_LIFETIME)
        return None
    if anchor not in (None, b"created_at"):
        message = "Invalid 'expires_after[anchor]': must be 'created_at'."
        raise InvalidRequest(message, param="expires_after[anchor]")
    seconds = parse_whole_number(fields[_LIFETIME].decode("ascii", "replace"))
    if seconds is None or not MIN_LIFETIME <= seconds <= MAX_LIFETIME:
        message = f"Invalid '{_LIFETIME}': must be an integer from {MIN_LIFETIME} to {MAX_LIFETIME}."
        raise InvalidRequest(message, param=_LIFETIME)
    return seconds
