"""Routes for responses and models: JSON and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import idempotency
from app.api.auth import header_values
from app.api.dependencies import APIDependencies
from app.api.errors import api_error, shutdown_error, uses_messages_api
from app.api.json_response import json_response
from app.api.openapi import CREATE, STREAMED, api_router
from app.api.pagination import PageQuery, page_of_items, parse_whole_number
from app.api.rate_limits import Admission
from app.api.request_body import load_json, read_as, read_body, read_model, validate, warning_headers
from app.api.routes.models import allowed_models, catalog, find_model, messages_catalog, messages_model
from app.api.sse_response import EventStream
from app.api.uvicorn.disconnect import CancelOnDisconnect, client_disconnected
from app.core.bounded_json import dumps
from app.core.stream import event_batch
from app.core.stream.event_batch import DeltaEvents, EventBatch
from app.core.stream.replay import replayed_events
from app.core.types.request import TERMINAL, CreateResponse, Event
from app.errors import APIError, InvalidRequest, NotFound
from app.responses import Caller, Run
from app.responses.background import EventSubscription
from app.responses.compaction import triggering
from app.responses.inspection import Inspection

POLL_AFTER_MS = "1000"  # default in OpenAI's SDKs

WHITE_SPACE = b"\n"  # before a JSON document

Stream = Annotated[str, Query(description="`true`: stream the events of a background response")]
StartingAfter = Annotated[str | None, Query(description="the sequence number of the event to continue after")]


def routes(api: APIDependencies) -> APIRouter:
    router = api_router("responses")
    responses, stored = api.responses, api.responses.stored
    inspection, caller_of, admitted_caller = Inspection(responses), api.caller_dependency(), api.admitted_dependency()

    @router.post("/responses", summary="Create a response", openapi_extra=CREATE | STREAMED)
    async def create_response(request: Request) -> Response:
        return await create(api, request.scope, request.receive)

    @router.get("/responses/{response_id}", summary="Retrieve a response")
    async def retrieve(
        response_id: str,
        stream: Stream = "false",
        starting_after: StartingAfter = None,
        caller: Caller = caller_of,
    ) -> Response:
        if stream.lower() in ("true", "1"):
            subscription = await stored.follow(response_id, caller, parse_starting_after(starting_after))
            return subscription_stream(subscription, caller, api)
        return pollable_response(await stored.retrieve(response_id, caller))

    @router.delete("/responses/{response_id}", summary="Delete a response")
    async def delete(response_id: str, caller: Caller = caller_of) -> Response:
        await stored.delete(response_id, caller)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @router.post("/responses/{response_id}/cancel", summary="Cancel a background response")
    async def cancel(response_id: str, caller: Caller = caller_of) -> Response:
        return json_response(await stored.cancel(response_id, caller))

    @router.get("/responses/{response_id}/input_items", summary="List the input items of a response")
    async def input_items(response_id: str, page: PageQuery, caller: Caller = caller_of) -> Response:
        items = await stored.input_items(response_id, caller)
        return json_response(page_of_items(items, page))

    @router.post("/responses/compact", summary="Compact a conversation", openapi_extra=CREATE)
    async def compact(request: Request, caller: Caller = caller_of) -> Response:
        admission = await api.admit(caller, request.scope)
        body = triggering(await read_body(request, CreateResponse, api.body_limits))
        with admission:
            await admission.acquire_slots()
            run = await responses.create(body, caller, account=admission)
            with CancelOnDisconnect(request.scope, request.receive):
                return json_response(await run.compacted(), warning_headers(run.warnings))
            return client_disconnected()

    @router.post("/responses/input_tokens", summary="Count the tokens of an input", openapi_extra=CREATE)
    async def input_tokens(request: Request, caller: Caller = admitted_caller) -> Response:
        body = await read_body(request, CreateResponse, api.body_limits)
        count, exact = await inspection.count_tokens(body, caller)
        headers = {} if exact else {"x-antiphon-estimated": "true"}
        return json_response({"object": "response.input_tokens", "input_tokens": count}, headers)

    @router.get("/models", summary="List the models of the backend")
    async def models(request: Request, caller: Caller = admitted_caller) -> Response:
        listed = await allowed_models(responses.backend, caller)
        if uses_messages_api(request.scope):
            return json_response(messages_catalog(listed))
        return json_response(catalog(listed, describes_images=responses.vision is not None))

    @router.get("/models/{model:path}", summary="Retrieve a model")
    async def model(request: Request, model: str, caller: Caller = admitted_caller) -> Response:
        found = await find_model(responses.backend, model, caller)
        return json_response(messages_model(found) if uses_messages_api(request.scope) else found)

    return router


class FastPath:
    """
    Serves `POST /v1/responses` and `others` without FastAPI.

    Middleware and FastAPI features for web pages (CORS, with an `Origin`) and other paths would cost a tenth of a small
    response's CPU time, and half of a forwarded request's. `others` are ASGI applications that raise `APIError` before
    they send anything.
    """

    def __init__(self, app: ASGIApp, api: APIDependencies, others: Sequence[Route]) -> None:
        self._app = app
        self._api = api
        self._own = Route("/v1/responses", partial(create, api), methods=["POST"])
        self._routes = {route.path: route for route in (*others, self._own) if not route.param_convertors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope.get("method") == "POST" else None
        if route is None or b"origin" in dict(scope["headers"]):
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # for metric and span labels
        try:
            if route is not self._own:
                await route.app(scope, receive, send)
                return
            response = await create(self._api, scope, receive)
        except APIError as error:
            response = api_error(Request(scope, receive), error)
        await response(scope, receive, send)


async def create(api: APIDependencies, scope: Scope, receive: Receive) -> Response:
    """JSON, an event stream or, in the background, the queued response."""
    headers = header_values(scope)
    caller = api.auth.caller(headers)
    admission = await api.admit(caller, scope)
    if key := headers.get(idempotency.HEADER):
        return await create_once(api, scope, receive, key, caller, admission)
    body = await read_model(scope, receive, CreateResponse, api.body_limits)
    return await Answer(api, caller).respond(scope, receive, body, admission)


class Answer:
    """
    Creates a response and sends it, as JSON, an event stream or, in the background, the queued response.

    This class writes the Responses API's format; client APIs have their own.
    """

    last = event_batch.DONE_FRAME  # sent at a stream's end
    encode = staticmethod(event_batch.encode_batch)
    _run: Run

    def __init__(self, api: APIDependencies, caller: Caller, claim: idempotency.KeyClaim | None = None) -> None:
        self._api, self._caller, self._claim = api, caller, claim

    def encode_last(self, events: EventBatch) -> bytes:
        return event_batch.encode_sse(events) + event_batch.DONE_FRAME

    def beat(self) -> bytes:
        return _heartbeat(self._caller, self._run.keepalive)

    def document(self) -> Mapping[str, object]:
        return self._run.response

    def headers(self) -> Mapping[str, str]:
        return warning_headers(self._run.warnings)

    async def respond(self, scope: Scope, receive: Receive, body: CreateResponse, admission: Admission) -> Response:
        claim = self._claim
        with admission:
            if admission.key_limits.needs_slots:
                await admission.acquire_slots()
            observers = [claim] if claim else ()
            run = await self._api.responses.create(body, self._caller, account=admission, observers=observers)
            self._run = run
            if body.background:
                response = await background_response(body, run, self._caller, self._api)
                if claim:
                    claim.end(run.response["id"])
                return response
            # Failures before the first byte are raised.
            with CancelOnDisconnect(scope, receive):
                if body.stream:
                    answer: EventStream[Any] = self._event_stream()
                elif heartbeat := self._api.json_heartbeat:
                    answer = self._heartbeat_stream(heartbeat)
                else:
                    await run.drain()
                    return json_response(self.document(), self.headers())
                await answer.begin()
                if not run.ended:  # later rounds can cost more
                    admission.headers().pop("x-antiphon-cost", None)
                answer.headers.update(self.headers())
                return answer
            return client_disconnected()

    def _event_stream(self) -> EventStream[EventBatch]:
        run, api = self._run, self._api

        async def on_abort(error: Exception | None) -> bytes:
            return self.encode_last(await (run.break_off(error) if error else run.stop(shutdown_error())))

        return EventStream[EventBatch](
            partial(run.generate, open_after=api.open_after),
            self.encode,
            heartbeat=api.heartbeat,
            beat=self.beat,
            last=self.last,
            on_abort=on_abort,
        )

    def _heartbeat_stream(self, heartbeat: float) -> EventStream[bytes]:
        """JSON after white space, which is sent every `heartbeat` seconds."""
        run = self._run

        async def produce(stream: EventStream[bytes]) -> None:
            def begin() -> None:
                run.answering = True
                stream.send(WHITE_SPACE)

            timer = asyncio.get_running_loop().call_later(heartbeat, begin)
            try:
                await run.drain()
            finally:
                timer.cancel()
            stream.send(dumps(self.document()))

        async def on_abort(_: Exception | None) -> bytes:
            if run.ended:
                return b""  # the document was already sent
            await run.stop(shutdown_error())
            return dumps(self.document())

        headers = {"Content-Type": "application/json"}
        return EventStream[bytes](
            produce, bytes, heartbeat=heartbeat, beat=lambda: WHITE_SPACE, on_abort=on_abort, headers=headers
        )


async def respond_once(claim: idempotency.KeyClaim, answer: Awaitable[Response]) -> Response:
    """Free the key unless the response's end or a disconnect ends the claim."""
    try:
        response = await answer
    except BaseException:
        claim.end(None)
        raise
    if not isinstance(response, EventStream):
        claim.end(None)
    return response


async def create_once(
    api: APIDependencies, scope: Scope, receive: Receive, key: str, caller: Caller, admission: Admission
) -> Response:
    """Create the response, or repeat an earlier response with the same `Idempotency-Key`."""

    def parsed(data: bytes) -> tuple[CreateResponse, str]:
        fields = load_json(data, "body", api.body_limits.values)
        digest = idempotency.digest(fields)
        return validate(fields, CreateResponse, len(data)), digest

    body, digest = await read_as(scope, receive, parsed, api.body_limits)
    claimed = await api.idempotency.claim(caller.owner, key, digest)
    if isinstance(claimed, str):
        return await replayed(api, claimed, body, caller)
    return await respond_once(claimed, Answer(api, caller, claimed).respond(scope, receive, body, admission))


async def replayed(api: APIDependencies, response_id: str, body: CreateResponse, caller: Caller) -> Response:
    """Raises `InvalidRequest` if the response is no longer stored."""
    headers = {idempotency.REPLAYED_HEADER: "true"}
    try:
        stored = await api.responses.stored.retrieve(response_id, caller)
    except NotFound as error:
        raise idempotency.not_stored() from error
    if not body.stream:
        return pollable_response(stored, headers)
    if stored["background"] and stored["status"] not in TERMINAL:
        return subscription_stream(await api.responses.stored.follow(response_id, caller), caller, api, headers)
    events = replayed_events(stored, caller.dialect.reasoning("content"))

    async def send(stream: EventStream[EventBatch]) -> None:
        stream.send(events)

    return EventStream(send, event_batch.encode_batch, last=event_batch.DONE_FRAME, headers=headers)


async def background_response(body: CreateResponse, run: Run, caller: Caller, api: APIDependencies) -> Response:
    response = await api.responses.stored.launch(body, run)
    headers = warning_headers(run.warnings)
    if not body.stream:
        return pollable_response(response, headers)
    return subscription_stream(await api.responses.stored.follow(response["id"], caller), caller, api, headers)


def pollable_response(resource: Mapping[str, object], headers: Mapping[str, str] = {}) -> Response:
    """A response with the polling interval, until it has ended."""
    ended = resource["status"] in TERMINAL
    return json_response(resource, headers if ended else {**headers, "openai-poll-after-ms": POLL_AFTER_MS})


def subscription_stream(
    subscription: EventSubscription, caller: Caller, api: APIDependencies, headers: dict[str, str] | None = None
) -> Response:
    async def follow(stream: EventStream[bytes]) -> None:
        async with contextlib.aclosing(subscription.batches()) as batches:
            async for data in batches:
                stream.send(data)
                del data
                await stream.drain()
                await asyncio.sleep(0)  # other requests first: a client may accept all stored events at once

    return EventStream[bytes](
        follow,
        caller.dialect.translate,
        heartbeat=api.heartbeat,
        beat=partial(_heartbeat, caller, subscription.keepalive),
        last=event_batch.DONE_FRAME,
        headers=headers,
    )


def _heartbeat(caller: Caller, keepalive: Callable[[], Iterable[Event | DeltaEvents]]) -> bytes:
    return event_batch.encode_sse(keepalive()) if caller.dialect.heartbeat == "keepalive" else event_batch.COMMENT


def parse_starting_after(starting_after: str | None) -> int:
    """-1 for all events. Raises `InvalidRequest`."""
    if starting_after is None:
        return -1
    if (number := parse_whole_number(starting_after)) is None:
        message = "Invalid 'starting_after': must be an event's sequence number."
        raise InvalidRequest(message, param="starting_after")
    return number
