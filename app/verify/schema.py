"""
The schemas of the specification, and whether a value has the form that one of them asks for.

A value that says its own type is held against the schema of that type alone, so that each issue names the field that is
wrong. Types that the specification does not have are issues of their own kind: they are extensions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

Kind = Literal["missing", "wrong", "unknown"]


class SchemaIssue(NamedTuple):
    """Where a value differs from its schema: a field is missing, has a wrong value, or a type is unknown."""

    path: tuple[str | int, ...]
    message: str
    kind: Kind

    @property
    def where(self) -> str:
        """The path as text, such as `output[0].content`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


@cache
def _schemas() -> dict[str, Any]:
    document = json.loads(files("app.verify").joinpath("schema.json").read_text(encoding="utf-8"))
    return dict(document["schemas"])


@cache
def event_schemas() -> dict[str, str]:
    """Return the names of the schemas of events, by the types of these."""
    names = (name for name in _schemas() if name.endswith("StreamingEvent"))
    return {_schemas()[name]["properties"]["type"]["enum"][0]: name for name in names}


# Where the schema has null alone as the schema of a format, which is a fault of it.
FORMAT_SCHEMA = ("text", "format", "schema")


def schema_issues(name: str, value: object) -> list[SchemaIssue]:
    """Return where a value differs from a schema of the specification, by its name; [] if it is valid."""
    return list(_issues({"$ref": name}, value, ()))


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def _fits(kind: str, value: object) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _issues(schema: Mapping[str, Any], value: object, path: tuple[str | int, ...]) -> Iterator[SchemaIssue]:
    if "$ref" in schema:
        schema = _schemas()[schema["$ref"]]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        yield from _of_options(options, value, path)
        return
    if "type" in schema and not _fits(schema["type"], value):
        yield SchemaIssue(path, f"is {_shown(value)}, and should be {_article(schema['type'])}", "wrong")
    elif "enum" in schema and value not in schema["enum"]:
        yield SchemaIssue(path, f"is {_shown(value)}, and should be {_one_of(schema['enum'])}", "wrong")
    elif isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                yield SchemaIssue((*path, name), "is missing", "missing")
        rest = schema.get("additionalProperties")
        for name, member in value.items():
            below = schema.get("properties", {}).get(name, rest)
            if isinstance(below, dict):
                yield from _issues(below, member, (*path, name))
    elif isinstance(value, list):
        for at, member in enumerate(value):
            yield from _issues(schema.get("items", {}), member, (*path, at))


def _of_options(options: list[dict[str, Any]], value: object, path: tuple[str | int, ...]) -> Iterator[SchemaIssue]:
    if isinstance(value, dict) and (types := {name: option for option in options for name in _own_types(option)}):
        chosen = types.get(str(value.get("type")))
        if chosen is not None:
            yield from _issues(chosen, value, path)
        elif "type" not in value:
            yield SchemaIssue((*path, "type"), "is missing", "missing")
        else:
            yield SchemaIssue(path, f"has the type {_shown(value['type'])}", "unknown")
        return
    found = []
    for option in options:
        found.append(list(_issues(option, value, path)))
        if not found[-1]:
            return
    plain = min(found, key=lambda issues: (all(issue.path == path for issue in issues), len(issues)))
    if all(issue.path == path for issue in plain):
        expected = " or ".join(dict.fromkeys(_expected(option) for option in options))
        plain = [SchemaIssue(path, f"is {_shown(value)}, and should be {expected}", "wrong")]
    yield from plain


def _own_types(option: Mapping[str, Any]) -> list[str]:
    schema = _schemas()[option["$ref"]] if "$ref" in option else option
    names: list[str] = schema.get("properties", {}).get("type", {}).get("enum", [])
    return names


def _expected(option: Mapping[str, Any]) -> str:
    schema = _schemas()[option["$ref"]] if "$ref" in option else option
    return _one_of(schema["enum"]) if "enum" in schema else _article(schema.get("type", "a value"))


def _article(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _one_of(values: list[object]) -> str:
    return " or ".join(map(_shown, values))


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
