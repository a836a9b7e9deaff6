"""Routes for containers and their files, as in OpenAI's API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.multipart import FormPart, form_parts
from app.api.openapi import api_router, request_body
from app.api.pagination import PageQuery, page_of_items
from app.api.request_body import read_body
from app.api.routes.files import MAX_FIELD, file_download
from app.core.types.request import WITHOUT_NUL, RequestBody
from app.errors import InvalidRequest
from app.responses import Caller
from app.tools.code_interpreter.containers import MAX_CONTAINER_NAME, Container, Containers
from app.tools.code_interpreter.settings import MemoryLimit
from app.tools.code_interpreter.skills import DeclaredSkills

_TOOLS = ("code_interpreter", "shell")  # with containers


class ContainerExpiry(RequestBody):
    anchor: Literal["last_active_at"]
    minutes: int = Field(ge=1)


class ContainerNetwork(RequestBody):
    """Container network policy: only `disabled` is supported."""

    type: Literal["disabled"]


class CreateContainer(RequestBody):
    name: Annotated[str, WITHOUT_NUL] = Field(min_length=1, max_length=MAX_CONTAINER_NAME)
    expires_after: ContainerExpiry | None = None
    file_ids: list[str] | None = Field(None, max_length=50)
    memory_limit: MemoryLimit | None = None
    network_policy: ContainerNetwork | None = None
    skills: DeclaredSkills | None = None


class AddContainerFile(RequestBody):
    file_id: str


def container_routes(api: APIDependencies, containers: Containers) -> APIRouter:
    router = api_router("containers")
    max_minutes = containers.settings.idle_minutes
    owner_of, admitted_caller = api.owner_dependency(*_TOOLS), api.admitted_dependency(*_TOOLS)

    @router.post("/containers", summary="Create a container", openapi_extra=request_body(CreateContainer))
    async def create(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateContainer, api.body_limits)
        minutes = body.expires_after.minutes if body.expires_after else None
        if minutes and minutes > max_minutes:
            message = f"Invalid 'expires_after.minutes': must be at most {max_minutes} on this server."
            raise InvalidRequest(message, param="expires_after.minutes", code="invalid_value")
        container = await containers.create(
            caller.owner,
            name=body.name,
            file_ids=body.file_ids or (),
            memory_limit=body.memory_limit,
            idle_minutes=minutes,
            skills=await containers.skills.resolve(body.skills or (), "skills"),
        )
        return json_response(container.resource())

    @router.get("/containers", summary="List containers")
    async def listed(page: PageQuery, name: str | None = None, owner: str = owner_of) -> Response:
        return json_response(page_of_items(await containers.list(owner, name), page))

    @router.get("/containers/{container_id}", summary="Retrieve a container")
    async def retrieve(container_id: str, owner: str = owner_of) -> Response:
        return json_response((await containers.get(owner, container_id)).resource())

    @router.delete("/containers/{container_id}", summary="Delete a container with its files")
    async def delete(container_id: str, owner: str = owner_of) -> Response:
        return json_response(await containers.delete_with_copies(owner, container_id))

    _add_files(router, api, containers)
    return router


def _add_files(router: APIRouter, api: APIDependencies, containers: Containers) -> None:
    owner_of, admitted_caller = api.owner_dependency(*_TOOLS), api.admitted_dependency(*_TOOLS)

    @router.post("/containers/{container_id}/files", summary="Add a file: multipart, or an uploaded one by `file_id`")
    async def add(request: Request, container_id: str, caller: Caller = admitted_caller) -> Response:
        container = await containers.get(caller.owner, container_id)
        if request.headers.get("content-type", "").lower().startswith("multipart/"):
            return json_response(await _from_form(request, containers, container))
        body = await read_body(request, AddContainerFile, api.body_limits)
        return json_response(await containers.copy_upload(container, body.file_id))

    @router.get("/containers/{container_id}/files", summary="List the files of a container")
    async def listed(container_id: str, page: PageQuery, owner: str = owner_of) -> Response:
        return json_response(page_of_items(await containers.files(owner, container_id), page))

    @router.get("/containers/{container_id}/files/{file_id}", summary="Retrieve a file's description")
    async def retrieve(container_id: str, file_id: str, owner: str = owner_of) -> Response:
        file, _ = await containers.file(owner, container_id, file_id)
        return json_response(file.resource())

    @router.get("/containers/{container_id}/files/{file_id}/content", summary="Retrieve a file's content")
    async def content(container_id: str, file_id: str, owner: str = owner_of) -> Response:
        file, content = await containers.file(owner, container_id, file_id)
        return await file_download(content, file.filename)

    @router.delete("/containers/{container_id}/files/{file_id}", summary="Delete a file of a container")
    async def delete(container_id: str, file_id: str, owner: str = owner_of) -> Response:
        return json_response(await containers.delete_file(owner, container_id, file_id))


async def _from_form(request: Request, containers: Containers, container: Container) -> dict[str, object]:
    """The form has a file, or an uploaded file's `file_id`."""
    parts = form_parts(request)
    file_id = b""
    async for part, data in parts:
        if part.name == "file":
            return await containers.add_file(container, part.filename or "file", _content(part, parts))
        if part.name == "file_id":
            file_id += data
            if len(file_id) > MAX_FIELD:
                raise InvalidRequest(f"Invalid 'file_id': must be at most {MAX_FIELD} bytes long.", param="file_id")
    if not file_id:
        raise InvalidRequest(
            "Missing required parameter: 'file' or 'file_id'.", param="file", code="missing_required_parameter"
        )
    return await containers.copy_upload(container, file_id.decode("utf-8", "replace"))


async def _content(file: FormPart, parts: AsyncIterator[tuple[FormPart, bytes]]) -> AsyncIterator[bytes]:
    yield b""  # a file can be empty
    async for part, data in parts:
        if part is file:
            yield data
