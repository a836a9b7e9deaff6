"""What surrounds every request: its id, its path, its time, a line in the log, a count, and an answer in any case."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextlib import nullcontext
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.errors import STOPPED, answer, refuse, unexpected
from app.api.middleware.host import host_error
from app.api.middleware.paths import normalized_path
from app.observability import log_context
from app.observability.metrics import Metrics

logger = logging.getLogger("app.access")
_OFTEN = frozenset({"/healthz", "/readyz", "/metrics"})  # asked every few seconds
_SANE = re.compile(r"[\w.:-]{1,128}")


class RequestId:
    """
    Gives every answer an `x-request-id`, the client's own if it sent a sane one, and `openai-processing-ms`; and what
    the route says of the caller's limits, in `request.state.allowed`. Finds the API where the client looks for it.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        id = given if _SANE.fullmatch(given) else f"req_{secrets.token_hex(16)}"
        log_context.reset(request_id=id)
        scope["path"] = normalized_path(scope["path"])
        app = self._app if (error := host_error(scope)) is None else partial(refuse, error)
        if scope["type"] == "http":
            await self._http(app, id, scope, receive, send)
            return
        await self._websocket(app, scope, receive, send)

    async def _websocket(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 0

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if not status:
                status = message["status"] if "status" in message else _HANDSHAKE.get(message["type"], 0)
            await send(message)

        try:
            with self._metrics.socket() if self._metrics else nullcontext():
                await app(scope, receive, send_and_see)
        finally:
            _log_access(scope, "WEBSOCKET", status, began)

    async def _http(self, app: ASGIApp, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        state = scope.setdefault("state", {})
        state["send"] = send  # for a stream, of whose pieces nobody between here and the route wants to know
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in state.get("allowed", {}).items():
                    headers[name] = value
                headers["x-request-id"] = id
                headers["openai-processing-ms"] = str(round((time.perf_counter() - began) * 1000))
            await send(message)

        try:
            await app(scope, receive, send_with_id)
        except asyncio.CancelledError:  # by uvicorn: the server has to stop, and has waited long enough
            if status:
                raise
            await answer(STOPPED)(scope, receive, send_with_id)
        except Exception as error:
            if status:  # the answer has begun: all that can be done is to break it off
                raise
            await unexpected(error)(scope, receive, send_with_id)
        finally:
            if self._metrics and status:
                self._metrics.answered(scope["method"], _pattern(scope), status)
            _log_access(scope, scope["method"], status, began)


# The HTTP status that the first message of an application is to a WebSocket's handshake.
_HANDSHAKE = {"websocket.accept": 101, "websocket.close": 403}


def _log_access(scope: Scope, method: str, status: int, began: float) -> None:
    client = scope.get("client")  # behind a trusted proxy the address that it forwards: the server sees to that
    logger.log(
        logging.DEBUG if scope["path"] in _OFTEN else logging.INFO,
        "request",
        extra={
            "method": method,
            "path": scope["path"][:1000],
            "status": status,
            "ms": round((time.perf_counter() - began) * 1000),
            "client": client[0] if client else None,
        },
    )


def _pattern(scope: Scope) -> str:
    """Return the pattern of the route that was taken; there are only so many of them."""
    return str(getattr(scope.get("route"), "path", "other")).removeprefix("/v1")
