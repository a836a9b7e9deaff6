"""What `/docs` and `/openapi.json` say of request bodies, with examples to try as they are, and of errors."""

from __future__ import annotations

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
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What went wrong", "content": {"application/json": {"schema": _ERROR}}}
}


def takes(model: type[BaseModel], **examples: Any) -> dict[str, Any]:
    """Return what is said of a request body, for `openapi_extra`."""
    content: dict[str, Any] = {"schema": model.model_json_schema(ref_template="#/components/schemas/{model}")}
    if examples:
        content["examples"] = {name: {"summary": name, "value": value} for name, value in examples.items()}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def shows(example: Any) -> dict[str, Any]:
    """Return what is said of an answer, for `openapi_extra`: an object, such as this one."""
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {"responses": {"200": {"description": "Successful Response", "content": content}}}


CREATE = takes(CreateResponse, **_EXAMPLES)
STREAMED = {"responses": {"200": {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}}


class Documented(FastAPI):
    """An application whose document has the parts of request bodies where its readers look for them."""

    def openapi(self) -> dict[str, Any]:
        """Return the document."""
        if not self.openapi_schema:
            document = super().openapi()
            parts = document.setdefault("components", {}).setdefault("schemas", {})
            for operation in (operation for path in document["paths"].values() for operation in path.values()):
                for content in operation.get("requestBody", {}).get("content", {}).values():
                    parts |= content["schema"].pop("$defs", {})
        return super().openapi()
