"""Backend endpoints that are passed through; this server's own routes take precedence."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from app.api.auth import header_values
from app.api.client_apis import CLIENT_APIS, client_api, rename_error
from app.api.client_apis.translation import TranslatedRequest, is_translated, read_client_request
from app.api.dependencies import APIDependencies
from app.api.errors import error_event, shutdown_error
from app.api.openapi import ANTHROPIC_ERRORS, ERRORS
from app.api.passthrough.bodies import FormBody, JSONBody, form_boundary, reads_as_model
from app.api.rate_limits import Admission
from app.api.request_body import read_as, validate
from app.api.routes.responses import Answer
from app.api.uvicorn.disconnect import BodyWriter, DisconnectWatch, MessageWriter, body_writer, client_disconnected
from app.backends import RawAnswer, RawRequest
from app.core.affinity import conversation_key
from app.core.types import JSONObject, Usage, json_list, json_object
from app.core.types.deltas import TokenCounts
from app.core.types.request import CreateResponse
from app.core.types.request import Response as ResponseObject
from app.core.usage import estimate_json, estimate_prompt, usage_of
from app.errors import APIError, BackendError, NotFound, PermissionDenied, missing_parameter
from app.observability import log_context
from app.observability.lifecycle import ResponseLifecycle, Watched, clock
from app.responses import Caller, Responses

logger = logging.getLogger(__name__)


class _Endpoint(NamedTuple):
    path: str  # as Starlette writes paths
    summary: str = ""  # "": not in the API description
    example: Mapping[str, object] = MappingProxyType({})  # body without the model; with `_FILE`, a form
    # JSON with a prompt: the default model applies, and unreported output tokens are estimated.
    prompts: bool = False
    free: bool = False  # only counts tokens, and is not charged
    anthropic: bool = False  # belongs to Anthropic's API
    client: str = ""  # client API endpoint for backends without this API
    of_deployments: bool = False  # exists below Azure deployments, which name the model


_CHAT, _MESSAGES, _FILE = "/chat/completions", "/messages", "file"
_HI = {"messages": [{"role": "user", "content": "Hello!"}]}
_deployed = partial(_Endpoint, of_deployments=True)
_anthropic = partial(_Endpoint, prompts=True, anthropic=True, client=_MESSAGES)

ENDPOINTS = (
    _deployed(_CHAT, "Create a chat completion", _HI, prompts=True, client=_CHAT),
    _deployed("/completions", "Create a completion", {"prompt": "Once upon a time"}, prompts=True),
    _anthropic(_MESSAGES, "Create a message, by Anthropic's API", {"max_tokens": 1000, **_HI}),
    _anthropic("/messages/count_tokens", "Count the tokens of a message, by Anthropic's API", _HI, free=True),
    _deployed("/embeddings", "Create embeddings", {"input": "Hello!"}),
    _Endpoint("/rerank", "Rank documents", {"query": "cats", "documents": ["A dog.", "A cat."]}),
    _Endpoint("/moderations", "Classify an input", {"input": "Hello!"}),
    _deployed("/images/generations", "Generate images", {"prompt": "A cat"}),
    _deployed("/images/edits", "Edit images", {"image": _FILE, "prompt": "A cat with a hat"}),
    _Endpoint("/images/variations", "Create variations of an image", {"image": _FILE}),
    _Endpoint("/images"),
    _Endpoint("/images/{rest:path}"),
    _deployed("/audio/speech", "Generate speech", {"input": "Hello!", "voice": "alloy"}),
    _deployed("/audio/transcriptions", "Transcribe speech", {"file": _FILE}),
    _deployed("/audio/translations", "Translate speech", {"file": _FILE}),
    _Endpoint("/audio"),
    _Endpoint("/audio/{rest:path}"),
)


def served_endpoints(*, passthrough: bool) -> list[_Endpoint]:
    """Without `passthrough`, only the endpoints that can be translated."""
    return [endpoint for endpoint in ENDPOINTS if passthrough or endpoint.client in CLIENT_APIS]


def passthrough_operations(endpoints: Iterable[_Endpoint]) -> dict[str, dict[str, object]]:
    return {f"/v1{endpoint.path}": {"post": _operation(endpoint)} for endpoint in endpoints if endpoint.summary}


def _operation(endpoint: _Endpoint) -> JSONObject:
    example = endpoint.example
    files = {name: {"type": "string", "format": "binary"} for name, value in example.items() if value == _FILE}
    schema = {
        "type": "object",
        "properties": {"model": {"type": "string", "description": "selects the backend"}, **files},
        "required": ["model"],
        "additionalProperties": True,
    }
    json_content = {"application/json": {"schema": schema, "example": {"model": "demo", **example}}}
    answer = {"description": "The backend's answer, byte for byte", "content": {"*/*": {"schema": {}}}}
    return {
        "tags": ["passed through"],
        "summary": endpoint.summary,
        "description": "Passed through to the backend of the model; other fields are the backend's."
        + (" Translated for backends without this API." if endpoint.client else ""),
        "operationId": f"pass_through{endpoint.path.replace('/', '_')}",
        "requestBody": {
            "required": True,
            "content": {"multipart/form-data": {"schema": schema}} if files else json_content,
        },
        "responses": {"200": answer, **(ANTHROPIC_ERRORS if endpoint.anthropic else ERRORS)},
    }


_PARAMETERS = re.compile("[&;]?[^&;]+|[&;]")  # each with its separator
_SAFE = re.compile(r"(/[A-Za-z0-9_-]+)+")


class _FastRoute(Route):
    """FastAPI's route would match the path twice, and resolve dependencies."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Sets `route` in the scope, as FastAPI does."""
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


def passthrough_routes(api: APIDependencies, *, passthrough: bool) -> list[Route]:
    routes: list[Route] = []
    for endpoint in served_endpoints(passthrough=passthrough):
        app = Passthrough(api, endpoint, forwards=passthrough)
        routes.append(_FastRoute(f"/v1{endpoint.path}", app, methods=["POST"]))
        if endpoint.of_deployments:
            path = f"/v1/deployments/{{deployment:path}}{endpoint.path}"
            routes.append(_FastRoute(path, app, methods=["POST"]))
    return routes


class Passthrough:
    """
    Forwards requests to their model's backend.

    `app.api.client_apis` translates them for backends without this API or, without `forwards`, for all.
    """

    def __init__(self, api: APIDependencies, endpoint: _Endpoint, *, forwards: bool = True) -> None:
        self._api = api
        self._endpoint = endpoint
        self._forwards = forwards

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        caller: Caller | None = None,
        admission: Admission | None = None,
    ) -> None:
        """A batch's requests already have a caller and an admission."""
        api, request = self._api, Request(scope, receive)
        caller = caller or api.auth.caller(header_values(scope))
        path = self._endpoint.path
        if path.endswith("}"):
            path = scope["path"].removeprefix("/v1")
            if not _SAFE.fullmatch(path):
                raise NotFound(f"POST {scope['path'][:1000]} not found.", code="unknown_url")
        admission = admission or await api.admit(caller)
        request.state.limit_headers = admission.headers()
        content_types = [value for name, value in scope["headers"] if name == b"content-type"]
        boundary = None if self._endpoint.prompts else form_boundary(content_types)
        if boundary:
            async with aclosing(await FormBody.read(request, boundary, caller.access, api.body_limits.bytes)) as form:
                await self._forward(request, path, form, caller, admission, send)
            return
        body, created = await read_as(scope, receive, partial(self._read, request, caller), api.body_limits)
        if created is None:
            await self._forward(request, path, body, caller, admission, send)
            return
        if isinstance(created, CreateResponse):
            response = await Answer(api, caller).respond(scope, receive, created, admission)
        else:
            try:
                if self._endpoint.free:
                    response = await created.count_tokens(api, caller)
                else:
                    response = await created.respond(api, request, caller, admission)
            except APIError as error:
                rename_error(error, created.read.client_paths)
                raise
        await response(scope, receive, send)

    def _read(
        self, request: Request, caller: Caller, data: bytes
    ) -> tuple[JSONBody, CreateResponse | TranslatedRequest | None]:
        """The body, and the response to create, unless the request is forwarded. Raises `APIError`."""
        api = self._api
        body = JSONBody.parse(data, api.body_limits.values)
        fields = body.fields
        client = client_api(self._endpoint.client)  # imported at the first request: schemas need several MB
        if client is None:
            return body, None
        deployment = request.path_params.get("deployment")
        # Some clients send `/responses` bodies to Chat Completions.
        if self._endpoint.client == _CHAT and "input" in fields and "messages" not in fields:
            named = {"model": deployment} if deployment else {}
            return body, validate({**fields, **named}, CreateResponse, len(data))
        model = self._model(request, body)
        caller.access.check_model(model)
        if self._forwards and not is_translated(api, client, self._endpoint.path, model, fields):
            return body, None
        caller.access.check_fields(fields)
        return body, read_client_request(client, {**fields, "model": model}, header_values(request.scope))

    def _model(self, request: Request, body: JSONBody | FormBody) -> str:
        """The request's model or the default; raises `InvalidRequest` if a model is required."""
        model: str = request.path_params.get("deployment") or body.model
        if not model and self._endpoint.prompts:
            model = self._api.responses.options.default_model or ""
            if not model:
                raise missing_parameter("model")
        return model

    def _request(self, request: Request, path: str, body: JSONBody | FormBody, caller: Caller) -> RawRequest:
        """
        Raises `InvalidRequest` without a model, and `PermissionDenied` if a policy service must review the request.
        """
        responses, fields = self._api.responses, body.fields
        if responses.policy and responses.policy.blocks:
            message = f"This server does not forward {path}: its policy service cannot review such requests."
            raise PermissionDenied(message, code="policy_violation")
        model = self._model(request, body)
        if model != body.model:
            body = body.with_model(model)
        caller.access.check_model(model)
        caller.access.check_fields(fields)
        for number, tool in enumerate(json_list(fields.get("tools"))):
            # Anthropic's `advisor` has a model of its own.
            caller.access.check_fields(json_object(tool), f"tools[{number}].")
        prompt = _chat_prompt(fields)
        if prompt:
            responses.options.check_size(prompt)
        return RawRequest(
            path,
            _query_without_model(request.scope["query_string"].decode("latin-1")),
            request.scope["headers"],
            body,
            model,
            caller.key,
            partial(_conversation, fields),
        )

    async def _forward(
        self, request: Request, path: str, body: JSONBody | FormBody, caller: Caller, admission: Admission, send: Send
    ) -> None:
        raw, responses = self._request(request, path, body, caller), self._api.responses
        with admission:
            await admission.acquire_slots()
            response: ResponseObject = {"id": "", "model": raw.model, "status": "in_progress", "output": []}
            lifecycle = ResponseLifecycle(response, "passthrough", responses.observers, admission)
            lifecycle.owner, lifecycle.key, lifecycle.attempts = caller.owner, caller.access.name, raw.attempts
            exchange = _PassthroughExchange(
                request.scope, request.receive, send, responses, self._endpoint, raw, body.fields, lifecycle
            )
            if isinstance(body, FormBody):
                body.reader.on_received = exchange.watch
            await exchange.run(received=isinstance(body, JSONBody) or body.reader.ended)


def _query_without_model(query: str) -> str:
    """Only the model in the body or path is checked, so parameters must not name a model."""
    if not query:
        return ""
    kept = "".join(
        parameter
        for parameter in _PARAMETERS.findall(query)
        if not reads_as_model(unquote_plus(parameter.lstrip("&;").partition("=")[0]))
    )
    return query if kept == query else kept.lstrip("&;")


def _conversation(fields: Mapping[str, object]) -> str:
    """A key that routes later turns to the replica with the cached prefix."""
    if isinstance(key := fields.get("prompt_cache_key"), str):
        return key
    if not (messages := json_list(fields.get("messages"))):
        return ""
    return conversation_key(fields.get("system"), json_list(fields.get("tools")), messages)


_PROMPTS = ("prompt", "input", "query", "documents")  # text in other endpoints' requests
# Terminal events, of which the second is Anthropic's; JSON text cannot contain their newlines.
_DONE, _MESSAGE_STOP = b"data: [DONE]\n\n", b"event: message_stop\n"
_LAST_SIZE = 200  # bytes searched at the end of a read


@dataclass(eq=False, slots=True)
class _PassthroughExchange:
    """
    A request forwarded to a backend, and its response.

    Errors before the first response byte are raised. Later errors end an event stream with an error event, and abort
    other responses, which would otherwise look complete.
    """

    scope: Scope
    receive: Receive
    send: Send
    responses: Responses
    endpoint: _Endpoint
    request: RawRequest
    fields: Mapping[str, object]  # the JSON body
    lifecycle: ResponseLifecycle
    task: asyncio.Task[object] | None = None  # from `run` on
    answer: RawAnswer | None = None
    streams: bool = False  # event stream response
    writer: BodyWriter | None = None  # after the headers were sent
    disconnect: DisconnectWatch | None = None
    charged: Usage = field(default_factory=Usage)

    async def run(self, *, received: bool) -> None:
        """Unless the request is fully `received`, call `watch` after its last byte."""
        self.task = task = asyncio.current_task()
        assert task
        if received:
            self.watch()
        try:
            await self._exchange()
        except asyncio.CancelledError:
            if self.disconnect and self.disconnect.disconnected and not task.uncancel():
                if self.writer is None:
                    await client_disconnected()(self.scope, self.receive, self.send)
                return
            await self._end(shutdown_error())
            raise
        except APIError as error:
            if self.writer:
                await self._end(error)
            elif isinstance(error, BackendError) and error.response:
                headers, content = error.response
                response = Response(content, error.status)
                response.raw_headers = [*headers, (b"content-length", b"%d" % len(content))]
                await response(self.scope, self.receive, self.send)
            else:
                raise
        finally:
            if line := log_context.request_line():
                line.level, line.fields = self.lifecycle.end_of_log(self.lifecycle.usage or None)
            if self.disconnect:
                self.disconnect.stop()

    def watch(self) -> None:
        if self.disconnect is None and self.task:
            self.disconnect = DisconnectWatch(self.scope, self.receive, self.task.cancel)

    async def _exchange(self) -> None:
        lifecycle, max_seconds = self.lifecycle, self.responses.options.max_output_seconds
        with Watched(lifecycle, self._usage):
            exchange = self.responses.backend.forward(self.request)
            try:
                with lifecycle:
                    async with asyncio.timeout(None) as limit, exchange as answer:
                        self.answer = answer
                        self.watch()
                        if max_seconds:
                            limit.reschedule(asyncio.get_running_loop().time() + max_seconds)
                        await self._write(answer)
                        lifecycle.response["status"] = "failed" if answer.failed() else "completed"
                        if self.disconnect:
                            self.disconnect.stop()
            except TimeoutError as error:
                message = "The response took longer than this server allows."
                raise APIError(message, status=504, code="timeout") from error

    async def _write(self, answer: RawAnswer) -> None:
        headers, piece, send = [*answer.headers], answer.first, self.send
        fields = dict(headers)
        if self.endpoint.anthropic and b"request-id" not in fields and (request_id := log_context.request_id()):
            headers.append((b"request-id", request_id.encode("latin-1")))  # displayed by Anthropic's SDKs
        self.streams = fields.get(b"content-type", b"").startswith(b"text/event-stream")
        if self.streams:
            self.lifecycle.seconds_to_first = clock() - self.lifecycle.began
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        length = fields.get(b"content-length", b"")
        left = int(length) - len(piece) if length.isdigit() else -1
        self.writer = writer = MessageWriter(send) if length else body_writer(self.scope, send)
        if not piece or left == 0:
            self._charge()
        else:
            writer.write(piece)
            await writer.drain()
            await self._write_rest(answer, writer, left)
            self._charge()
            self.lifecycle.last = clock()
            piece = b""
        await send({"type": "http.response.body", "body": piece, "more_body": False})

    async def _write_rest(self, answer: RawAnswer, writer: BodyWriter, left: int) -> None:
        """`left` is the remaining size in bytes, negative if unknown."""
        last = _MESSAGE_STOP if self.endpoint.anthropic else _DONE

        def write(piece: bytes) -> bool:
            nonlocal left
            left -= len(piece)
            # Clients stop reading at the terminal event. `find` is faster than `in`, which first tries an integer
            # conversion.
            if left == 0 or piece.find(last, -_LAST_SIZE) >= 0:
                self._charge()
            return writer.write(piece)

        while await answer.deliver(write):
            await writer.drain()
        await writer.drain()

    async def _end(self, error: APIError) -> None:
        if self.writer and self.streams:
            self.writer.write(b"\n\n" + error_event(error, self.scope))  # the last event may be incomplete
            await self.writer.drain()
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _charge(self) -> None:
        """Called before the response's last bytes are sent."""
        self.charged = self._usage(whole=True)
        if self.charged:
            self.lifecycle.account.charge(self.lifecycle, self.charged)

    def _usage(self, *, whole: bool = False) -> Usage:
        """
        Reported usage. It is estimated for endpoints with a prompt, and if the client left early: the backend may have
        done all the work.
        """
        answer, lifecycle = self.answer, self.lifecycle
        if self.charged or self.endpoint.free:
            return self.charged
        reported = answer.usage() if answer else None
        if answer and reported is not None and whole and not answer.failed():
            if reported.cost is not None:
                lifecycle.attempts.costs.append(reported.cost)
            return usage_of(reported, {}, [])
        output = answer.estimate() if answer and self.endpoint.prompts else 0
        if reported is not None:  # possibly for the prompt only
            return usage_of(reported._replace(completion=max(output, reported.completion)), {}, [])
        left = lifecycle.failure is None and lifecycle.response["status"] != "completed"
        if not (left or output):
            return {}
        prompt = estimate_prompt(_chat_prompt(self.fields)) + sum(
            estimate_json(self.fields.get(name)) for name in _PROMPTS
        )
        return usage_of(TokenCounts(max(1, prompt), output), {}, [])


def _chat_prompt(fields: Mapping[str, object]) -> dict[str, list[Any]]:
    """The prompt in an unvalidated body: messages, with Anthropic's `system` first, and tools."""
    messages, system = json_list(fields.get("messages")), fields.get("system")
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    prompt = {"messages": messages, "tools": json_list(fields.get("tools"))}
    return {name: value for name, value in prompt.items() if value}
