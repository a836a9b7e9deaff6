"""FastAPI routes, analyzed on first use, and the OpenAPI document with schemas and examples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.routing import compile_path, get_name
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.types import JSONObject
from app.core.types.request import CreateResponse

# Error responses, and examples by name.
_DATA: dict[str, Any] = orjson.loads(Path(__file__).with_name("openapi.json").read_bytes())
ERRORS, ANTHROPIC_ERRORS = _DATA["errors"], _DATA["anthropic_errors"]

_SCHEMA = "#/components/schemas/{model}"
# By name. Schemas are slow to build, so only the document builds them.
_BODIES: dict[str, type[BaseModel]] = {}


def request_body(model: type[BaseModel], **examples: object) -> dict[str, object]:
    """`openapi_extra` for routes with `model` as JSON body; `Documented` adds the schema."""
    _BODIES[model.__name__] = model
    content: dict[str, object] = {"schema": {"$ref": _SCHEMA.format(model=model.__name__)}}
    if examples:
        content["examples"] = {name: {"summary": name, "value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def response_example(name: str) -> dict[str, object]:
    """`openapi_extra` with an example from `openapi.json` for a route's response."""
    content = {"application/json": {"schema": {"type": "object"}, "example": _DATA[name]}}
    return {"responses": {"200": {"description": "Successful Response", "content": content}}}


CREATE = request_body(CreateResponse, **_DATA["requests"])
STREAMED = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}}


@contextmanager
def _without_pydantic_v1() -> Iterator[None]:
    """Hide pydantic.v1, which FastAPI imports only to reject its models: 1.5 MB per process, and 40 ms of startup."""
    hide = "pydantic.v1" not in sys.modules
    if hide:
        sys.modules["pydantic.v1"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hide:
            del sys.modules["pydantic.v1"]


# FastAPI's first analysis imports more modules, which would delay a request.
with _without_pydantic_v1():
    APIRoute("/", lambda parameter="": None)


class LazyRoute(APIRoute):
    """
    FastAPI analyzes the route at its first request, or for the OpenAPI document.

    Analyzing all routes would dominate the application's start time.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self.path, self.endpoint = path, endpoint
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self.methods = {method.upper() for method in options.get("methods") or ["GET"]}
        self.name = options.get("name") or get_name(endpoint)
        self.include_in_schema = options.get("include_in_schema", True)
        self._options = options

    def __getattr__(self, name: str) -> Any:
        if (options := self.__dict__.pop("_options", None)) is None:
            raise AttributeError(name)
        with _without_pydantic_v1():
            super().__init__(self.path, self.endpoint, **{**options, "include_in_schema": self.include_in_schema})
        return getattr(self, name)


def api_router(*tags: str, prefix: str = "") -> APIRouter:
    """For API routes; `path_normalizer` adds `/v1` to other paths."""
    return APIRouter(route_class=LazyRoute, prefix=f"/v1{prefix}", tags=[*tags], responses=ERRORS)


class Documented(FastAPI):
    """Adds request body schemas and `more_paths` to the application's OpenAPI document."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.outermost: ASGIApp = super().__call__  # replaced by middleware around FastAPI's stack
        self.more_paths: JSONObject = {}  # paths of routes outside FastAPI

    def build_middleware_stack(self) -> ASGIApp:
        """Omit the layer for unexpected errors: `RequestId` responds to them."""
        errors = super().build_middleware_stack()
        assert isinstance(errors, ServerErrorMiddleware)
        return errors.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.outermost(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema:
            return self.openapi_schema
        document = super().openapi()
        document["paths"] |= self.more_paths
        operations = (operation for path in document["paths"].values() for operation in path.values())
        contents = [operation["requestBody"]["content"] for operation in operations if "requestBody" in operation]
        references = {content["schema"].get("$ref") for types in contents for content in types.values()}
        bodies = [model for name, model in _BODIES.items() if _SCHEMA.format(model=name) in references]
        _, built = models_json_schema([(model, "validation") for model in bodies], ref_template=_SCHEMA)
        document.setdefault("components", {}).setdefault("schemas", {}).update(built["$defs"])
        return document
