"""Values that match their schemas, and use the prompt if it mentions a value."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.demo.schema_values import value_for

VALUES: dict[str, tuple[Any, str, Any]] = {
    "nothing said": ({}, "", "example"),
    "a command": (
        {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
        "Hello!",
        {"cmd": "echo hello"},
    ),
    "a place": ({"properties": {"location": {"type": "string"}}}, "Weather in New York?", {"location": "New York"}),
    "a place of two parts": (
        {"properties": {"city": {}}},
        "It is in San Francisco, CA now",
        {"city": "San Francisco, CA"},
    ),
    "no place": (
        {"properties": {"city": {}, "user_name": {}}},
        "What is it?",
        {"city": "Paris", "user_name": "Ada Lovelace"},
    ),
    "a question": ({"properties": {"query": {"type": "string"}}}, "who is it?", {"query": "who is it?"}),
    "an expression": ({"properties": {"expression": {}}}, "what is 6 * 7 now", {"expression": "6 * 7"}),
    "numbers from the prompt": (
        {"properties": {"a": {"type": "integer"}, "b": {"type": "number"}, "c": {"type": "integer"}}},
        "Add 2 and 3.5 in room a1.",
        {"a": 2, "b": 3.5, "c": 1},
    ),
    "only what is required": (
        {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}, "required": ["a"]},
        "",
        {"a": True},
    ),
    "required, but not described": ({"type": "object", "required": ["x"]}, "", {"x": "example"}),
    "nested": (
        {"properties": {"a": {"type": "object", "properties": {"b": {"type": "array", "items": {"type": "null"}}}}}},
        "",
        {"a": {"b": [None]}},
    ),
    "an enum": ({"enum": ["celsius", "fahrenheit"]}, "hot?", "celsius"),
    "an enum that the prompt names": ({"enum": ["celsius", "fahrenheit"]}, "in Fahrenheit please", "fahrenheit"),
    "an enum of numbers": ({"type": "integer", "enum": [3, 5]}, "5?", 5),
    "a constant": ({"const": {"a": 1}}, "", {"a": 1}),
    "null or a string": ({"type": ["null", "string"]}, "", "example"),
    "only null": ({"type": ["null"]}, "", None),
    "any of": ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, "", True),
    "one of, with more beside": (
        {
            "properties": {"a": {"const": 1}},
            "required": ["a"],
            "oneOf": [{"properties": {"b": {"const": 2}}, "required": ["b"]}],
        },
        "",
        {"a": 1, "b": 2},
    ),
    "all of": (
        {
            "allOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": {"const": 2}}}],
            "$defs": {"x": {"properties": {"a": {"const": 1}}}},
        },
        "",
        {"a": 1, "b": 2},
    ),
    "a reference": (
        {"$defs": {"a/b": {"type": "boolean"}}, "properties": {"x": {"$ref": "#/$defs/a~1b"}}},
        "",
        {"x": True},
    ),
    "a reference to nowhere": ({"$ref": "#/$defs/none"}, "", "example"),
    "items, as many as needed": ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2}, "", ["a", "b"]),
    "unique items": (
        {"type": "array", "items": {"type": "string"}, "minItems": 3, "uniqueItems": True},
        "",
        ["example", "example 2", "example 3"],
    ),
    "unique numbers": ({"type": "array", "items": {"type": "integer", "minimum": 5}, "minItems": 3}, "", [5, 6, 7]),
    "no items": ({"type": "array", "items": {}, "maxItems": 0}, "", []),
    "a tuple": ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}, "", [1, True]),
    "a minimum": ({"type": "integer", "minimum": 18}, "", 18),
    "a maximum": ({"type": "number", "maximum": -2.5}, "", -2.5),
    "above": ({"type": "integer", "exclusiveMinimum": 5}, "", 6),
    "below": ({"type": "integer", "exclusiveMaximum": 0}, "", -1),
    "between": ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "", 0.5),
    "a multiple": ({"type": "integer", "minimum": 7, "multipleOf": 5}, "", 10),
    "a number of the prompt that does not fit": ({"type": "integer", "maximum": 10}, "take 99 or 8", 8),
    "an email": ({"type": "string", "format": "email"}, "", "ada@example.com"),
    "a date": ({"type": "string", "format": "date"}, "", "2024-01-15"),
    "a time": ({"type": "string", "format": "date-time"}, "", "2024-01-15T12:00:00Z"),
    "an id": ({"type": "string", "format": "uuid"}, "", "123e4567-e89b-12d3-a456-426614174000"),
    "a pattern": ({"type": "string", "pattern": "^[A-Z]{3}$"}, "", "ABC"),
    "a pattern that cannot be read": ({"type": "string", "pattern": "("}, "", "example"),
    "a longer string": ({"type": "string", "minLength": 10}, "", "examplexxx"),
    "a shorter string": ({"type": "string", "maxLength": 3}, "", "exa"),
    "a zone": ({"properties": {"timezone": {"type": "string"}}}, "Ada in Europe/Lisbon", {"timezone": "Europe/Lisbon"}),
    "a zone that is not named": ({"properties": {"time_zone": {}}}, "What is the time, Ada?", {"time_zone": "UTC"}),
    "so many properties": (
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}},
        "",
        {"key1": True, "key2": True},
    ),
}


@pytest.mark.parametrize(("schema", "prompt", "value"), VALUES.values(), ids=VALUES)
def test_schema_value_fits_its_schema(schema: Any, prompt: str, value: Any) -> None:
    assert value_for(schema, prompt) == value


def test_schema_that_contains_itself_has_a_value() -> None:
    node: dict[str, Any] = {
        "properties": {
            "value": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            "more": {"type": "array", "items": {"$ref": "#"}},
        },
        "required": ["value", "next", "more"],
    }
    value = value_for(node, "")
    assert [*value] == ["value", "next", "more"]
    while value["next"]:
        assert (value["value"], value["more"][:1] == [] or "value" in value["more"][0]) == (1, True)
        value = value["next"]


def test_schema_without_an_end_has_a_value() -> None:
    value_for({"properties": {"next": {"$ref": "#"}}, "required": ["next"]}, "")
    value_for({"$ref": "#"}, "")


BRANCH = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "required": ["left", "right"]}
UNFIT: dict[str, Any] = {
    "properties that are a list": {"properties": ["a"], "required": ["a"]},
    "a name that is no text": {"required": [{}]},
    "a minimum that is no number": {"type": "number", "minimum": "1"},
    "far too many items": {"type": "array", "minItems": 10**12},
    "far too many properties": {"type": "object", "minProperties": 10**12},
    "a far too long text": {"type": "string", "minLength": 10**12},
    "a tree that grows for ever": BRANCH,
}


@pytest.mark.parametrize("schema", UNFIT.values(), ids=UNFIT)
def test_schema_that_no_server_takes_is_refused(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        value_for(schema, "")


def test_number_of_any_length_in_the_prompt_is_bounded() -> None:
    assert value_for({"type": "number"}, "9" * 400) == 1


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("Run print(6*7)", "print(6*7)"),
        ("Please run `import math; print(math.pi)`.", "import math; print(math.pi)"),
        ("Run this:\n```python\nfor n in range(3):\n    print(n)\n```\nThanks.", "for n in range(3):\n    print(n)"),
        ("What is 2^10 + 4 x 3?", "print(2**10 + 4 * 3)"),
        ("Run `rm -rf /`", "print('Run `rm -rf /`')"),
        ('Say "it\'s" for me', "print('Say \"it\\'s\" for me')"),
    ],
)
def test_value_for_a_code_field_is_python_that_runs(prompt: str, code: str) -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    assert value_for(schema, prompt) == {"code": code}
    compile(code, "code", "exec")


def test_value_for_queries_is_the_prompt() -> None:
    schema = {"type": "object", "properties": {"queries": {"type": "array", "items": {"type": "string"}}}}
    assert value_for(schema, "When does the observatory open?") == {"queries": ["When does the observatory open?"]}
