"""The laws and the schema against OpenAI's own answers, which keep them."""

from __future__ import annotations

from app.verify.laws import breaches_of
from app.verify.schema import FORMAT_SCHEMA, schema_issues
from tests.recorded.recordings import recordings


def test_recorded_streams_keep_every_law() -> None:
    streams = [recording for recording in recordings() if recording.streamed]
    assert len(streams) == 128
    broken = [
        f"{recording.name}: {law.name}: {breach.message}"
        for recording in streams
        for law, breach in breaches_of(recording.events)
    ]
    assert broken == []


def test_recorded_responses_have_no_field_of_another_type_than_the_schema() -> None:
    assert len(recordings()) == 173
    wrong = [
        f"{recording.name}: {issue.where} {issue.message}"
        for recording in recordings()
        for issue in schema_issues("ResponseResource", recording.response)
        if issue.kind == "wrong" and issue.path != FORMAT_SCHEMA
    ]
    assert wrong == []
