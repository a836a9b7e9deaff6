"""Inspection endpoints: recent responses, chains, translated requests, configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from app.api.accounting.listing import DEFAULT_GROUPS, GROUPS, UsageQuery, list_usage
from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import CREATE, ERRORS, request_body, response_example
from app.api.pagination import parse_limit, parse_whole_number
from app.api.request_body import read_body
from app.api.routes.lazy_route import LazyRoute
from app.api.uvicorn.disconnect import CancelOnDisconnect, client_disconnected
from app.core.types.request import WITHOUT_NUL, CreateResponse
from app.errors import InvalidRequest
from app.responses import Caller
from app.responses.inspection import Inspection, ResponseFilter

_RESPONSE = "resp_5f3759df5f3759dfc0ffee00c0ffee00c0ffee00"
_ENTRY = {
    "id": _RESPONSE,
    "created_at": 1790000000,
    "status": "completed",
    "model": "demo",
    "previous_response_id": None,
    "conversation": None,
    "usage": {"input_tokens": 3, "output_tokens": 3, "total_tokens": 6},
    "background": False,
    "seconds": 1.204,
    "first_token_seconds": 0.31,
    "queued_seconds": 0.0,
    "cost": 0.000123,
    "backend": "default",
    "key": "alice",
    "delivery": "sse",
    "steps": [
        {"kind": "model", "start": 0.0, "end": 0.52, "status": "completed"},
        {"kind": "tool", "start": 0.52, "end": 0.8, "function": "web_search", "status": "completed"},
        {"kind": "model", "start": 0.8, "end": 1.204, "status": "completed"},
    ],
    "tools": ["web_search"],
    "error": None,
    "metadata": {},
    "preview": "Say hello.",
    "answer": "Hello!",
}
_FACETS = {
    "object": "antiphon.facets",
    "searched": 120,
    "complete": True,
    "data": {"status": [{"value": "completed", "count": 118}, {"value": "failed", "count": 2}]},
}
_LIST = {"object": "list", "data": [_ENTRY], "first_id": _RESPONSE, "last_id": _RESPONSE, "has_more": False}
_CHAIN_ENTRY = {
    "object": "antiphon.chain",
    "id": _RESPONSE,
    "status": "completed",
    "model": "demo",
    "background": False,
    "created_at": 1790000000,
    "updated_at": 1790000042,
    "title": "Say hello.",
    "name": "Greetings",
    "pinned": False,
    "responses": 3,
}
_LABEL = {name: _CHAIN_ENTRY[name] for name in ("object", "id", "name", "pinned")}
_CHAINS = {"object": "list", "data": [_CHAIN_ENTRY], "first_id": _RESPONSE, "last_id": _RESPONSE, "has_more": False}
_MCP_SERVER = {
    "object": "antiphon.mcp_server",
    "server_label": "lab",
    "tools": [{"name": "add", "description": "Adds two numbers.", "needs_approval": False}],
    "error": None,
}
_INPUT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say hello."}]}
_MEASURES = {
    "seconds": 1.204,
    "first_token_seconds": 0.31,
    "cost": 0.000123,
    "backend": "default",
    "key": "alice",
    "delivery": "sse",
    "queued_seconds": 0.0,
    "steps": [
        {"kind": "tools", "start": 0.0, "end": 0.02},
        {"kind": "model", "start": 0.02, "end": 0.52, "round": 0, "status": "completed", "output_tokens": 21},
        {
            "kind": "tool",
            "start": 0.52,
            "end": 0.8,
            "call_id": "call_1",
            "tool": "web_search",
            "function": "web_search",
        },
    ],
}
_CHAIN = {
    "object": "list",
    "data": [
        {
            "response": {"id": _RESPONSE, "object": "response", "output": []},
            "input": [_INPUT],
            "request": {"temperature": 0.2},
            "measures": _MEASURES,
        }
    ],
    "earlier": [],
    "forks": [],
}
_TRANSLATION = {
    "object": "antiphon.translation",
    "backend": "default",
    "profile": "vllm",
    "url": "http://localhost:8000/v1/chat/completions",
    "body": {"model": "qwen3", "messages": [{"role": "user", "content": "Say hello."}], "stream": True},
    "warnings": [],
}
_LOCAL_SERVERS = {
    "object": "list",
    "looked": True,
    "data": [{"name": "Ollama", "url": "http://localhost:11434/v1", "models": ["qwen3:8b"]}],
}
_COUNTS = {
    "requests": 12,
    "input_tokens": 4200,
    "cached_input_tokens": 3000,
    "output_tokens": 900,
    "reasoning_tokens": 300,
    "total_tokens": 5100,
    "cost": 0.0123,
}
_USAGE = {
    "object": "list",
    "from": "2026-11-01",
    "to": "2026-11-22",
    "data": [{"object": "antiphon.usage", "day": "2026-11-22", "key": "alice", "model": "qwen3", **_COUNTS}],
    "total": _COUNTS,
}
_ABOUT = {
    "object": "antiphon.about",
    "version": "0.1.0",
    "backends": [{"name": "default", "profile": "vllm", "url": "http://localhost:8000/v1", "models": ["*"]}],
    "store": {"kind": "sqlite", "ttl": 2592000},
    "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "lab"}],
    "file_search": True,
    "prompts": [
        {
            "id": "greeting",
            "versions": [{"version": "1", "variables": [{"name": "name", "default": None}], "model": None}],
        }
    ],
    "background": True,
    "key_required": False,
    "metrics": True,
    "currency": "€",
    "admin": False,
}


class UpdateChain(BaseModel):
    """Absent fields are not changed."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, StringConstraints(strip_whitespace=True, max_length=100), WITHOUT_NUL] | None = None
    """Shown in place of the first message; null or "" removes it."""
    pinned: Annotated[bool, Field(strict=True)] = False
    """Whether the conversation is listed first."""


def _chosen(description: str) -> Any:
    return Query(description=description)


@dataclass
class FilterQuery:
    """Selects responses. `filter` checks the parameters after the caller's key."""

    status: Annotated[str | None, _chosen("only responses with this status")] = None
    model: Annotated[str | None, _chosen("glob for models")] = None
    tool: Annotated[str | None, _chosen("glob for called functions, MCP servers or tool types")] = None
    backend: Annotated[str | None, _chosen("only responses from this backend")] = None
    key: Annotated[str | None, _chosen("only responses created with this key name")] = None
    delivery: Annotated[str | None, _chosen("json, sse, websocket or background")] = None
    text: Annotated[str | None, _chosen("text in the first 200 characters of message or answer")] = None
    conversation: Annotated[str | None, _chosen("only responses in the conversation with this id")] = None
    created_after: Annotated[str | None, _chosen("Unix time")] = None
    created_before: Annotated[str | None, _chosen("Unix time")] = None

    def filter(self, request: Request) -> ResponseFilter | None:
        """None if all responses match; raises `InvalidRequest`."""
        after, before = _time(self.created_after, "created_after"), _time(self.created_before, "created_before")
        metadata = _wanted_metadata(request)
        wanted = {name: value or None for name, value in vars(self).items() if not name.startswith("created_")}
        matches = ResponseFilter(**wanted, after=after, before=before, metadata=metadata)
        return None if matches == ResponseFilter() else matches


def _wanted_metadata(request: Request) -> tuple[tuple[str, str], ...]:
    """`metadata[name]=value`, as in OpenAI's list of stored completions."""
    return tuple(
        (name[len("metadata[") : -1], value)
        for name, value in request.query_params.multi_items()
        if name.startswith("metadata[") and name.endswith("]")
    )


def inspection_routes(
    api: APIDependencies,
    about: Callable[[Caller], dict[str, object]],
    find_local_servers: Callable[[], Awaitable[Sequence[tuple[str, str, list[str]]]]] | None = None,
) -> APIRouter:
    """`find_local_servers` returns names, base URLs and models; None disables the search."""
    router = APIRouter(route_class=LazyRoute, prefix="/antiphon", tags=["antiphon"], responses=ERRORS)
    inspection, caller_of, admitted_caller = (
        Inspection(api.responses),
        api.caller_dependency(),
        api.admitted_dependency(),
    )

    @router.get("/responses", summary="List the caller's recent responses", openapi_extra=response_example(_LIST))
    async def recent(
        request: Request,
        query: Annotated[FilterQuery, Depends(FilterQuery)],
        limit: str = Query("20", description="1 to 100"),
        after: str | None = Query(None, description="id of the newer response to list from"),
        caller: Caller = caller_of,
    ) -> Response:
        wanted = query.filter(request)
        return json_response(await inspection.recent(caller, parse_limit(limit), after, wanted))

    @router.get(
        "/responses/facets",
        summary="Count the caller's recent responses by status, model, tool, backend, key and delivery",
        openapi_extra=response_example(_FACETS),
    )
    async def facets(
        request: Request, query: Annotated[FilterQuery, Depends(FilterQuery)], caller: Caller = caller_of
    ) -> Response:
        return json_response(await inspection.facets(caller, query.filter(request)))

    @router.get(
        "/chains",
        summary="List the caller's chains of responses",
        openapi_extra=response_example(_CHAINS),
    )
    async def chains(
        request: Request,
        limit: str = Query("20", description="1 to 100"),
        after: str | None = Query(None, description="id of the chain (its newest response) to list from"),
        text: str = Query("", description="text in any message"),
        caller: Caller = caller_of,
    ) -> Response:
        metadata = _wanted_metadata(request)
        return json_response(await inspection.chains(caller, parse_limit(limit), after, text, metadata))

    @router.patch(
        "/chains/{response_id}",
        summary="Name or pin a response's chain",
        openapi_extra=request_body(UpdateChain) | response_example(_LABEL),
    )
    async def label(request: Request, response_id: str, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, UpdateChain, api.body_limits)
        changes = body.model_dump(include=body.model_fields_set)
        return json_response(await inspection.label_chain(response_id, changes, caller))

    @router.get(
        "/local-servers",
        summary="Find model servers on this machine; only for a server without keys on a loopback address",
        openapi_extra=response_example(_LOCAL_SERVERS),
    )
    async def local_servers(caller: Caller = admitted_caller) -> Response:
        looks = find_local_servers is not None and not api.auth.required
        found = await find_local_servers() if looks and find_local_servers else []
        data = [{"name": name, "url": url, "models": models} for name, url, models in found]
        return json_response({"object": "list", "looked": looks, "data": data})

    @router.get(
        "/responses/{response_id}/chain",
        summary="Retrieve a response and its predecessors, with input",
        openapi_extra=response_example(_CHAIN),
    )
    async def chain(response_id: str, caller: Caller = caller_of) -> Response:
        return json_response(await inspection.chain(response_id, caller))

    @router.get(
        "/mcp/{server_label}",
        summary="List the tools of a configured MCP server",
        openapi_extra=response_example(_MCP_SERVER),
    )
    async def mcp_server(request: Request, server_label: str, caller: Caller = admitted_caller) -> Response:
        with CancelOnDisconnect(request.scope, request.receive):
            return json_response(await inspection.mcp_tools(server_label, caller))
        return client_disconnected()

    @router.get(
        "/responses/{response_id}/translation",
        summary="Retrieve a response's backend request",
        openapi_extra=response_example(_TRANSLATION),
    )
    async def translation(response_id: str, caller: Caller = caller_of) -> Response:
        return json_response(await inspection.translation(response_id, caller))

    @router.post(
        "/translation",
        summary="Translate a request without sending it",
        openapi_extra=CREATE | response_example(_TRANSLATION),
    )
    async def preview(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateResponse, api.body_limits)
        return json_response(await inspection.preview(body, caller))

    @router.get(
        "/usage",
        summary="List usage by day, key and model: your own, or all with an admin key",
        openapi_extra=response_example(_USAGE),
    )
    async def usage(
        first: str | None = Query(
            None, alias="from", description="first day in UTC; by default the first day of the month"
        ),
        last: str | None = Query(None, alias="to", description="last day; by default today"),
        key: str | None = Query(None, description="glob for key names"),
        model: str | None = Query(None, description="glob for models"),
        group: str = Query(DEFAULT_GROUPS, description=f"grouping fields: any of {', '.join(GROUPS)}"),
        caller: Caller = caller_of,
    ) -> Response:
        query = UsageQuery.read(first, last, key, model, group)
        await api.accounting.wait_until_stored()
        return json_response(await list_usage(api.accounting.ledger, query, caller.access))

    @router.get("/about", summary="Describe the configuration", openapi_extra=response_example(_ABOUT))
    async def describe(caller: Caller = caller_of) -> Response:
        return json_response(about(caller))

    return router


def _time(text: str | None, param: str) -> int | None:
    if text and parse_whole_number(text) is None:
        message = f"Invalid '{param}': must be a Unix time in whole seconds."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return parse_whole_number(text) if text else None
