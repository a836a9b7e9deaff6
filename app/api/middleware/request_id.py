"""The outermost middleware: request ids, normalized paths, access log, metrics, and responses to all failures."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import RAISED, error_response, refuse, shutdown_error, unexpected
from app.api.middleware.host import AllowedHosts, host_error
from app.api.middleware.paths import nul_error
from app.api.uvicorn.shutdown import STATE_KEY, Shutdown
from app.core.ids import random_digits
from app.errors import APIError
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
    ) -> None:
        """
        `on_refusal` is called after a failed POST, with path pattern and error.

        `hosts`: names accepted in `Host`; None: any. `normalize` maps a path variant to the route's path.
        """
        self._app = app
        self._hosts = hosts
        self._normalize = normalize
        self._on_refusal = on_refusal
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = sent if _VALID_ID.fullmatch(sent) else f"req_{random_digits()}{random_digits()}"
        line = log_context.RequestLine() if scope["type"] == "http" else None
        log_context.reset(line, request_id=request_id)
        scope["path"] = self._normalize(scope["path"])
        error = host_error(scope, self._hosts) or nul_error(scope)
        app = partial(refuse, error) if error else self._app
        stopping: Shutdown | None = scope.get("state", {}).get(STATE_KEY)
        if stopping:
            stopping.request_begins()
        try:
            if line:
                await self._http(app, request_id, line, scope, receive, send)
            else:
                await self._websocket(app, scope, receive, send)
        finally:
            if stopping:
                stopping.request_ends()

    async def _websocket(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        status = 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if not status:
                status = message["status"] if "status" in message else _HANDSHAKE.get(message["type"], 0)
            await send(message)

        try:
            with self._metrics.socket() if self._metrics else nullcontext():
                await app(scope, receive, send_and_record)
        finally:
            _log_access(scope, "WEBSOCKET", status, start, log_context.RequestLine())

    async def _http(
        self, app: ASGIApp, request_id: str, line: log_context.RequestLine, scope: Scope, receive: Receive, send: Send
    ) -> None:
        start = time.perf_counter()
        state = scope.setdefault("state", {})
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                milliseconds = round((time.perf_counter() - start) * 1000)
                added = {b"x-request-id": request_id.encode("latin-1"), b"openai-processing-ms": b"%d" % milliseconds}
                for name, value in [*state.get("limit_headers", {}).items(), *state.get("warning_headers", {}).items()]:
                    added[name.encode("latin-1")] = value.encode("latin-1")
                headers = [field for field in message["headers"] if field[0] not in added]
                message = {**message, "headers": [*headers, *added.items()]}
            await send(message)

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
            if self._metrics and status:
                self._metrics.answered(scope["method"], _pattern(scope), status)
            if scope["method"] == "POST" and (raised := state.get(RAISED)):
                self._on_refusal(scope, _pattern(scope), raised)
            _log_access(scope, scope["method"], status, start, line)


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
