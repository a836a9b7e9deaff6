from __future__ import annotations

from collections.abc import Mapping

from app.core.bounded_json import to_json
from app.core.json_values import json_list
from app.core.types import JSONMapping, JSONObject

_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
)
_TABLES = ("$defs", "definitions", "properties")  # schemas by name
_CHOICES = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_ENFORCED = ("$ref", "type", "enum", "const", "title", "default", "required")
_OMITTED = frozenset(
    {"$schema", "$id", "additionalProperties", "description", "examples", "strict"}
)  # also from descriptions


def enforceable(schema: JSONMapping) -> JSONObject:
    """Keywords that Claude's servers enforce; descriptions contain the others."""
    result: JSONObject = {name: schema[name] for name in _ENFORCED if name in schema}
    for name in _TABLES:
        if isinstance(table := schema.get(name), Mapping):
            result[name] = {key: _inner(value) for key, value in table.items()}
    for name, kept in _CHOICES.items():
        if isinstance(choices := schema.get(name), list):
            result[kept] = [_inner(choice) for choice in choices]
    if isinstance(items := schema.get("items"), Mapping):
        result["items"] = enforceable(items)
    if schema.get("minItems") in (0, 1):
        result["minItems"] = schema["minItems"]
    if schema.get("format") in _FORMATS:
        result["format"] = schema["format"]
    if schema.get("type") == "object" or "object" in json_list(schema.get("type")) or "properties" in schema:
        result["additionalProperties"] = False
    others = {
        name: value for name, value in schema.items() if name not in result and name not in (*_CHOICES, *_OMITTED)
    }
    about = schema.get("description")
    paragraphs = (about if isinstance(about, str) else "", to_json(others) if others else "")
    if description := "\n\n".join(filter(None, paragraphs)):
        result["description"] = description
    return result


def _inner(schema: object) -> object:
    return enforceable(schema) if isinstance(schema, Mapping) else schema
