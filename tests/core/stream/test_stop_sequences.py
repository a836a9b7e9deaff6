from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.stream.event_builder import EventBuilder
from app.core.stream.stop_sequences import StoppingReader, stop_sequences
from app.core.types.deltas import (
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)

LETTERS = st.text("ab", max_size=12)


def by_characters(text: str, sequences: list[str]) -> tuple[str, str | None]:
    """The text up to the first complete sequence, found character by character."""
    for end in range(1, len(text) + 1):
        if ended := [sequence for sequence in sequences if text[:end].endswith(sequence)]:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, []),
        ({}, []),
        ({"stop": "END"}, ["END"]),
        ({"stop": ["END", "", 5, None]}, ["END"]),
        ({"stop": {"a": 1}}, []),
    ],
)
def test_stop_sequences_of_parameters_are_texts(parameters: Any, expected: list[str]) -> None:
    assert stop_sequences(parameters) == expected


def read(sequences: list[str], *deltas: Delta) -> tuple[StoppingReader, list[Any]]:
    """Read deltas as they come until the answer is to end; return the reader and the output."""
    builder = EventBuilder({"id": "resp_1", "output": []}, new_id=lambda prefix: f"{prefix}_1")
    builder.start()
    reader = StoppingReader(sequences, builder, logprobs=True)
    reader.feed(deltas)
    reader.end(cut=reader.ended != "completed")
    builder.complete()
    return reader, [*builder.response["output"]]


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_complete_sequence_however_it_is_divided(
    pieces: list[str], sequences: list[str]
) -> None:
    reader, output = read(sequences, *(TextDelta([piece]) for piece in pieces))
    written = "".join(item["content"][0]["text"] for item in output)
    assert (written, reader.builder.stop_sequence) == by_characters("".join(pieces), sequences)


def test_answer_ends_at_the_sequence_and_names_it() -> None:
    reader, (message,) = read(["END"], TextDelta(["Hello E"]), TextDelta(["ND", " and more"]), TextDelta(["!"]))
    assert message["content"][0]["text"] == "Hello "
    assert (reader.stopped, reader.ended, reader.builder.stop_sequence) == (True, "completed", "END")


def test_calls_after_the_sequence_are_dropped_and_the_usage_is_kept() -> None:
    usage = TokenCounts(5, 2)
    call = ToolCallDelta(0, "call_1", "f", ["{}"])
    reader, output = read(["."], TextDelta(["Hi."]), call, Finished(FinishReason.TOOL_CALLS), UsageReported(usage))
    assert [item["type"] for item in output] == ["message"]
    assert (reader.usage, reader.ended) == (usage, "completed")


def test_text_that_only_begins_a_sequence_is_written_before_what_follows() -> None:
    call = ToolCallDelta(0, "call_1", "f", ["{}"])
    reader, output = read(["END"], TextDelta(["Hi E"]), call, Finished(FinishReason.TOOL_CALLS))
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert output[0]["content"][0]["text"] == "Hi E"
    assert not reader.stopped


def test_text_held_back_at_the_end_is_written() -> None:
    _, (message,) = read(["END"], TextDelta(["Hi EN"]), Finished(FinishReason.STOP))
    assert message["content"][0]["text"] == "Hi EN"


def test_usage_between_two_texts_does_not_divide_a_sequence() -> None:
    usage = UsageReported(TokenCounts(5, 1))
    reader, _ = read(["END"], TextDelta(["E"]), usage, TextDelta(["ND"]))
    assert reader.stopped


def test_reasoning_is_not_searched() -> None:
    reader, output = read(["END"], ReasoningDelta(["END"]), TextDelta(["Hi"]), Finished(FinishReason.STOP))
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert not reader.stopped


def test_logprobs_end_with_the_text() -> None:
    logprobs = [{"token": token, "logprob": -1.0} for token in ("Hi", " ", "EN", "D")]
    _, (message,) = read(["END"], TextDelta(["Hi EN"], logprobs[:3]), TextDelta(["D"], logprobs[3:]))
    assert [entry["token"] for entry in message["content"][0]["logprobs"]] == ["Hi", " "]


def test_sequence_that_the_server_names_is_kept() -> None:
    reader, _ = read(["END"], TextDelta(["Hi "]), Finished(FinishReason.STOP, "END"))
    assert (reader.stopped, reader.builder.stop_sequence) == (False, "END")
