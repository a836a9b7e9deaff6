"""Vector stores, their files and file batches, as in OpenAI's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import api_router, request_body
from app.api.pagination import PageQuery
from app.api.request_body import read_body
from app.responses import Caller
from app.tools.files.vector_stores import VectorStores
from app.tools.files.vector_stores.requests import (
    AddFile,
    CreateBatch,
    CreateVectorStore,
    SearchVectorStore,
    UpdateFile,
    UpdateVectorStore,
)

Status = Annotated[
    str | None, Query(alias="filter", description="only files that are in_progress, completed, failed or cancelled")
]


def routes(api: APIDependencies, stores: VectorStores) -> APIRouter:
    router = api_router("vector stores")
    owner_of, admitted_caller = api.owner_dependency("file_search"), api.admitted_dependency("file_search")

    @router.post("/vector_stores", summary="Create a vector store", openapi_extra=request_body(CreateVectorStore))
    async def create(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateVectorStore, api.body_limits)
        return json_response(await stores.create(caller.owner, body, caller.access))

    @router.get("/vector_stores", summary="List vector stores")
    async def listed(page: PageQuery, owner: str = owner_of) -> Response:
        return json_response(await stores.list(owner, page))

    @router.get("/vector_stores/{vector_store_id}", summary="Retrieve a vector store")
    async def retrieve(vector_store_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.retrieve(owner, vector_store_id))

    @router.post(
        "/vector_stores/{vector_store_id}",
        summary="Modify a vector store",
        openapi_extra=request_body(UpdateVectorStore),
    )
    async def update(request: Request, vector_store_id: str, owner: str = owner_of) -> Response:
        body = await read_body(request, UpdateVectorStore, api.body_limits)
        return json_response(await stores.update(owner, vector_store_id, body))

    @router.delete("/vector_stores/{vector_store_id}", summary="Delete a vector store, but not its files")
    async def delete(vector_store_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.delete(owner, vector_store_id))

    @router.post(
        "/vector_stores/{vector_store_id}/search",
        summary="Search a vector store",
        openapi_extra=request_body(SearchVectorStore),
    )
    async def search(request: Request, vector_store_id: str) -> Response:
        caller = api.caller(request.headers, "file_search")
        admission = await api.admit(caller, request.scope)
        body = await read_body(request, SearchVectorStore, api.body_limits)
        return json_response(await stores.search(caller.owner, vector_store_id, body, caller.access, admission))

    _add_files(router, api, stores)
    _add_batches(router, api, stores)
    return router


def _add_files(router: APIRouter, api: APIDependencies, stores: VectorStores) -> None:
    owner_of, admitted_caller = api.owner_dependency("file_search"), api.admitted_dependency("file_search")

    @router.post(
        "/vector_stores/{vector_store_id}/files",
        summary="Add a file to a vector store",
        openapi_extra=request_body(AddFile),
    )
    async def add(request: Request, vector_store_id: str, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, AddFile, api.body_limits)
        return json_response(await stores.add_file(caller.owner, vector_store_id, body, caller.access))

    @router.get("/vector_stores/{vector_store_id}/files", summary="List the files of a vector store")
    async def listed(vector_store_id: str, page: PageQuery, status: Status = None, owner: str = owner_of) -> Response:
        return json_response(await stores.files(owner, vector_store_id, page, status))

    @router.get("/vector_stores/{vector_store_id}/files/{file_id}", summary="Retrieve a file of a vector store")
    async def retrieve(vector_store_id: str, file_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.file(owner, vector_store_id, file_id))

    @router.post(
        "/vector_stores/{vector_store_id}/files/{file_id}",
        summary="Update the attributes of a file of a vector store",
        openapi_extra=request_body(UpdateFile),
    )
    async def update(request: Request, vector_store_id: str, file_id: str, owner: str = owner_of) -> Response:
        body = await read_body(request, UpdateFile, api.body_limits)
        return json_response(await stores.update_file(owner, vector_store_id, file_id, body))

    @router.delete("/vector_stores/{vector_store_id}/files/{file_id}", summary="Remove a file from a vector store")
    async def remove(vector_store_id: str, file_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.remove_file(owner, vector_store_id, file_id))

    @router.get("/vector_stores/{vector_store_id}/files/{file_id}/content", summary="Retrieve the text of a file")
    async def content(vector_store_id: str, file_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.file_content(owner, vector_store_id, file_id))


def _add_batches(router: APIRouter, api: APIDependencies, stores: VectorStores) -> None:
    owner_of, admitted_caller = api.owner_dependency("file_search"), api.admitted_dependency("file_search")

    @router.post(
        "/vector_stores/{vector_store_id}/file_batches",
        summary="Add several files to a vector store",
        openapi_extra=request_body(CreateBatch),
    )
    async def create(request: Request, vector_store_id: str, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateBatch, api.body_limits)
        return json_response(await stores.add_batch(caller.owner, vector_store_id, body, caller.access))

    @router.get("/vector_stores/{vector_store_id}/file_batches/{batch_id}", summary="Retrieve a batch of files")
    async def retrieve(vector_store_id: str, batch_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.batch(owner, vector_store_id, batch_id))

    @router.post("/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel", summary="Cancel a batch of files")
    async def cancel(vector_store_id: str, batch_id: str, owner: str = owner_of) -> Response:
        return json_response(await stores.cancel_batch(owner, vector_store_id, batch_id))

    @router.get("/vector_stores/{vector_store_id}/file_batches/{batch_id}/files", summary="List the files of a batch")
    async def files(
        vector_store_id: str, batch_id: str, page: PageQuery, status: Status = None, owner: str = owner_of
    ) -> Response:
        return json_response(await stores.files(owner, vector_store_id, page, status, batch_id))
