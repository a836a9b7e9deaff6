"""The official `openai` package's types as an oracle, for events and requests to Responses servers."""

from __future__ import annotations

from functools import cache
from typing import Any

from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter
from pydantic_core import SchemaValidator


def check_request(body: dict[str, Any]) -> None:
    """Raise `ValidationError` for a request with an unknown field, or without a required field."""
    _requests(bool(body.get("stream"))).validate_python(body)


def check_event(event: dict[str, Any]) -> None:
    """Raise `ValidationError` for an event unknown to the types."""
    _events().validate_python(event)


@cache
def _requests(streams: bool) -> SchemaValidator:
    types = ResponseCreateParamsStreaming if streams else ResponseCreateParamsNonStreaming
    return SchemaValidator(_strict(TypeAdapter(types).core_schema))


@cache
def _events() -> TypeAdapter[ResponseStreamEvent]:
    return TypeAdapter(ResponseStreamEvent)


def _strict(schema: Any) -> Any:
    """Return a schema that forbids unknown fields everywhere, and validates iterables' elements."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_strict, schema))
    if not isinstance(schema, dict):
        return schema
    strict = {name: value if name == "metadata" else _strict(value) for name, value in schema.items()}
    if strict.get("type") == "typed-dict":
        strict["extra_behavior"] = "forbid"
    if strict.get("type") == "generator":
        strict["type"] = "list"
    return strict
