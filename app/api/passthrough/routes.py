"""The routes of the backend's other endpoints. If the paths are the same, this server's own routes take precedence."""

from __future__ import annotations

import hashlib
import logging
import re
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from app.api.context import ApiContext
from app.api.passthrough.exchange import PassthroughExchange, chat_prompt
from app.api.passthrough.form_body import FormBody, ReceivedForm
from app.api.passthrough.json_body import JSONBody
from app.api.passthrough.plain_form import form_boundary, reads_as_model
from app.api.rate_limits import Admission
from app.backends import Backend, RawRequest
from app.core.types import JSONObject
from app.core.types.request import Response
from app.errors import InvalidRequest, NotFound
from app.observability.lifecycle import ResponseLifecycle
from app.responses import Caller

logger = logging.getLogger(__name__)

ENDPOINTS = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/rerank",
    "/moderations",
    "/images",
    "/images/{rest:path}",
    "/audio",
    "/audio/{rest:path}",
)
# The endpoints of Azure's deployments, whose name in the path is the model.
_OF_DEPLOYMENTS = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/images/generations",
    "/images/edits",
    "/audio/speech",
    "/audio/transcriptions",
    "/audio/translations",
)
_GENERATES = ("/chat/completions", "/completions")  # endpoints to which `ANTIPHON_DEFAULT_MODEL` applies
_PARAMETERS = re.compile("[&;]?[^&;]+|[&;]")  # of a query, each with its separator
_SAFE = re.compile(r"(/[A-Za-z0-9_-]+)+")
# The prefix that identifies a conversation: number of messages, of parts per message, and of characters per part.
_FIRST_MESSAGES, _FIRST_PARTS, _PREFIX_TEXT = 4, 4, 4000


class FastRoute(Route):
    """A Starlette route: FastAPI's would match the path twice, and resolve dependencies, of which there are none."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request; sets `route` in the scope, as FastAPI does."""
        match, child_scope = super().matches(scope)
        return match, {**child_scope, "route": self}


def passthrough_routes(api: ApiContext, *prefixes: str) -> list[FastRoute]:
    """Return the routes under each prefix."""
    own = [
        FastRoute(f"{prefix}{path}", Passthrough(api, prefix), methods=["POST"])
        for prefix in prefixes
        for path in ENDPOINTS
    ]
    of_deployments = [
        FastRoute(f"{prefix}/deployments/{{deployment:path}}{path}", Passthrough(api, prefix, path), methods=["POST"])
        for prefix in prefixes
        for path in _OF_DEPLOYMENTS
    ]
    return own + of_deployments


class Passthrough:
    """
    An ASGI application that forwards requests to the backend that serves their model.

    `endpoint` is that of all its requests; "" if it is the path after `prefix`.
    """

    def __init__(self, api: ApiContext, prefix: str, endpoint: str = "") -> None:
        backend = api.responses.backend
        self._api = api
        self._prefix = prefix
        self._endpoint = endpoint
        self._backend = backend if backend.forwards else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api, request = self._api, Request(scope, receive)
        endpoint = self._endpoint or scope["path"].removeprefix(self._prefix)
        caller = api.auth.caller(request.headers)
        if not _SAFE.fullmatch(endpoint):
            raise NotFound(f"There is no POST {scope['path'][:1000]} here.", code="unknown_url")
        if not (backend := self._backend):
            raise NotFound(f"The backend has no {endpoint}.", code="unknown_url")
        admission = await api.admit(caller)
        request.state.limit_headers = admission.headers()
        boundary = form_boundary([value for name, value in scope["headers"] if name == b"content-type"])
        if boundary is None:
            body = await JSONBody.read(request, api.body_limits)
            raw = self._request(request, endpoint, body, body.fields, caller)
            async with admission.slot():
                exchange = self._exchange(backend, raw, body.fields, caller, admission)
                await exchange.run(scope, receive, send, received=True)
            return
        form = await ReceivedForm.read(request, boundary, caller.access, api.body_limits.bytes)
        try:
            raw = self._request(request, endpoint, FormBody(form), {}, caller)
            async with admission.slot():
                exchange = self._exchange(backend, raw, {}, caller, admission)
                form.on_received = lambda: exchange.watch()
                await exchange.run(scope, receive, send, received=form.complete)
        finally:
            await form.aclose()

    def _request(
        self, request: Request, endpoint: str, body: JSONBody | FormBody, fields: dict[str, object], caller: Caller
    ) -> RawRequest:
        """Return the request to forward; raises `InvalidRequest` if it needs a model and there is no default."""
        responses = self._api.responses
        model = body.model
        if (deployment := request.path_params.get("deployment")) and deployment != model:
            body, model = body.with_model(deployment), deployment
        if not model and endpoint in _GENERATES:
            model = responses.options.default_model or ""
            if not model:
                raise InvalidRequest("'model' is required.", param="model", code="missing_required_parameter")
            body = body.with_model(model)
        caller.access.check_model(model)
        caller.access.check_fields(fields)
        prompt = chat_prompt(fields)
        if prompt:
            responses.options.check_size(prompt)
        return RawRequest(
            endpoint,
            query_without_model(request.scope["query_string"].decode("latin-1")),
            request.scope["headers"],
            body,
            model,
            caller.key,
            _conversation(fields),
        )

    def _exchange(
        self, backend: Backend, raw: RawRequest, fields: JSONObject, caller: Caller, admission: Admission
    ) -> PassthroughExchange:
        responses = self._api.responses
        response: Response = {"id": "", "model": raw.model, "status": "in_progress", "output": []}
        lifecycle = ResponseLifecycle(response, "passthrough", [*responses.observers, admission])
        lifecycle.owner, lifecycle.key = caller.owner, caller.access.name
        return PassthroughExchange(backend, raw, fields, lifecycle, responses.options.max_output_seconds)


def query_without_model(query: str) -> str:
    """Return a query without parameters that name a model: that of the body or the path is the one that is checked."""
    kept = [parameter for parameter in _PARAMETERS.findall(query) if not _names_model(parameter)]
    return query if "".join(kept) == query else "".join(kept).lstrip("&;")


def _names_model(parameter: str) -> bool:
    name = unquote_plus(parameter.lstrip("&;").partition("=")[0])
    return name == "model" or reads_as_model(name)


def _conversation(fields: dict[str, object]) -> str:
    """
    Return a key for the conversation, so that all its turns are sent to the replica that has its prefix cached.

    It is the `prompt_cache_key`, or a hash of the messages up to the first user message, with which every turn starts.
    """
    if isinstance(key := fields.get("prompt_cache_key"), str):
        return key
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for message in messages[:_FIRST_MESSAGES]:
        if isinstance(message, dict):
            for text in _texts(message.get("content")):
                digest.update(text[:_PREFIX_TEXT].encode("utf-8", "replace"))
            if message.get("role") == "user":
                break
    return digest.hexdigest()


def _texts(content: object) -> list[str]:
    parts = content[:_FIRST_PARTS] if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]
