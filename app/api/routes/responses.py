"""The routes of the API: JSON and server-sent events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from app.api.auth import Auth
from app.api.errors import STOPPED
from app.api.openapi import CREATE, ERRORS, STREAMED
from app.api.rate_limits import Admission, Limits
from app.api.request_body import BodyLimits, read_body
from app.api.routes.models import catalog
from app.api.sse_response import EventStream, disconnected
from app.core.sse import encoder, log
from app.core.types.request import CreateResponse, Event, Item
from app.errors import APIError, InvalidRequest
from app.responses import Caller, Responses, Run, find_model
from app.responses.background import EventSubscription
from app.responses.compaction import CompactResponse

Stream = Annotated[str, Query(description="`true`: in events, which a background response has")]
StartingAfter = Annotated[str | None, Query(description="the sequence number of the event to go on from")]


_CONTROLS = re.compile(r"[\x00-\x1f\x7f]+")  # which would end a header


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What the routes need to know of the configuration."""

    responses: Responses
    auth: Auth
    open_after: float
    heartbeat: float
    body_limits: BodyLimits
    limits: Limits

    async def admit(self, who: Caller) -> Admission:
        """Let a caller ask for a response; raises `LimitReached`. Where nobody has to show a key, all are one."""
        return await self.limits.take(who.owner if self.auth.required else "everybody")


def routes(api: ApiContext) -> APIRouter:
    """Return the routes, without the `/v1`."""
    router = APIRouter(responses=ERRORS)
    responses = api.responses

    def caller(request: Request) -> Caller:
        return api.auth.caller(request.headers)

    @router.post("/responses", summary="Create a response", openapi_extra=CREATE | STREAMED)
    async def create_response(request: Request) -> Response:
        return await create(api, request)

    @router.get("/responses/{response_id}", summary="Retrieve a response")
    async def retrieve(
        request: Request, response_id: str, stream: Stream = "false", starting_after: StartingAfter = None
    ) -> Response:
        who = caller(request)
        if stream.lower() in ("true", "1"):
            return followed(await responses.follow(response_id, who, position(starting_after)), who, api)
        return json(await responses.retrieve(response_id, who))

    @router.delete("/responses/{response_id}", summary="Delete a response")
    async def delete(request: Request, response_id: str) -> Response:
        await responses.delete(response_id, caller(request))
        return json({"id": response_id, "object": "response", "deleted": True})

    @router.post("/responses/{response_id}/cancel", summary="Cancel a response that runs in the background")
    async def cancel(request: Request, response_id: str) -> Response:
        return json(await responses.cancel(response_id, caller(request)))

    @router.get("/responses/{response_id}/input_items", summary="List the input items of a response")
    async def input_items(
        request: Request,
        response_id: str,
        limit: str = Query("20", description="1 to 100"),
        order: str = Query("desc", description="`asc` or `desc`"),
        after: str | None = Query(None, description="the id of the item to list from"),
        before: str | None = Query(None, description="the id of the item to list up to"),
    ) -> Response:
        items = await responses.input_items(response_id, caller(request))
        return json(page(items, limit, order, after, before))

    @router.post("/responses/compact", summary="Compact a conversation", openapi_extra=CREATE)
    async def compact(request: Request) -> Response:
        who = caller(request)
        grant = await api.admit(who)
        request.state.allowed = grant.headers()
        body = await read_body(request, CompactResponse, api.body_limits)
        async with grant.slot():
            return await unless_gone(request, compacted(await responses.compact(body, who, [grant])))

    @router.post("/responses/input_tokens", summary="Count the tokens of an input", openapi_extra=CREATE)
    async def input_tokens(request: Request) -> Response:
        who = caller(request)
        body = await read_body(request, CreateResponse, api.body_limits)
        count, counted = await responses.count_tokens(body, who)
        headers = {} if counted else {"x-antiphon-estimated": "true"}
        return json({"object": "response.input_tokens", "input_tokens": count}, headers)

    @router.get("/models", summary="List the models of the backend")
    async def models(request: Request) -> Response:
        who = caller(request)
        return json(catalog(await responses.backend.models(who.key)))

    @router.get("/models/{model:path}", summary="Retrieve a model")
    async def model(request: Request, model: str) -> Response:
        return json(await find_model(responses.backend, model, caller(request)))

    return router


class FastRoute(Route):
    """A route that FastAPI need not look at, which would match each path twice, and solve dependencies on nothing."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


def fast_routes(api: ApiContext, *prefixes: str) -> list[Route]:
    """Return the way that nearly all requests take, which comes before all `routes`; they document it."""
    return [FastRoute(f"{prefix}/responses", partial(create, api), methods=["POST"]) for prefix in prefixes]


async def create(api: ApiContext, request: Request) -> Response:
    """Create a response, and answer as the caller wants it: whole, in events, or at once while it is being made."""
    who = api.auth.caller(request.headers)
    grant = await api.admit(who)
    request.state.allowed = grant.headers()
    body = await read_body(request, CreateResponse, api.body_limits)  # it has all the time it likes
    async with grant.slot():
        run = await api.responses.create(body, who, observers=[grant])
        if body.background:
            return await launched(run, who, api, stream=body.stream)
        return await unless_gone(request, streamed(run, who, api) if body.stream else whole(run))


def json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


async def whole(run: Run) -> Response:
    return json(await run.drain(), _headers(run))


async def compacted(run: Run) -> Response:
    return json(await run.compacted(), _headers(run))


async def streamed(run: Run, caller: Caller, api: ApiContext) -> Response:
    """Answer in events, once there is something to say: until then every failure is a plain HTTP error."""
    events = run.events(api.open_after)
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    return EventStream(
        events,
        encoder.encode_sse,
        first=first,
        last=encoder.DONE_FRAME,
        heartbeat=api.heartbeat,
        beat=_beat(caller, run.keepalive),
        farewell=lambda: _farewell(run),
        headers=_headers(run),
    )


async def _farewell(run: Run) -> bytes:
    return encoder.encode_sse(await run.stop(STOPPED)) + encoder.DONE_FRAME


async def launched(run: Run, caller: Caller, api: ApiContext, *, stream: bool) -> Response:
    """Answer at once with the queued response, or with its events as they come."""
    response = await api.responses.launch(run)
    if not stream:
        return json(response, _headers(run))
    return followed(await api.responses.follow(response["id"], caller), caller, api, _headers(run))


def followed(
    following: EventSubscription, caller: Caller, api: ApiContext, headers: dict[str, str] | None = None
) -> Response:
    """Answer in the events of a background response, by the names that this client knows."""
    return EventStream(
        following.batches(),
        partial(log.translate_dialect, dialect=caller.dialect),
        last=encoder.DONE_FRAME,
        heartbeat=api.heartbeat,
        beat=_beat(caller, following.keepalive),
        headers=headers,
    )


def _beat(caller: Caller, keepalive: Callable[[], list[Event]]) -> Callable[[], bytes]:
    """Return what makes a sign of life, in the way that this client hears it."""
    return (
        (lambda: encoder.encode_sse(keepalive()))
        if caller.dialect.heartbeat == "keepalive"
        else lambda: encoder.COMMENT
    )


async def unless_gone(request: Request, answer: Coroutine[Any, Any, Response]) -> Response:
    """Return the answer; when the client goes before it is there, stop making it."""
    making = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(disconnected(request.receive))
    gone.add_done_callback(lambda _: making.cancel())
    try:
        return await making
    except asyncio.CancelledError:
        if gone.done() and making.cancelled() and not _this_task().cancelling():
            return Response(status_code=499)  # nobody is there to read it
        raise
    finally:
        gone.cancel()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task
    return task


def _headers(run: Run) -> dict[str, str]:
    """Tell of what was left out or changed, where the caller can see it."""
    warnings = _CONTROLS.sub(" ", "; ".join(run.warnings).encode("ascii", "replace").decode()[:2000])
    return {"x-antiphon-warning": warnings} if warnings else {}


def position(starting_after: str | None) -> int:
    """Return the sequence number after which to begin; raises `InvalidRequest`."""
    if starting_after is None:
        return -1
    if (number := whole_number(starting_after)) is None:
        message = "Invalid 'starting_after': it has to be the sequence number of an event."
        raise InvalidRequest(message, param="starting_after")
    return number


def whole_number(text: str) -> int | None:
    """Return a number of a query, or None if it is none, or one of a size that nothing here has."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


def page(
    items: list[Item],
    limit: str,
    order: str,
    after: str | None,
    before: str | None,
    gone: type[APIError] = InvalidRequest,
) -> dict[str, Any]:
    """
    Return a cursor page of items, which are given oldest first, as OpenAI shapes it.

    Raises `InvalidRequest`, and `gone` for a cursor that is the id of no item here.
    """
    size = whole_number(limit)
    if size is None or not 1 <= size <= 100:
        raise InvalidRequest("Invalid 'limit': it has to be a number from 1 to 100.", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid 'order': it has to be 'asc' or 'desc'.", param="order")
    listed = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in listed]
    begin = _cursor(ids, after, "after", gone) + 1 if after else 0
    end = _cursor(ids, before, "before", gone) if before else len(listed)
    data = listed[begin:end]
    data, more = (data[:size], len(data) > size)
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": more,
    }


def _cursor(ids: list[str], id: str, name: str, gone: type[APIError]) -> int:
    if id not in ids:
        raise gone(f"Invalid '{name}': no item with id '{id}' here.", param=name)
    return ids.index(id)
