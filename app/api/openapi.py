"""Schemas and examples in `/openapi.json`, for errors and for request bodies not parsed by FastAPI."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.types import JSONObject
from app.core.types.request import CreateResponse

_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city, e.g. Paris"}},
        "required": ["location"],
    },
}
_EXAMPLES = {
    "text": {"model": "demo", "input": "Say hello."},
    "streamed": {"model": "demo", "input": "Count from 1 to 5.", "stream": True},
    "a tool": {"model": "demo", "input": "What is the weather in Paris?", "tools": [_WEATHER]},
    "continued": {"model": "demo", "input": "And in Tokyo?", "previous_response_id": "resp_..."},
}


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "code": {"type": "string"},
                "message": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
            "required": ["type", "code", "message", "param"],
        }
    },
    "required": ["error"],
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "const": "error"},
        "error": {
            "type": "object",
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            "required": ["type", "message"],
        },
        "request_id": {"type": "string"},
    },
    "required": ["type", "error"],
}


def _errors(schema: Mapping[str, object]) -> dict[int | str, dict[str, object]]:
    return {"default": {"description": "An error", "content": {"application/json": {"schema": schema}}}}


ERRORS, ANTHROPIC_ERRORS = _errors(_ERROR), _errors(_ANTHROPIC_ERROR)


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


@cache
def _examples() -> dict[str, object]:
    return cast(dict[str, object], orjson.loads(Path(__file__).with_name("examples.json").read_bytes()))


def response_example(name: str) -> dict[str, object]:
    """`openapi_extra` for routes that return an object like this one in `examples.json`."""
    content = {"application/json": {"schema": {"type": "object"}, "example": _examples()[name]}}
    return {"responses": {"200": {"description": "Successful Response", "content": content}}}


CREATE = request_body(CreateResponse, **_EXAMPLES)
STREAMED = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}}


class Documented(FastAPI):
    """Adds `endpoints`, request body schemas and `more_paths` to the application's OpenAPI document."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.outermost: ASGIApp = super().__call__  # replaced by middleware around FastAPI's stack
        self.endpoints = APIRouter()  # documentation only; the application's own routes serve the requests
        self.more_paths: JSONObject = {}  # paths of routes outside FastAPI

    def build_middleware_stack(self) -> ASGIApp:
        """Omit the layer for unexpected errors: `RequestId` responds to them."""
        errors = super().build_middleware_stack()
        assert isinstance(errors, ServerErrorMiddleware)
        return errors.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.outermost(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        if not self.openapi_schema:
            routes = [*self.endpoints.routes, *self.routes]
            document = get_openapi(title=self.title, version=self.version, description=self.description, routes=routes)
            document["paths"] |= self.more_paths
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas |= _schemas(document)
            self.openapi_schema = document
        return self.openapi_schema


def _schemas(document: Mapping[str, Any]) -> dict[str, object]:
    operations = (operation for path in document["paths"].values() for operation in path.values())
    contents = [operation["requestBody"]["content"] for operation in operations if "requestBody" in operation]
    references = {content["schema"].get("$ref") for types in contents for content in types.values()}
    bodies = [model for name, model in _BODIES.items() if _SCHEMA.format(model=name) in references]
    _, made = models_json_schema([(model, "validation") for model in bodies], ref_template=_SCHEMA)
    schemas: dict[str, object] = made["$defs"]
    return schemas
