"""Readable messages for settings that fail validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "missing": "is missing",
    "bool_parsing": "should be true or false",
    "bool_type": "should be true or false",
    "int_parsing": "should be an integer",
    "int_parsing_size": "should be an integer of fewer digits",
    "int_type": "should be an integer",
    "int_from_float": "should be an integer, without a fraction",
    "float_parsing": "should be a number",
    "float_type": "should be a number",
    "finite_number": "should be a finite number",
    "string_type": "should be a text",
    "list_type": "should be a list",
    "greater_than": "should be more than {gt}",
    "greater_than_equal": "should be at least {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be at most {le}",
    "literal_error": "should be {expected}",
    "string_too_short": "should have at least {min_length} characters",
    "string_too_long": "should have at most {max_length} characters",
    "too_short": "should have at least {min_length} entries",
    "too_long": "should have at most {max_length} entries",
}
# What TOML calls a table, and JSON an object.
_TABLES = {"dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"}


def describe(detail: Mapping[str, Any], table: str = "table") -> str:
    """
    Return what a value should be, for a detail of pydantic's `ValidationError`; without the value, which may be secret.

    `table` is what a mapping is called where the value was written.
    """
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _TABLES:
        return f"should be a {table}"
    if kind == "string_too_short" and context["min_length"] == 1:
        return "should not be empty"
    if kind == "literal_error" and " or " not in context["expected"]:
        return f"can only be {context['expected']}"
    if words := _WORDS.get(kind):
        return words.format_map({name: _number(bound) for name, bound in context.items()})
    return str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input ")


def _number(bound: object) -> object:
    """Return a bound without `.0`."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound
