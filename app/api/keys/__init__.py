"""
Key management endpoints: `/v1/antiphon/keys` and `/v1/antiphon/audit`.

Keys without admin rights are rejected before any lookup, to reveal nothing about existing keys.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.keys.managed_keys import CreateKey, ManagedKeys, RotateKey, UpdateKey
from app.api.openapi import api_router, request_body, response_example
from app.api.pagination import Limit, page_of_items
from app.api.request_body import Body, read_body
from app.core.access import KeyAccess
from app.core.types import JSONObject
from app.errors import PermissionDenied
from app.stores.keys import KeyChange
from app.tools.files import Page


def key_routes(api: APIDependencies, keys: ManagedKeys) -> APIRouter:
    router = api_router("antiphon", prefix="/antiphon")
    limits = api.body_limits

    async def admin(request: Request) -> KeyAccess:
        access = api.caller(request.headers).access
        if not (access.admin and access.configured):
            message = "This endpoint requires an admin key (`admin = true`)."
            raise PermissionDenied(message, code="insufficient_permissions")
        return access

    admin_of = Depends(admin)

    async def change(request: Request, model: type[Body]) -> tuple[KeyAccess, Body]:
        """Reads the body; checks the admin key again afterwards, because a body can arrive slowly."""
        await admin(request)
        body = await read_body(request, model, limits)
        return await admin(request), body

    @router.get("/keys", summary="List keys", openapi_extra=response_example("keys"))
    async def listed(
        limit: Limit = 100,
        after: str | None = Query(None, description="the id of the key to list from"),
        revoked: Annotated[bool, Query(description="list the revoked keys instead")] = False,
        actor: KeyAccess = admin_of,
    ) -> Response:
        found = await keys.listed(revoked=revoked)
        return json_response(page_of_items(found, Page(limit, descending=False, after=after)))

    @router.post(
        "/keys",
        summary="Create a key; only this response contains its secret",
        openapi_extra=request_body(CreateKey) | response_example("key_with_secret"),
    )
    async def create(request: Request) -> Response:
        actor, body = await change(request, CreateKey)
        return _answer(await keys.create(actor, body))

    @router.get("/keys/{key_id}", summary="Retrieve a key", openapi_extra=response_example("key"))
    async def retrieve(key_id: str, actor: KeyAccess = admin_of) -> Response:
        return _answer(await keys.retrieve(key_id))

    @router.patch(
        "/keys/{key_id}",
        summary="Change fields of a key",
        openapi_extra=request_body(UpdateKey) | response_example("key"),
    )
    async def update(request: Request, key_id: str) -> Response:
        actor, body = await change(request, UpdateKey)
        return _answer(await keys.update(actor, key_id, body))

    @router.delete("/keys/{key_id}", summary="Revoke a key", openapi_extra=response_example("revoked_key"))
    async def revoke(request: Request, key_id: str, actor: KeyAccess = admin_of) -> Response:
        return _answer(await keys.revoke(actor, key_id))

    @router.post(
        "/keys/{key_id}/rotate",
        summary="Give a key a new secret",
        openapi_extra=request_body(RotateKey) | response_example("key_with_secret"),
    )
    async def rotate(request: Request, key_id: str) -> Response:
        actor, body = await change(request, RotateKey)
        return _answer(await keys.rotate(actor, key_id, body))

    @router.get("/audit", summary="List changes of keys, newest first", openapi_extra=response_example("audit"))
    async def audit(
        limit: Limit = 20,
        after: str | None = Query(None, description="the id of the change to list from"),
        key: str | None = Query(None, description="only changes of the key with this id"),
        actor: KeyAccess = admin_of,
    ) -> Response:
        changes = [change for change in await keys.changes() if key in (None, change.key.id)]
        return json_response(page_of_items([*map(_described, changes)], Page(limit, descending=False, after=after)))

    return router


def _answer(key: JSONObject) -> Response:
    return json_response(key, {"cache-control": "no-store"})


def _described(change: KeyChange) -> JSONObject:
    return {
        "id": f"{change.number:012d}",
        "object": "antiphon.key_change",
        "at": change.at,
        "actor": change.actor,
        "action": change.action,
        "key": change.key.name,
        "key_id": change.key.id,
        "before": change.before,
        "after": change.after,
    }
