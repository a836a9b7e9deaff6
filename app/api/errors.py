"""Errors over HTTP: every failure is answered in the API's shape, without a traceback or a secret."""

from __future__ import annotations

import logging
from typing import cast

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from app.core.dialects import needs_strings
from app.errors import APIError, InvalidRequest, NotFound

logger = logging.getLogger(__name__)

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

POLICY_VIOLATION = 1008  # of WebSockets

STOPPED = APIError("The server was stopped before the answer was complete. Ask again.", status=503, retry_after=1)


def answer(error: APIError, *, nulls: bool = True) -> Response:
    """Return an error as an HTTP answer; without `nulls`, what it does not tell is an empty string."""
    body = error.body()
    if not nulls:
        body = {"error": {name: value or "" for name, value in error.payload().items()}}
    return Response(orjson.dumps(body), error.status, headers=error.headers(), media_type="application/json")


async def refuse(error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or one for a WebSocket, with an error."""
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await answer(error)(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).close(POLICY_VIOLATION, error.message)


def report(error: APIError) -> None:
    """Log an error that a caller is about to be told, if it is the server's fault and not in the log yet."""
    if error.status >= 500 and not error.reported:
        error.reported = True
        logger.warning("request failed", extra={"status": error.status, **error.log_fields()})


def install(app: FastAPI) -> None:
    """Answer whatever is raised in a route."""
    app.add_exception_handler(APIError, _api_error)
    app.add_exception_handler(HTTPException, _http_exception)
    not_found = app.router.default

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await not_found(scope, receive, send)
            return
        error = NotFound(f"There is no WebSocket at {scope['path'][:1000]} here.", code="unknown_url")
        await refuse(error, scope, receive, send)

    app.router.default = no_route


async def _api_error(request: Request, error: Exception) -> Response:
    report(cast(APIError, error))
    return answer(cast(APIError, error), nulls=not needs_strings(request.headers))


async def _http_exception(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: an unknown path, or a method that a path does not have."""
    status = cast(HTTPException, error).status_code
    what = f"{request.method} {request.url.path}"
    if status == 404:
        return answer(NotFound(f"There is no {what} here.", code="unknown_url"))
    if status == 405:
        refused = answer(InvalidRequest(f"{what} is not allowed.", code="method_not_allowed", status=405))
        refused.headers["Allow"] = ", ".join(_allowed(request))
        return refused
    return answer(InvalidRequest(str(cast(HTTPException, error).detail), status=status))


def _allowed(request: Request) -> list[str]:
    """
    Return the methods of a path.

    Whoever refuses a method knows those of one route, of the several that a path has. A name in a path is no id, and
    has only the methods that are documented under that name.
    """
    app, path = request.app, request.url.path
    allowed = []
    for method in _METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in app.router.routes):
            allowed.append(method)
    documented = app.openapi()["paths"]
    named = documented.get(path) or documented.get(f"/v1{path}")
    return [method for method in allowed if not named or method.lower() in named or method == "HEAD"]


def unexpected(error: Exception) -> Response:
    """Answer what nobody foresaw: the log has it all, the client nothing of it."""
    logger.error("unexpected error", exc_info=error)
    return answer(APIError("The server had an error while processing the request."))
