"""The outermost middleware: request ids, normalized paths, access log, metrics, and responses to all failures."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.api.errors import RAISED, error_response, refuse, shutdown_error, unexpected
from app.api.middleware.origins import AllowedHosts, host_error
from app.api.uvicorn.shutdown import STATE_KEY, Shutdown
from app.core.ids import random_digits
from app.errors import APIError, InvalidRequest, NotFound
from app.observability import log_context
from app.observability.metrics import Metrics

logger = log_context.access
# Logged at level debug.
_POLLED = frozenset({"/healthz", "/health", "/readyz", "/metrics"})
_VALID_ID = re.compile(r"[\w.:-]{1,128}")


class RequestId:
    """
    Adds `x-request-id` (the client's own if valid) and `openai-processing-ms` to every response.

    Also adds headers from `request.state.limit_headers` and `.warning_headers`.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics | None = None,
        on_refusal: Callable[[Scope, str, APIError], None] = lambda scope, path, error: None,
        hosts: AllowedHosts | None = None,
        normalize: Callable[[str], str] = lambda path: path,
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        """
        `on_refusal` is called after a failed POST, with path pattern and error.

        `hosts`: names accepted in `Host`; None: any. `normalize` maps a path variant to the route's path.
        """
        self._app = app
        self._proxied = ProxyHeadersMiddleware(app, [*trusted_proxies])  # type: ignore[arg-type]  # uvicorn's own types
        self._hosts = hosts or AllowedHosts(["*"])
        self._normalize = normalize
        self._on_refusal = on_refusal
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        start = time.perf_counter()
        state = scope.setdefault("state", {})
        line, status = log_context.RequestLine(), 0
        app, request_id = self._begin(scope, line)

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                milliseconds = round((time.perf_counter() - start) * 1000)
                headers = message["headers"]
                for fields in (state.get("limit_headers"), state.get("warning_headers")):
                    if fields:
                        own = {name.encode("latin-1"): value.encode("latin-1") for name, value in fields.items()}
                        headers = [*(header for header in headers if header[0] not in own), *own.items()]
                message["headers"] = [
                    *headers,
                    (b"x-request-id", request_id.encode("latin-1")),
                    (b"openai-processing-ms", b"%d" % milliseconds),
                ]
            return send(message)

        stopping: Shutdown = state.get(STATE_KEY, _NEVER_STOPPED)
        stopping.request_begins()
        try:
            await app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # by uvicorn, after the shutdown grace period
            if status:
                raise
            await error_response(shutdown_error(), scope)(scope, receive, send_with_id)
        except Exception as error:
            if status:
                raise
            await unexpected(error, scope)(scope, receive, send_with_id)
        finally:
            stopping.request_ends()
            if self._metrics and status:
                self._metrics.answered(scope["method"], _pattern(scope), status)
            if scope["method"] == "POST" and (raised := state.get(RAISED)):
                self._on_refusal(scope, _pattern(scope), raised)
            _log_access(scope, scope["method"], status, start, line)

    def _begin(self, scope: Scope, line: log_context.RequestLine | None) -> tuple[ASGIApp, str]:
        """Return the application that answers the request, and the request's id."""
        headers = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        if not (request_id and _VALID_ID.fullmatch(request_id)):
            request_id = f"req_{random_digits()}"
        log_context.reset(line, request_id=request_id)
        scope["path"] = self._normalize(scope["path"])
        if error := host_error(scope, headers, self._hosts) or nul_error(scope):
            return partial(refuse, error), request_id
        if b"x-forwarded-for" in headers or b"x-forwarded-proto" in headers:
            return self._proxied, request_id  # type: ignore[return-value]
        return self._app, request_id

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the lifespan or a WebSocket."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        app, _ = self._begin(scope, None)
        start = time.perf_counter()
        status = 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if not status:
                status = message["status"] if "status" in message else _HANDSHAKE.get(message["type"], 0)
            await send(message)

        stopping: Shutdown = scope.get("state", {}).get(STATE_KEY, _NEVER_STOPPED)
        stopping.request_begins()
        try:
            with self._metrics.socket() if self._metrics else nullcontext():
                await app(scope, receive, send_and_record)
        finally:
            stopping.request_ends()
            _log_access(scope, "WEBSOCKET", status, start, log_context.RequestLine())


_NEVER_STOPPED = Shutdown()  # without this application's lifespan

# By the application's first message.
_HANDSHAKE = {"websocket.accept": 101, "websocket.close": 403}


def _log_access(scope: Scope, method: str, status: int, start: float, line: log_context.RequestLine) -> None:
    line.logged = True
    level = logging.DEBUG if scope["path"] in _POLLED else line.level
    if not logger.isEnabledFor(level):
        return
    client = scope.get("client")  # with a trusted proxy, uvicorn sets the forwarded address
    fields = {
        **line.fields,
        "method": method,
        "path": scope["path"][:1000],
        "http_status" if "status" in line.fields else "status": status,
        "ms": round((time.perf_counter() - start) * 1000),
        "client": client[0] if client else None,
    }
    logger.log(level, line.message, extra=fields)


def _pattern(scope: Scope) -> str:
    """Path patterns bound the number of metric labels."""
    return str(getattr(scope.get("route"), "path", "other")).removeprefix("/v1")


_SLASHES = re.compile("//+")
_BASE = re.compile(r"(?:/openai)?(?:/v1)*(?=/)")


def path_normalizer(routes: Iterable[str]) -> Callable[[str], str]:
    """
    Maps paths built from a base URL to route paths: without `/v1`, with a trailing slash, or below Azure's `/openai`.

    Redirects would fail: some clients drop the body, and some the key if a proxy is involved. `routes` are path
    patterns; paths outside `/v1` are ignored.
    """
    names = {path.split("/")[2] for path in routes if path.startswith("/v1/")}
    is_api = re.compile(rf"/v1/(?:{'|'.join(map(re.escape, sorted(names)))})(?:/|$)").match

    @lru_cache(32)
    def normalize(path: str) -> str:
        normalized = _BASE.sub("/v1", _SLASHES.sub("/", path).rstrip("/"), count=1)
        return normalized if is_api(normalized) else path

    return normalize


def nul_error(scope: Scope) -> APIError | None:
    """Reject URLs with NUL, which no name contains and some stores reject."""
    if "\0" in scope["path"]:
        return NotFound("Not found: the path contains a NUL character.", code="unknown_url")
    if b"%00" not in scope["query_string"]:
        return None
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if "\0" in name or "\0" in value:
            param = name.replace("\0", "")
            return InvalidRequest(
                f"Invalid '{param}': must not contain a NUL character.", param=param, code="invalid_value"
            )
    return None
