"""Errors over HTTP: API error objects, without tracebacks or secrets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from app.api.request_body import invalid_request
from app.core.dialects import needs_strings
from app.errors import APIError, InvalidRequest, NotFound
from app.observability import log_context

logger = logging.getLogger(__name__)

RAISED = "raised_error"  # request state field with the route's error

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

POLICY_VIOLATION = 1008  # WebSocket close code


# Anthropic's error types by status; other statuses are `invalid_request_error` from 400, `api_error` from 500.
_MESSAGES_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# Make Anthropic's SDKs resend the request in another form; read from `error.details.error_code`.
_DETAILED = frozenset({"thread_unsupported_request"})


def shutdown_error() -> APIError:
    return APIError("The server was stopped before the response was complete. Try again.", status=503, retry_after=1)


def error_response(error: APIError, scope: Scope | None = None) -> Response:
    body, headers = error_body(error, scope), error.headers()
    if "request_id" in body:
        headers["request-id"] = str(body["request_id"])  # displayed by Anthropic's SDKs
    return Response(orjson.dumps(body), error.status, headers=headers, media_type="application/json")


def error_event(error: APIError, scope: Scope) -> bytes:
    """The final error event for a forwarded stream."""
    name = b"event: error\n" if uses_messages_api(scope) else b""
    return name + b"data: " + orjson.dumps(error_body(error, scope)) + b"\n\n"


def error_body(error: APIError, scope: Scope | None = None) -> dict[str, object]:
    if scope is not None and uses_messages_api(scope):
        return _messages_body(error)
    if scope is not None and needs_strings(Headers(scope=scope)):
        return {"error": {name: value or "" for name, value in error.payload().items()}}
    return error.body()


def uses_messages_api(scope: Scope) -> bool:
    """Tell by the path, or by the header that all its clients send."""
    path: str = scope["path"].removeprefix("/v1")
    return path == "/messages" or path.startswith("/messages/") or "anthropic-version" in Headers(scope=scope)


def _messages_body(error: APIError) -> dict[str, object]:
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # makes Claude Code shorten the conversation
    elif error.status == 400 and error.param and error.param not in message:
        message = f"{error.param}: {message}"  # the format has no field for it
    kind = _MESSAGES_TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
    fields: dict[str, object] = {"type": kind, "message": message}
    if error.code in _DETAILED:
        fields["details"] = {"error_code": error.code}
    body: dict[str, object] = {"type": "error", "error": fields}
    return {**body, "request_id": request_id} if (request_id := log_context.request_id()) else body


async def refuse(error: APIError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await error_response(error, scope)(scope, receive, send)
    else:
        await WebSocket(scope, receive, send).close(POLICY_VIOLATION, error.message)


def report(error: APIError) -> None:
    """Log a 5xx error once."""
    if error.status >= 500 and not error.reported:
        error.reported = True
        logger.warning("request failed", extra={"status": error.status, **error.log_fields()})


def install(app: FastAPI, absent: Mapping[str, str] = {}) -> None:
    """`absent`: reasons for missing endpoints, by path prefix, for example `/v1/files`."""
    for kind in (APIError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, partial(_handle, absent))
    not_found = app.router.default

    async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await not_found(scope, receive, send)
            return
        error = NotFound(f"WebSocket endpoint {scope['path'][:1000]} not found.", code="unknown_url")
        await refuse(error, scope, receive, send)

    app.router.default = no_route


def api_error(request: Request, error: APIError) -> Response:
    report(error)
    request.scope.setdefault("state", {})[RAISED] = error
    return error_response(error, request.scope)


async def _handle(absent: Mapping[str, str], request: Request, error: Exception) -> Response:
    """Also converts FastAPI's errors for invalid parameters, and Starlette's for unknown paths and methods."""
    if isinstance(error, APIError):
        return api_error(request, error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return api_error(request, invalid_request({**first, "loc": first["loc"][1:]}))
    assert isinstance(error, HTTPException)
    endpoint = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        path = f"{request.url.path}/"
        reason = next((f": {why}" for start, why in absent.items() if path.startswith(f"{start}/")), "")
        return error_response(NotFound(f"{endpoint} not found{reason}.", code="unknown_url"), request.scope)
    if error.status_code == 405:
        not_allowed = InvalidRequest(f"{endpoint} is not allowed.", code="method_not_allowed", status=405)
        response = error_response(not_allowed, request.scope)
        response.headers["Allow"] = ", ".join(_allowed_methods(request))
        return response
    return error_response(InvalidRequest(str(error.detail), status=error.status_code), request.scope)


def _allowed_methods(request: Request) -> list[str]:
    """
    All of a path's methods; Starlette's 405 only lists the first matching route's.

    A fixed path such as `/responses/compact` has its own methods, without the methods of `/responses/{response_id}`.
    """
    routes = [route for route in request.app.router.routes if route.matches(request.scope)[0] is not Match.NONE]
    own = [route for route in routes if route.path == request.scope["path"]]
    methods = {method for route in own or routes for method in getattr(route, "methods", None) or ("GET", "HEAD")}
    return [method for method in _METHODS if method in methods]


def unexpected(error: Exception, scope: Scope) -> Response:
    logger.error("unexpected error", exc_info=error)
    return error_response(APIError("The server had an error while processing the request."), scope)
