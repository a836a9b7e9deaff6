"""The laws and the schema against OpenAI's own answers, which keep them."""

from __future__ import annotations

from typing import Any

from openresponses_verify.laws import breaches_of
from openresponses_verify.schema import FORMAT_SCHEMA, event_schemas, schema_issues
from tests.recorded.recordings import Recording, recordings


def test_recorded_streams_keep_every_law() -> None:
    streams = [recording for recording in recordings() if recording.streamed]
    assert len(streams) == 128
    broken = [
        f"{recording.name}: {law.name}: {breach.message}"
        for recording in streams
        for law, breach in breaches_of(recording.events)
    ]
    assert broken == []


def test_recorded_answers_have_no_field_of_another_type_than_the_schema() -> None:
    assert len(recordings()) == 173
    wrong = [
        f"{recording.name}: {issue.where} {issue.message}"
        for recording in recordings()
        for name, document in [("ResponseResource", recording.response), *known_events(recording)]
        for issue in schema_issues(name, document)
        if issue.kind == "wrong" and issue.path[-3:] != FORMAT_SCHEMA
    ]
    assert wrong == []


def known_events(recording: Recording) -> list[tuple[str, dict[str, Any]]]:
    """Return events in the specification, each with its schema's name."""
    return [(event_schemas()[event["type"]], event) for event in recording.events if event["type"] in event_schemas()]
