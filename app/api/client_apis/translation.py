from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response as HTTPResponse
from starlette.types import Scope

from app.api import idempotency
from app.api.client_apis import ClientAPI, ClientRequest, rename_error, renamed_warnings
from app.api.dependencies import APIDependencies
from app.api.errors import error_body, error_event
from app.api.idempotency import KeyClaim
from app.api.json_response import json_response
from app.api.rate_limits import Admission
from app.api.request_body import validate, warning_headers
from app.api.routes.responses import Answer, respond_once
from app.core.dialects import TRANSLATED
from app.core.stream.event_batch import EventBatch
from app.core.types import JSONObject
from app.core.types.request import CreateResponse
from app.errors import APIError
from app.responses import Caller
from app.responses.inspection import Inspection


class TranslatedRequest(NamedTuple):
    client: ClientAPI
    fields: JSONObject  # the client's
    read: ClientRequest
    body: CreateResponse

    async def respond(
        self, api: APIDependencies, request: Request, caller: Caller, admission: Admission
    ) -> HTTPResponse:
        claim: KeyClaim | None = None
        if key := request.headers.get(idempotency.HEADER):
            claimed = await api.idempotency.claim(caller.owner, key, idempotency.digest(self.fields))
            if isinstance(claimed, str):
                raise idempotency.not_stored()  # unstored responses cannot be sent again
            claim = claimed
        answer = _Answer(self, request.scope, api, replace(caller, dialect=TRANSLATED), claim)
        response = answer.respond(request.scope, request.receive, self.body, admission)
        return await (respond_once(claim, response) if claim else response)

    async def count_tokens(self, api: APIDependencies, caller: Caller) -> HTTPResponse:
        count, exact = await Inspection(api.responses).count_tokens(self.body, caller)
        headers = {} if exact else {"x-antiphon-estimated": "true"}
        headers |= {**warning_headers(self.read.warnings), **self.client.headers()}
        return json_response({"input_tokens": count}, headers)


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
        rename_error(error, read.client_paths)
        raise


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


# Not for the client API's writer. `response.failed` follows `error`.
_OWN_EVENTS = frozenset({"error", "keepalive", "response.completed", "response.incomplete", "response.failed"})


class _Answer(Answer):
    """A response in the client's format."""

    last = b""

    def __init__(self, request: TranslatedRequest, scope: Scope, *own: Any) -> None:
        super().__init__(*own)
        self._client, self._read, self._scope = request.client, request.read, scope
        self._writer = self._read.writer()

    def encode(self, events: EventBatch) -> bytes:
        write = self._writer.event
        return b"".join(
            [self._own(type_) if (type_ := event["type"]) in _OWN_EVENTS else write(event) for event in events.events()]
        )

    encode_last = encode

    def _own(self, event_type: str) -> bytes:
        if event_type in ("error", "keepalive"):
            return b""
        if event_type == "response.failed":
            failure = self._run.failure or APIError("The response failed.")
            return error_event(rename_error(failure, self._read.client_paths), self._scope)
        return self._writer.end(self._run.response, self._run.stop_sequence)

    def beat(self) -> bytes:
        return self._client.heartbeat

    def document(self) -> Mapping[str, object]:
        """Raises the run's failure unless the headers were sent."""
        if failure := self._run.failure:
            error = rename_error(failure, self._read.client_paths)
            if not self._run.answering:
                raise error
            return error_body(error, self._scope)
        return self._writer.document(self._run.response, self._run.stop_sequence)

    def headers(self) -> Mapping[str, str]:
        warnings = [*self._read.warnings, *renamed_warnings(self._run.warnings, self._read.client_paths)]
        return {**warning_headers(dict.fromkeys(warnings)), **self._client.headers()}
