"""Inspection endpoints: recent responses, chains, translated requests, configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from app.api.accounting.listing import DEFAULT_GROUPS, GROUPS, list_usage
from app.api.dependencies import APIDependencies
from app.api.json_response import json_response
from app.api.openapi import CREATE, api_router, request_body, response_example
from app.api.pagination import Limit, parse_whole_number
from app.api.request_body import read_body
from app.api.uvicorn.disconnect import CancelOnDisconnect, client_disconnected
from app.core.types.request import WITHOUT_NUL, CreateResponse
from app.errors import InvalidRequest
from app.responses import Caller
from app.responses.inspection import Inspection, ResponseFilter


class UpdateChain(BaseModel):
    """Absent fields are not changed."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, StringConstraints(strip_whitespace=True, max_length=100), WITHOUT_NUL] | None = None
    """Shown in place of the first message; null or "" removes it."""
    pinned: Annotated[bool, Field(strict=True)] = False
    """Whether the conversation is listed first."""


@dataclass
class FilterQuery:
    """Selects responses. `filter` checks the parameters after the caller's key."""

    status: Annotated[str | None, Query(description="only responses with this status")] = None
    model: Annotated[str | None, Query(description="glob for models")] = None
    tool: Annotated[str | None, Query(description="glob for called functions, MCP servers or tool types")] = None
    backend: Annotated[str | None, Query(description="only responses from this backend")] = None
    key: Annotated[str | None, Query(description="only responses created with this key name")] = None
    delivery: Annotated[str | None, Query(description="json, sse, websocket or background")] = None
    text: Annotated[str | None, Query(description="text in the first 200 characters of message or answer")] = None
    conversation: Annotated[str | None, Query(description="only responses in the conversation with this id")] = None
    created_after: Annotated[str | None, Query(description="Unix time")] = None
    created_before: Annotated[str | None, Query(description="Unix time")] = None

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
    router = api_router("antiphon", prefix="/antiphon")
    inspection = Inspection(api.responses)
    caller_of, admitted_caller = api.caller_dependency(), api.admitted_dependency()

    @router.get("/responses", summary="List the caller's recent responses", openapi_extra=response_example("responses"))
    async def recent(
        request: Request,
        query: Annotated[FilterQuery, Depends(FilterQuery)],
        limit: Limit = 20,
        after: str | None = Query(None, description="id of the newer response to list from"),
        caller: Caller = caller_of,
    ) -> Response:
        wanted = query.filter(request)
        return json_response(await inspection.recent(caller, limit, after, wanted))

    @router.get(
        "/responses/facets",
        summary="Count the caller's recent responses by status, model, tool, backend, key and delivery",
        openapi_extra=response_example("facets"),
    )
    async def facets(
        request: Request, query: Annotated[FilterQuery, Depends(FilterQuery)], caller: Caller = caller_of
    ) -> Response:
        return json_response(await inspection.facets(caller, query.filter(request)))

    @router.get(
        "/chains",
        summary="List the caller's chains of responses",
        openapi_extra=response_example("chains"),
    )
    async def chains(
        request: Request,
        limit: Limit = 20,
        after: str | None = Query(None, description="id of the chain (its newest response) to list from"),
        text: str = Query("", description="text in any message"),
        caller: Caller = caller_of,
    ) -> Response:
        metadata = _wanted_metadata(request)
        return json_response(await inspection.chains(caller, limit, after, text, metadata))

    @router.patch(
        "/chains/{response_id}",
        summary="Name or pin a response's chain",
        openapi_extra=request_body(UpdateChain) | response_example("chain_label"),
    )
    async def label(request: Request, response_id: str, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, UpdateChain, api.body_limits)
        changes = body.model_dump(include=body.model_fields_set)
        return json_response(await inspection.label_chain(response_id, changes, caller))

    @router.get(
        "/local-servers",
        summary="Find model servers on this machine; only for a server without keys on a loopback address",
        openapi_extra=response_example("local_servers"),
    )
    async def local_servers(caller: Caller = admitted_caller) -> Response:
        find = None if api.auth.required else find_local_servers
        found = await find() if find else []
        data = [{"name": name, "url": url, "models": models} for name, url, models in found]
        return json_response({"object": "list", "looked": find is not None, "data": data})

    @router.get(
        "/responses/{response_id}/chain",
        summary="Retrieve a response and its predecessors, with input",
        openapi_extra=response_example("chain"),
    )
    async def chain(response_id: str, caller: Caller = caller_of) -> Response:
        return json_response(await inspection.chain(response_id, caller))

    @router.get(
        "/mcp/{server_label}",
        summary="List the tools of a configured MCP server",
        openapi_extra=response_example("mcp_server"),
    )
    async def mcp_server(request: Request, server_label: str, caller: Caller = admitted_caller) -> Response:
        with CancelOnDisconnect(request.scope, request.receive):
            return json_response(await inspection.mcp_tools(server_label, caller))
        return client_disconnected()

    @router.get(
        "/responses/{response_id}/translation",
        summary="Retrieve a response's backend request",
        openapi_extra=response_example("translation"),
    )
    async def translation(response_id: str, caller: Caller = caller_of) -> Response:
        return json_response(await inspection.translation(response_id, caller))

    @router.post(
        "/translation",
        summary="Translate a request without sending it",
        openapi_extra=CREATE | response_example("translation"),
    )
    async def preview(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateResponse, api.body_limits)
        return json_response(await inspection.preview(body, caller))

    @router.get(
        "/usage",
        summary="List usage by day, key and model: your own, or all with an admin key",
        openapi_extra=response_example("usage"),
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
        await api.accounting.wait_until_stored()
        ledger = api.accounting.ledger
        listed = await list_usage(ledger, caller.access, first=first, last=last, key=key, model=model, group=group)
        return json_response(listed)

    @router.get("/about", summary="Describe the configuration", openapi_extra=response_example("about"))
    async def describe(caller: Caller = caller_of) -> Response:
        return json_response(about(caller))

    return router


def _time(text: str | None, param: str) -> int | None:
    if not text:
        return None
    if (seconds := parse_whole_number(text)) is None:
        message = f"Invalid '{param}': must be a Unix time in whole seconds."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return seconds
