"""Translate `text.format` into `response_format`, or a prompt if the backend cannot enforce a schema."""

from __future__ import annotations

import json
from typing import TypeAlias

from app.core.profile import ResponseFormatOptions
from app.core.request.model_request import TranslationState
from app.core.types import JSONObject
from app.core.types.request import JsonSchemaFormat

# The value (None: not sent), and an instruction for the model.
Form: TypeAlias = tuple[JSONObject | None, str]


def response_format(state: TranslationState, options: ResponseFormatOptions | None = None) -> Form:
    """`options`: the profile's if None."""
    if "text" not in state.given or (json_format := state.request.text.format).type == "text":
        return None, ""
    options = options or state.options.response_format
    if not isinstance(json_format, JsonSchemaFormat):
        if (form := _object(options)) is None:
            state.warnings.add("This backend does not support JSON output; text.format was ignored.")
        return form, ""
    match options.json_schema:
        case "native":
            return _native(json_format), ""
        case "json_object":  # no warning even without JSON support: the instruction asks for JSON
            return _object(options), _prompt(json_format)
        case "prompt":
            return None, _prompt(json_format)
    state.warnings.add("This backend does not support JSON schemas; text.format was ignored.")
    return None, ""


def _native(json_format: JsonSchemaFormat) -> JSONObject:
    schema: dict[str, object] = {"name": json_format.name, "schema": json_format.schema_}
    if json_format.description:
        schema["description"] = json_format.description
    if "strict" in json_format.model_fields_set:
        schema["strict"] = json_format.strict
    return {"type": "json_schema", "json_schema": schema}


def _object(options: ResponseFormatOptions) -> dict[str, object] | None:
    if options.json_object == "native":
        return {"type": "json_object"}
    if options.json_object == "json_schema_any":
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "object"}}}
    return None


def _prompt(json_format: JsonSchemaFormat) -> str:
    about = f" It is: {json_format.description}" if json_format.description else ""
    schema = json.dumps(json_format.schema_, ensure_ascii=False, separators=(",", ":"))
    return f"Answer only with JSON that conforms to this JSON Schema. Do not use a code fence.{about}\n\n{schema}"
