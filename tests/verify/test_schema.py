"""Validation against the specification's schemas."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from openresponses_verify.schema import FORMAT_SCHEMA, event_schemas, schema_issues

STREAMS = sorted((Path(__file__).parent.parent / "streams").rglob("*.events.jsonl"))
SCHEMAS = json.loads(files("openresponses_verify").joinpath("schema.json").read_text())["$defs"]
EVENTS: list[dict[str, Any]] = [
    event
    for path in STREAMS[::25]
    for event in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    if "type" in event
]


def test_golden_events_have_no_field_of_another_type() -> None:
    known = [event for event in EVENTS if event["type"] in event_schemas()]
    assert len(known) > 100
    issues = [issue for event in known for issue in schema_issues(event_schemas()[event["type"]], event)]
    assert [issue for issue in issues if issue.kind == "wrong" and issue.path[-3:] != FORMAT_SCHEMA] == []


@pytest.mark.parametrize("type", ["response.created", "response.output_text.done", "response.output_item.done"])
def test_schema_names_a_field_that_is_missing_or_of_another_type(type: str) -> None:
    name = event_schemas()[type]
    event = next(event for event in EVENTS if event["type"] == type)
    required = SCHEMAS[name]["required"]
    assert len(required) >= 3
    for field in required:
        issues = schema_issues(name, {key: value for key, value in event.items() if key != field})
        assert ((field,), "missing") in [(issue.path, issue.kind) for issue in issues]
        issues = schema_issues(name, {**event, field: {"odd": ["odd"]}})
        assert field in [issue.path[0] for issue in issues]


def test_schema_names_the_field_of_the_type_within_a_union() -> None:
    item = {"type": "message", "id": "msg_1", "status": "done", "role": "assistant", "content": [{"type": "refusal"}]}
    issues = schema_issues("ItemField", item)
    assert [(issue.where, issue.message) for issue in issues] == [
        ("status", 'is "done", and should be "in_progress" or "completed" or "incomplete"'),
        ("content[0].refusal", "is missing"),
    ]


def test_schema_without_a_type_calls_it_unknown_and_not_wrong() -> None:
    (issue,) = schema_issues("ItemField", {"type": "acme:search_result", "id": "1"})
    assert issue.kind == "unknown"


def test_unknown_type_within_a_nullable_union_is_unknown() -> None:
    event = next(event for event in EVENTS if event["type"] == "response.output_item.done")
    changed = {**event, "item": {"type": "acme:search_result", "id": "1"}}
    (issue,) = schema_issues(event_schemas()[event["type"]], changed)
    assert (issue.where, issue.kind) == ("item", "unknown")
    (issue,) = schema_issues(event_schemas()[event["type"]], {**event, "item": 7})
    assert (issue.where, issue.kind) == ("item", "wrong")
