"""Readable messages for settings and requests that fail validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WORDS = {
    "missing": "is missing",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer, without a fraction",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
}
# TOML calls these a table, JSON an object.
_TABLES = {"dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"}


def describe(detail: Mapping[str, Any], table: str = "table") -> str:
    """
    Describe the rule for an invalid value, never the value, from a detail of pydantic's `ValidationError`.

    `table` is the format's word for a mapping.
    """
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _TABLES:
        return f"must be a {table}"
    if kind == "string_too_short" and context["min_length"] == 1:
        return "must not be empty"
    if kind == "literal_error" and " or " not in context["expected"]:
        return f"must be {context['expected']}"
    if words := _WORDS.get(kind):
        return words.format_map({name: _number(bound) for name, bound in context.items()})
    return as_rule(str(detail["msg"]))


_SHOULD = re.compile("(?:Input|String|List|Dictionary|Tuple|Set|Value|Data|Number) should ")


def as_rule(message: str) -> str:
    """Convert a pydantic message into a rule with "must": `must be a valid string`."""
    return _SHOULD.sub("must ", message.removeprefix("Value error, "), count=1)


def _number(bound: object) -> object:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound
