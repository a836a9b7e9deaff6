"""Schemas and examples of `/openapi.json`, for request bodies that FastAPI does not parse, and for errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

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


def request_body(model: type[BaseModel], **examples: object) -> dict[str, object]:
    """Return the `openapi_extra` of a route with `model` as its JSON body."""
    content: dict[str, object] = {"schema": _schema(model)}
    if examples:
        content["examples"] = {name: {"summary": name, "value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


@cache
def _schema(model: type[BaseModel]) -> dict[str, object]:
    """Return the JSON Schema of a model; cached, since it takes most of the time in which an application is built."""
    return model.model_json_schema(ref_template="#/components/schemas/{model}")


def response_example(example: object) -> dict[str, object]:
    """Return the `openapi_extra` of a route that returns an object such as `example`."""
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {"responses": {"200": {"description": "Successful Response", "content": content}}}


CREATE = request_body(CreateResponse, **_EXAMPLES)
STREAMED = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}}


class Documented(FastAPI):
    """An application whose document has the `$defs` of request bodies in `components/schemas`, and `more_paths`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.more_paths: dict[str, Any] = {}  # of routes that are not FastAPI's

    def openapi(self) -> dict[str, object]:
        """Return the OpenAPI document."""
        if not self.openapi_schema:
            document = super().openapi()
            document["paths"] |= self.more_paths
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for operation in (operation for path in document["paths"].values() for operation in path.values()):
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    schemas |= content["schema"].pop("$defs", {})
        return super().openapi()
