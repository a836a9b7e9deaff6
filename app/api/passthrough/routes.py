"""Routes for backend endpoints; this server's own routes take precedence."""

from __future__ import annotations

import logging
import re
from functools import partial
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import Response as StarletteResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.auth import header_values
from app.api.client_apis import CLIENT_APIS, client_api
from app.api.client_apis.translation import counted, is_translated, translated
from app.api.dependencies import APIDependencies
from app.api.passthrough.endpoints import ENDPOINTS, ForwardedEndpoint
from app.api.passthrough.exchange import PassthroughExchange, chat_prompt, list_of
from app.api.passthrough.form_body import FormBody, form_boundary
from app.api.passthrough.json_body import JSONBody, reads_as_model
from app.api.rate_limits import Admission
from app.api.request_body import parse_in_thread_if_large
from app.api.routes.responses import respond_to
from app.backends import Backend, RawRequest
from app.core.affinity import conversation_key
from app.core.types import JSONObject
from app.core.types.request import CreateResponse, Response
from app.errors import NotFound, PermissionDenied, missing_parameter
from app.observability.lifecycle import ResponseLifecycle
from app.responses import Caller

logger = logging.getLogger(__name__)

_PARAMETERS = re.compile("[&;]?[^&;]+|[&;]")  # each with its separator
_SAFE = re.compile(r"(/[A-Za-z0-9_-]+)+")


class FastRoute(Route):
    """FastAPI's route would match the path twice, and resolve dependencies."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Sets `route` in the scope, as FastAPI does."""
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


def passthrough_routes(api: APIDependencies, *prefixes: str, translated_only: bool = False) -> list[FastRoute]:
    endpoints = [endpoint for endpoint in ENDPOINTS if endpoint.client in CLIENT_APIS or not translated_only]
    own = [
        FastRoute(
            f"{prefix}{endpoint.path}",
            Passthrough(api, endpoint, prefix, forwards=not translated_only),
            methods=["POST"],
        )
        for prefix in prefixes
        for endpoint in endpoints
    ]
    of_deployments = [
        FastRoute(
            f"{prefix}/deployments/{{deployment:path}}{endpoint.path}",
            Passthrough(api, endpoint, forwards=not translated_only),
            methods=["POST"],
        )
        for prefix in prefixes
        for endpoint in endpoints
        if endpoint.of_deployments
    ]
    return own + of_deployments


class Passthrough:
    """
    Forwards requests to their model's backend.

    `app.api.client_apis` translates them for backends without this API or, without `forwards`, for all. The endpoint's
    path follows a `prefix`.
    """

    def __init__(
        self, api: APIDependencies, endpoint: ForwardedEndpoint, prefix: str | None = None, *, forwards: bool = True
    ) -> None:
        self._api = api
        self._prefix = prefix
        self._endpoint = endpoint
        self._forwards = forwards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send, self._api.auth.caller(header_values(scope)))

    def as_caller(self, caller: Caller, admission: Admission) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(scope, receive, send, caller, admission)

        return app

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, caller: Caller, admitted: Admission | None = None
    ) -> None:
        api, request = self._api, Request(scope, receive)
        prefix = self._prefix
        path = self._endpoint.path if prefix is None else scope["path"].removeprefix(prefix)
        if not _SAFE.fullmatch(path):
            raise NotFound(f"POST {scope['path'][:1000]} not found.", code="unknown_url")
        admission = admitted or await api.admit(caller)
        request.state.limit_headers = admission.headers()
        content_types = [value for name, value in scope["headers"] if name == b"content-type"]
        boundary = None if self._endpoint.prompts else form_boundary(content_types)
        backend = api.responses.backend
        if boundary is None:
            body = await JSONBody.read(request, api.body_limits)
            if response := await self._answered(request, body, caller, admission):
                await response(scope, receive, send)
                return
            raw = self._request(request, path, body, body.fields, caller)
            async with admission.slot():
                exchange = self._exchange(backend, raw, body.fields, caller, admission)
                await exchange.run(scope, receive, send, received=True)
            return
        form = await FormBody.read(request, boundary, caller.access, api.body_limits.bytes)
        try:
            raw = self._request(request, path, form, {}, caller)
            async with admission.slot():
                exchange = self._exchange(backend, raw, {}, caller, admission)
                form.field.on_received = lambda: exchange.watch()
                await exchange.run(scope, receive, send, received=form.field.ended)
        finally:
            await form.aclose()

    async def _answered(
        self, request: Request, body: JSONBody, caller: Caller, admission: Admission
    ) -> StarletteResponse | None:
        """Answers requests that are not forwarded; None for others. Raises `APIError`."""
        api, fields = self._api, body.fields
        client = client_api(self._endpoint.client)  # imported at the first request: schemas need several MB
        if client is None:
            return None
        deployment = request.path_params.get("deployment")
        if self._endpoint.responses and "input" in fields and "messages" not in fields:
            body = body.with_model(deployment) if deployment else body
            parsed = await parse_in_thread_if_large(body.content(), CreateResponse, api.body_limits)
            return await respond_to(api, request, parsed, caller, admission)
        model = self._model(request, body)
        caller.access.check_model(model)
        if self._forwards and not is_translated(api, client, self._endpoint.path, model, fields):
            return None
        caller.access.check_fields(fields)
        fields = {**fields, "model": model}
        if self._endpoint.free:
            return await counted(api, client, request, fields, caller)
        return await translated(api, client, request, fields, caller, admission)

    def _model(self, request: Request, body: JSONBody | FormBody) -> str:
        """The request's model or the default; raises `InvalidRequest` if a model is required."""
        model: str = request.path_params.get("deployment") or body.model
        if not model and self._endpoint.prompts:
            model = self._api.responses.options.default_model or ""
            if not model:
                raise missing_parameter("model")
        return model

    def _request(
        self, request: Request, path: str, body: JSONBody | FormBody, fields: dict[str, object], caller: Caller
    ) -> RawRequest:
        """
        Raises `InvalidRequest` without a model, and `PermissionDenied` if a policy service must review the request.
        """
        responses = self._api.responses
        if responses.policy and responses.policy.blocks:
            message = f"This server does not forward {path}: its policy service cannot review such requests."
            raise PermissionDenied(message, code="policy_violation")
        model = self._model(request, body)
        if model != body.model:
            body = body.with_model(model)
        caller.access.check_model(model)
        caller.access.check_fields(fields)
        for number, tool in enumerate(list_of(fields, "tools")):
            if isinstance(tool, dict):  # Anthropic's `advisor` has a model of its own
                caller.access.check_fields(tool, f"tools[{number}].")
        prompt = chat_prompt(fields)
        if prompt:
            responses.options.check_size(prompt)
        return RawRequest(
            path,
            query_without_model(request.scope["query_string"].decode("latin-1")),
            request.scope["headers"],
            body,
            model,
            caller.key,
            partial(_conversation, fields),
        )

    def _exchange(
        self, backend: Backend, raw: RawRequest, fields: JSONObject, caller: Caller, admission: Admission
    ) -> PassthroughExchange:
        responses = self._api.responses
        response: Response = {"id": "", "model": raw.model, "status": "in_progress", "output": []}
        lifecycle = ResponseLifecycle(response, "passthrough", [*responses.observers, admission])
        lifecycle.owner, lifecycle.key, lifecycle.attempts = caller.owner, caller.access.name, raw.attempts
        limit = responses.options.max_output_seconds
        return PassthroughExchange(backend, self._endpoint, raw, fields, lifecycle, limit)


def query_without_model(query: str) -> str:
    """Only the model in the body or path is checked, so parameters must not name a model."""
    if not query:
        return ""
    kept = [parameter for parameter in _PARAMETERS.findall(query) if not _names_model(parameter)]
    return query if "".join(kept) == query else "".join(kept).lstrip("&;")


def _names_model(parameter: str) -> bool:
    name = unquote_plus(parameter.lstrip("&;").partition("=")[0])
    return name == "model" or reads_as_model(name)


def _conversation(fields: dict[str, object]) -> str:
    """A key that routes later turns to the replica with the cached prefix."""
    if isinstance(key := fields.get("prompt_cache_key"), str):
        return key
    if not (messages := list_of(fields, "messages")):
        return ""
    return conversation_key(fields.get("system"), list_of(fields, "tools"), messages)
