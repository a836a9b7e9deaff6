from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar, NamedTuple

from starlette.requests import Request
from starlette.responses import Response as HTTPResponse
from starlette.types import Scope

from app.api import idempotency
from app.api.client_apis import ClientAPI, ClientRequest, ClientWriter, Ending, renamed_error, renamed_warnings
from app.api.dependencies import APIDependencies
from app.api.errors import error_body, error_event, shutdown_error
from app.api.idempotency import KeyClaim
from app.api.json_response import json_response
from app.api.rate_limits import Admission
from app.api.request_body import validate, warning_headers
from app.api.routes.responses import heartbeat_response
from app.api.sse_response import EventStream, StreamEncoding
from app.api.uvicorn.disconnect import CancelOnDisconnect, client_disconnected
from app.core.dialects import TRANSLATED
from app.core.stream.event_batch import EventBatch
from app.core.types import JSONObject
from app.core.types.request import CreateResponse
from app.errors import APIError, InvalidRequest
from app.responses import Caller, Run
from app.responses.inspection import Inspection


class TranslatedRequest(NamedTuple):
    client: ClientAPI
    fields: JSONObject  # the client's
    read: ClientRequest
    body: CreateResponse


def is_translated(api: APIDependencies, client: ClientAPI, path: str, model: str, fields: JSONObject) -> bool:
    """
    Whether a request is translated, not forwarded.

    By default it is forwarded if the model's first backend has the client's API and the request names no hosted tool.
    The backend's `passthrough` setting overrides this. A blocking policy service, which reviews responses, requires
    translation.
    """
    backend, policy = api.responses.backend, api.responses.policy
    if (policy and policy.blocks) or not backend.forwards(path, model):
        return True
    if not (named := client.hosted_types(fields)):
        return False
    served = {type_ for tool in api.responses.tools.values() for type_ in tool.types}
    return not named.isdisjoint(served) and backend.profile(model).transport.passthrough == "auto"


def read_client_request(client: ClientAPI, fields: JSONObject, headers: Mapping[str, str]) -> TranslatedRequest:
    """Raises `InvalidRequest` with the client's field."""
    read = client.read(fields, headers)
    try:
        return TranslatedRequest(client, fields, read, create_request(read))
    except APIError as error:
        raise renamed_error(error, read.client_paths) from error.__cause__


async def translated(
    api: APIDependencies, translated_request: TranslatedRequest, request: Request, caller: Caller, admission: Admission
) -> HTTPResponse:
    client, fields, read, body = translated_request
    caller = replace(caller, dialect=TRANSLATED)
    try:
        claim = await _claim(api, request, fields, caller)
        try:
            with admission:
                await admission.acquire_slots()
                observers = [claim] if claim else []
                run = await api.responses.create(body, caller, account=admission, observers=observers)
                answer = _Answer(api, client, read, run, request.scope)
                response = client_disconnected()
                with CancelOnDisconnect(request.scope, request.receive):
                    response = await answer.response(stream=body.stream)
        except BaseException:
            if claim:
                claim.end(None)
            raise
        if claim and not isinstance(response, EventStream):
            claim.end(None)  # unless a disconnect ended the claim
        return response
    except APIError as error:
        raise renamed_error(error, read.client_paths) from error.__cause__


async def counted(api: APIDependencies, translated_request: TranslatedRequest, caller: Caller) -> HTTPResponse:
    client, _, read, body = translated_request
    assert client.counted
    try:
        count, exact = await Inspection(api.responses).count_tokens(body, caller)
    except APIError as error:
        raise renamed_error(error, read.client_paths) from error.__cause__
    headers = {} if exact else {"x-antiphon-estimated": "true"}
    return json_response(client.counted(count), {**headers, **warning_headers(read.warnings), **client.headers()})


def create_request(read: ClientRequest) -> CreateResponse:
    """
    Create an unstored response; raises `InvalidRequest`. The minimum for `max_output_tokens` does not apply: other
    client APIs accept fewer tokens.
    """
    fields = {**read.fields, "store": False, "background": False}
    limit = fields.pop("max_output_tokens", None)
    body = validate(fields, CreateResponse, 0)
    if limit is not None:
        body.max_output_tokens = limit
    if read.preferences:
        body.preferences = read.preferences
    return body


async def _claim(api: APIDependencies, request: Request, fields: JSONObject, caller: Caller) -> KeyClaim | None:
    """
    Claim the `Idempotency-Key`, if any.

    Raises `InvalidRequest` if its response has ended: unstored responses cannot be sent again.
    """
    key = request.headers.get(idempotency.HEADER)
    if not key:
        return None
    claimed = await api.idempotency.claim(caller.owner, key, idempotency.digest(fields))
    if isinstance(claimed, KeyClaim):
        return claimed
    message = "The response for this 'Idempotency-Key' was not stored and cannot be sent again. Use a new key."
    raise InvalidRequest(message, param="Idempotency-Key", code="idempotent_response_not_found", status=409)


class _Answer:
    def __init__(self, api: APIDependencies, client: ClientAPI, read: ClientRequest, run: Run, scope: Scope) -> None:
        self._api = api
        self._client = client
        self._read = read
        self._run = run
        self._scope = scope
        self._writer: ClientWriter = client.writer(read, run.response)

    async def response(self, *, stream: bool) -> HTTPResponse:
        heartbeat = self._api.json_heartbeat
        if stream:
            response: HTTPResponse = await self._stream()
        elif heartbeat:
            response = await heartbeat_response(self._run, heartbeat, self._document)
        else:
            await self._run.drain()
            response = json_response(self._document())
        warnings = [*self._read.warnings, *renamed_warnings(self._run.warnings, self._read.client_paths)]
        response.headers.update({**warning_headers(dict.fromkeys(warnings)), **self._client.headers()})
        return response

    def _document(self) -> JSONObject:
        """Raises the run's failure unless the headers were sent."""
        if failure := self._run.failure:
            error = renamed_error(failure, self._read.client_paths)
            if not self._run.answering:
                raise error
            return error_body(error, self._scope)
        return self._writer.document(Ending(self._run.response, self._run.stop_sequence))

    async def _stream(self) -> EventStream[EventBatch]:
        run, api = self._run, self._api

        async def on_shutdown() -> bytes:
            return self._encode(await run.stop(shutdown_error()))

        async def on_encode_error(error: Exception) -> bytes:
            return self._encode(await run.break_off(error))

        stream = EventStream[EventBatch](
            partial(run.generate, open_after=api.open_after),
            StreamEncoding(self._encode, lambda: self._client.heartbeat),
            heartbeat=api.heartbeat,
            on_shutdown=on_shutdown,
            on_encode_error=on_encode_error,
        )
        await stream.begin()
        return stream

    def _encode(self, events: EventBatch) -> bytes:
        write, last = self._writer.event, self._last
        return b"".join(
            [last[type_](self) if (type_ := event["type"]) in last else write(event) for event in events.events()]
        )

    def _none(self) -> bytes:
        return b""

    def _end(self) -> bytes:
        return self._writer.end(Ending(self._run.response, self._run.stop_sequence))

    def _failure(self) -> bytes:
        failure = self._run.failure or APIError("The response failed.")
        return error_event(renamed_error(failure, self._read.client_paths), self._scope)

    _last: ClassVar[Mapping[str, Callable[[_Answer], bytes]]] = {
        "error": _none,  # `response.failed` follows
        "keepalive": _none,
        "response.completed": _end,
        "response.incomplete": _end,
        "response.failed": _failure,
    }
