"""Conversations, as in OpenAI's API. The Open Responses specification only mentions them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import api_router, request_body
from app.api.pagination import ItemsQuery, page_of_items
from app.api.request_body import read_body
from app.core.types import JSONObject
from app.core.types.request import InputItem, Item, Metadata, typed
from app.errors import NotFound
from app.responses import Caller
from app.tools.files import Page

# "You may add up to 20 items at a time."
Items = Annotated[list[InputItem], Field(max_length=20)]


class CreateConversation(BaseModel, extra="allow", defer_build=True):
    items: Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(BaseModel, extra="allow", defer_build=True):
    metadata: Metadata | None


class CreateItems(BaseModel, extra="allow", defer_build=True):
    items: Items


def routes(api: APIDependencies) -> APIRouter:
    router = api_router("conversations")
    conversations, limits = api.responses.conversations, api.body_limits

    owner_of, admitted_caller = api.owner_dependency(), api.admitted_dependency()

    @router.post("/conversations", summary="Create a conversation", openapi_extra=request_body(CreateConversation))
    async def create(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateConversation, limits)
        items = await api.responses.reviewed_items(_typed(body.items), caller)
        return json_response(await conversations.create(caller.owner, items, body.metadata, caller.access))

    @router.get("/conversations/{conversation_id}", summary="Retrieve a conversation")
    async def retrieve(conversation_id: str, owner: str = owner_of) -> Response:
        return json_response(await conversations.retrieve(conversation_id, owner))

    @router.post(
        "/conversations/{conversation_id}",
        summary="Update the metadata of a conversation",
        openapi_extra=request_body(UpdateConversation),
    )
    async def update(request: Request, conversation_id: str, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, UpdateConversation, limits)
        return json_response(await conversations.update(conversation_id, caller.owner, body.metadata or {}))

    @router.delete("/conversations/{conversation_id}", summary="Delete a conversation and its items")
    async def delete(conversation_id: str, owner: str = owner_of) -> Response:
        await conversations.delete(conversation_id, owner)
        return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    @router.post(
        "/conversations/{conversation_id}/items",
        summary="Add items to a conversation",
        openapi_extra=request_body(CreateItems),
    )
    async def add(request: Request, conversation_id: str, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateItems, limits)
        reviewed = await api.responses.reviewed_items(_typed(body.items), caller)
        added = await conversations.add(conversation_id, caller.owner, reviewed, caller.access)
        return json_response(_page(added, Page(limit=100, descending=False)))

    @router.get("/conversations/{conversation_id}/items", summary="List the items of a conversation")
    async def items(conversation_id: str, page: ItemsQuery, owner: str = owner_of) -> Response:
        all_items, images = await conversations.items(conversation_id, owner)
        listed = _page(all_items, page)
        return json_response({**listed, "data": [await images.add_to(item) for item in listed["data"]]})

    @router.get("/conversations/{conversation_id}/items/{item_id}", summary="Retrieve an item of a conversation")
    async def item(conversation_id: str, item_id: str, owner: str = owner_of) -> Response:
        return json_response(await conversations.item(conversation_id, item_id, owner))

    @router.delete("/conversations/{conversation_id}/items/{item_id}", summary="Delete an item of a conversation")
    async def delete_item(conversation_id: str, item_id: str, owner: str = owner_of) -> Response:
        return json_response(await conversations.delete_item(conversation_id, item_id, owner))

    return router


def _typed(items: list[Any] | None) -> list[Item]:
    return [typed(item) for item in items or ()]


def _page(items: list[Item], page: Page) -> JSONObject:
    """OpenAI's schema has no null `first_id` and `last_id`."""
    listed = page_of_items(items, page, NotFound)
    return {**listed, "first_id": listed["first_id"] or "", "last_id": listed["last_id"] or ""}
