"""
Validation against the specification's JSON schemas, with an issue per field.

A union member is validated only against the schema for its `type`. Unknown types are extensions, and have their own
kind of issue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from jsonschema import Draft202012Validator, ValidationError

Kind = Literal["missing", "wrong", "unknown"]
Path = tuple[str | int, ...]


class SchemaIssue(NamedTuple):
    """A difference from the schema: a missing field, a wrong value or an unknown type."""

    path: Path
    message: str
    kind: Kind

    @property
    def where(self) -> str:
        """The path, for example `output[0].content`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


@cache
def _schemas() -> dict[str, Any]:
    document = json.loads(files("openresponses_verify").joinpath("schema.json").read_text(encoding="utf-8"))
    return dict(document["$defs"])


@cache
def event_schemas() -> dict[str, str]:
    """Map each event type to its schema name."""
    names = (name for name in _schemas() if name.endswith("StreamingEvent"))
    return {_schemas()[name]["properties"]["type"]["enum"][0]: name for name in names}


# The specification's schema allows only null here, by mistake.
FORMAT_SCHEMA = ("text", "format", "schema")


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _schemas()})


def schema_issues(name: str, value: object) -> list[SchemaIssue]:
    """Validate a value against a named schema; [] if valid."""
    return list(_issues(_validator(name).iter_errors(value)))


def _issues(found: Iterable[ValidationError]) -> Iterator[SchemaIssue]:
    errors = list(found)
    mistyped = {tuple(error.absolute_path) for error in errors if error.validator == "type"}
    incomplete: set[Path] = set()
    for error in errors:
        path = tuple(error.absolute_path)
        if error.validator == "anyOf":
            yield from _of_union(error, path)
        elif error.validator == "required" and path not in incomplete:  # one issue per missing field
            incomplete.add(path)
            for name in error.validator_value:
                if name not in error.instance:
                    yield SchemaIssue((*path, name), "is missing", "missing")
        elif error.validator == "type" or (error.validator == "enum" and path not in mistyped):
            expected = _expected({error.validator: error.validator_value})
            yield SchemaIssue(path, f"is {_shown(error.instance)}, and should be {expected}", "wrong")


def _of_union(error: ValidationError, path: Path) -> Iterator[SchemaIssue]:
    value, options = error.instance, error.validator_value
    failures: dict[int, list[ValidationError]] = {}
    for failure in error.context or ():
        failures.setdefault(int(failure.relative_schema_path[0]), []).append(failure)
    types = {name: at for at, option in enumerate(options) for name in _own_types(option)}
    if isinstance(value, dict) and types:
        chosen = types.get(str(value.get("type")))
        if chosen is not None:
            yield from _issues(failures[chosen])
        elif "type" not in value:
            yield SchemaIssue((*path, "type"), "is missing", "missing")
        else:
            yield SchemaIssue(path, f"has the type {_shown(value['type'])}", "unknown")
        return
    found = [list(_issues(each)) for each in failures.values()]
    closest = min(found, key=lambda issues: (all(issue.path == path for issue in issues), len(issues)))
    if all(issue.path == path for issue in closest):
        expected = " or ".join(dict.fromkeys(map(_expected, options)))
        closest = [SchemaIssue(path, f"is {_shown(value)}, and should be {expected}", "wrong")]
    yield from closest


def _resolved(option: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(_schemas()[option["$ref"].removeprefix("#/$defs/")]) if "$ref" in option else option


def _own_types(option: Mapping[str, Any]) -> list[str]:
    schema = _resolved(option)
    own: list[str] = schema.get("properties", {}).get("type", {}).get("enum", [])
    return [*own, *(name for member in schema.get("anyOf", ()) for name in _own_types(member))]


def _expected(option: Mapping[str, Any]) -> str:
    schema = _resolved(option)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_expected, schema["anyOf"])))
    return " or ".join(map(_shown, schema["enum"])) if "enum" in schema else _article(schema.get("type", "value"))


def _article(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
