"""The routes of conversations, in OpenAI's shapes: the Open Responses specification only mentions them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from app.api.openapi import ERRORS, takes
from app.api.request_body import read_body
from app.api.routes.responses import ApiContext, json, page, whole_number
from app.core.types.request import InputItem, Item, Metadata, typed
from app.errors import NotFound

# "You may add up to 20 items at a time."
Items = Annotated[list[InputItem], Field(max_length=20)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")


class CreateConversation(_Body):
    items: Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(_Body):
    metadata: Metadata | None


class CreateItems(_Body):
    items: Items


def routes(api: ApiContext) -> APIRouter:
    """Return the routes, without the `/v1`."""
    router = APIRouter(tags=["conversations"], responses=ERRORS)
    conversations, limits = api.responses.conversations, api.body_limits

    def owner(request: Request) -> str:
        return api.auth.caller(request.headers).owner

    @router.post("/conversations", summary="Create a conversation", openapi_extra=takes(CreateConversation))
    async def create(request: Request) -> Response:
        who = owner(request)
        body = await read_body(request, CreateConversation, limits)
        return json(await conversations.create(who, _typed(body.items), body.metadata))

    @router.get("/conversations/{conversation_id}", summary="Retrieve a conversation")
    async def retrieve(request: Request, conversation_id: str) -> Response:
        return json(await conversations.retrieve(conversation_id, owner(request)))

    @router.post(
        "/conversations/{conversation_id}",
        summary="Give a conversation other metadata",
        openapi_extra=takes(UpdateConversation),
    )
    async def update(request: Request, conversation_id: str) -> Response:
        who = owner(request)
        body = await read_body(request, UpdateConversation, limits)
        return json(await conversations.update(conversation_id, who, body.metadata or {}))

    @router.delete("/conversations/{conversation_id}", summary="Delete a conversation and its items")
    async def delete(request: Request, conversation_id: str) -> Response:
        await conversations.delete(conversation_id, owner(request))
        return json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    @router.post(
        "/conversations/{conversation_id}/items",
        summary="Add items to a conversation",
        openapi_extra=takes(CreateItems),
    )
    async def add(request: Request, conversation_id: str) -> Response:
        who = owner(request)
        body = await read_body(request, CreateItems, limits)
        return json(_list(await conversations.add(conversation_id, who, _typed(body.items)), "100", "asc"))

    @router.get("/conversations/{conversation_id}/items", summary="List the items of a conversation")
    async def items(
        request: Request,
        conversation_id: str,
        limit: str = Query("20", description="1 to 100; more is 100"),
        order: str = Query("desc", description="`asc` or `desc`"),
        after: str | None = Query(None, description="the id of the item to list from"),
        before: str | None = Query(None, description="the id of the item to list up to"),
    ) -> Response:
        listed = await conversations.items(conversation_id, owner(request))
        # Agents ask for as many as they want, and go on from the last one they get.
        limit = "100" if (whole_number(limit) or 0) > 100 else limit
        return json(_list(listed, limit, order, after, before))

    @router.get("/conversations/{conversation_id}/items/{item_id}", summary="Retrieve an item of a conversation")
    async def item(request: Request, conversation_id: str, item_id: str) -> Response:
        return json(await conversations.item(conversation_id, item_id, owner(request)))

    @router.delete("/conversations/{conversation_id}/items/{item_id}", summary="Delete an item of a conversation")
    async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
        return json(await conversations.delete_item(conversation_id, item_id, owner(request)))

    return router


def _typed(items: list[Any] | None) -> list[Item]:
    return [typed(item) for item in items or ()]


def _list(
    items: list[Item], limit: str, order: str, after: str | None = None, before: str | None = None
) -> dict[str, Any]:
    """Return a page; in OpenAI's schema of this list the ids are strings, also where there is no item."""
    listed = page(items, limit, order, after, before, NotFound)
    return {**listed, "first_id": listed["first_id"] or "", "last_id": listed["last_id"] or ""}
