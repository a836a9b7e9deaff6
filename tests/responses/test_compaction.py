"""The summary reader, with answers missing in the recordings."""

from __future__ import annotations

from app.core.types.deltas import DONE, ItemStarted, ReasoningSummaryDelta, TextDelta, ToolCallDelta
from app.responses.compaction import SummaryReader
from tests.support.build import builder


def test_summary_without_a_finish_reason_is_complete() -> None:
    made = builder()
    reader = SummaryReader(made, encrypt=str)
    reader.feed([TextDelta(["We launch on Tuesday."]), DONE])
    reader.end(cut=False)
    [item] = made.response["output"]
    assert (reader.ended, item["status"]) == ("completed", "completed")
    assert made.upstream[item["id"]] == {"summary": "We launch on Tuesday."}


def test_summary_with_other_output_is_one_item() -> None:
    made = builder()
    reader = SummaryReader(made, encrypt=str)
    others = [ItemStarted("reasoning"), ReasoningSummaryDelta("Hm."), ToolCallDelta(0, "a", "f", ["{}"])]
    reader.feed([*others, ItemStarted("message"), TextDelta(["We launch."]), *others, DONE])
    reader.end(cut=False)
    made.complete()
    assert [item["type"] for item in made.response["output"]] == ["compaction"]
