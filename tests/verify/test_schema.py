"""The reader of the specification's schemas, beside one that others wrote."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from app.verify.schema import event_schemas, schema_issues

STREAMS = sorted((Path(__file__).parent.parent / "streams").rglob("*.events.jsonl"))
DOCUMENT = json.loads(files("app.verify").joinpath("schema.json").read_text())
DEFINITIONS = json.loads(json.dumps(DOCUMENT["schemas"]).replace('{"$ref": "', '{"$ref": "#/$defs/'))


def valid(name: str, value: object) -> bool:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": DEFINITIONS}).is_valid(value)


EVENTS: list[dict[str, Any]] = [
    event
    for path in STREAMS[::25]
    for event in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    if "type" in event
]


def test_schema_judges_golden_streams_as_jsonschema_does() -> None:
    known = [event for event in EVENTS if event["type"] in event_schemas()]
    assert len(known) > 100
    for event in known:
        name = event_schemas()[event["type"]]
        assert (schema_issues(name, event) == []) == valid(name, event)


@pytest.mark.parametrize("type", ["response.created", "response.output_text.done", "response.output_item.done"])
def test_schema_names_a_field_that_is_missing_or_of_another_type(type: str) -> None:
    name = event_schemas()[type]
    event = next(event for event in EVENTS if event["type"] == type)
    for field in DOCUMENT["schemas"][name]["required"]:
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
