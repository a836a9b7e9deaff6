"""A profile's response options, applied to deltas."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.filters import filters
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.stream.reasoning_fields import ReasoningDetails
from app.core.types.deltas import (
    AnswerMetadata,
    Delta,
    Finished,
    FinishReason,
    ItemStarted,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenCounts,
    ToolCallDelta,
    UsageReported,
)

STOP = Finished(FinishReason.STOP)
CALL = ToolCallDelta(0, "c", "f", ["{}"])


def text(*texts: str) -> TextDelta:
    return TextDelta([*texts])


def reasoning(*texts: str, field: str = "reasoning_content") -> ReasoningDelta:
    return ReasoningDelta([*texts], field)


def filtered(options: dict[str, Any], *reads: list[Delta], tools: list[Any] | None = None) -> list[Delta]:
    """The output of a profile's filters, fed read by read; the input must not change."""
    profile = Profile().override({f"response.{name}": value for name, value in options.items()})
    chain = filters(profile, {"tools": tools or []})
    before = copy.deepcopy(reads)
    out: list[Delta] = []
    for read in reads:
        for each in chain:
            read = each.feed(read)
        out += read
    held: list[Delta] = []
    for each in chain:
        held = each.feed(held) + each.end()
    assert reads == before
    return out + held


def one_by_one(options: dict[str, Any], *deltas: Delta) -> list[Delta]:
    return filtered(options, *([delta] for delta in deltas))


def joined_text(deltas: list[Delta]) -> str:
    return "".join(text for delta in deltas if isinstance(delta, TextDelta) for text in delta.texts)


def joined_reasoning(deltas: list[Delta]) -> str:
    return "".join(text for delta in deltas if isinstance(delta, ReasoningDelta) for text in delta.texts)


def test_default_profile_has_no_filters() -> None:
    assert filters(Profile(), {}) == []


@pytest.mark.parametrize("name", ["minimax", "mlx"])
def test_built_in_profile_has_its_filters(name: str) -> None:
    assert filters(load_profile(name), {}) != []


AUTO = {"think_tags": "auto"}
DROP = {"whitespace_only_content": "drop"}
ON = {"reasoning_only_as_message": True}
MARKED = {"call_marks": "auto"}
EVERYTHING = {**AUTO, **DROP, **ON, **MARKED, "cumulative": ["content", "reasoning", "tool_arguments"]}
OTHERS: list[Delta] = [
    AnswerMetadata("a", "m"),
    UsageReported(TokenCounts(1, 0)),
    ItemStarted("message"),
    RefusalDelta("No."),
    ReasoningDelta([], "reasoning_details", ["x", {"type": "reasoning.encrypted", "data": "x"}], ReasoningDetails),
    CALL,
    STOP,
]


@pytest.mark.parametrize("delta", OTHERS, ids=lambda delta: type(delta).__name__)
def test_delta_that_no_filter_concerns_is_unchanged(delta: Delta) -> None:
    assert one_by_one(EVERYTHING, delta) == [delta]


@pytest.mark.parametrize("options", [AUTO, DROP, ON, MARKED])
def test_plain_text_is_the_same_delta(options: dict[str, Any]) -> None:
    assert one_by_one(options, text("a"), CALL, STOP) == [text("a"), CALL, STOP]


class TestThinkTags:
    def test_think_tags_become_reasoning(self) -> None:
        assert one_by_one(AUTO, text("<th"), text("ink>hm</think>"), text("Hi"), STOP) == [
            reasoning("hm"),
            text("Hi"),
            STOP,
        ]

    def test_think_tags_in_one_delta_become_reasoning_and_text(self) -> None:
        assert one_by_one(AUTO, text("<think>hm</think>Hi")) == [reasoning("hm"), text("Hi")]

    def test_think_tags_across_the_texts_of_one_delta_are_found(self) -> None:
        out = one_by_one(AUTO, text("<thi", "nk>h", "m</think>", "Hi", "!"))
        assert (joined_reasoning(out), joined_text(out)) == ("hm", "Hi!")

    def test_held_text_comes_at_the_end(self) -> None:
        assert one_by_one(AUTO, text("<thi"), STOP) == [STOP, text("<thi")]

    def test_held_text_comes_before_a_call(self) -> None:
        assert one_by_one(AUTO, text("<"), CALL) == [text("<"), CALL]

    def test_reasoning_field_switches_think_tags_off(self) -> None:
        out = one_by_one(AUTO, reasoning("hm"), text("<think>"), text(" is a tag"))
        assert (joined_reasoning(out), joined_text(out)) == ("hm", "<think> is a tag")

    def test_reasoning_in_tags_and_in_a_field_is_emitted_once(self) -> None:
        out = one_by_one(AUTO, reasoning("hm"), text("<think>hm"), text("</think>Hi"))
        assert (joined_reasoning(out), joined_text(out)) == ("hm", "Hi")

    def test_think_tag_opened_in_the_prompt_is_assumed(self) -> None:
        out = one_by_one({"think_tags": "implicit_open"}, text("hm</thi"), text("nk>Hi"))
        assert (joined_reasoning(out), joined_text(out)) == ("hm", "Hi")

    def test_think_tags_can_be_configured(self) -> None:
        tags = {"mode": "auto", "open": "[THINK]", "close": "[/THINK]"}
        assert one_by_one({"think_tags": tags}, text("[THINK]hm[/THINK]Hi")) == [reasoning("hm"), text("Hi")]

    def test_logprobs_stay_with_the_text(self) -> None:
        logprobs = [{"token": "Hi"}]
        assert one_by_one(AUTO, TextDelta(["Hi"], logprobs)) == [TextDelta(["Hi"], logprobs)]


class TestCumulative:
    def test_cumulative_text_is_reduced_to_the_new_text(self) -> None:
        out = one_by_one({"cumulative": ["content"]}, text("He"), text("Hello"), text("Hello"), STOP)
        assert out == [text("He"), text("llo"), STOP]

    def test_cumulative_texts_of_one_delta_are_reduced(self) -> None:
        assert one_by_one({"cumulative": ["content"]}, text("He", "Hello", "Hello")) == [text("He", "llo")]

    def test_cumulative_text_that_does_not_continue_is_an_increment(self) -> None:
        assert (
            joined_text(one_by_one({"cumulative": ["content"]}, text("He"), text("llo"), text("Hello you")))
            == "Hello you"
        )

    def test_cumulative_fields_other_than_named_are_unchanged(self) -> None:
        assert joined_reasoning(one_by_one({"cumulative": ["content"]}, reasoning("h"), reasoning("h"))) == "hh"

    def test_reasoning_of_each_field_is_cumulative(self) -> None:
        def details(*texts: str, fragment: str) -> ReasoningDelta:
            fragments: list[object] = [{"type": "reasoning.text", "index": 0, "text": fragment}]
            return ReasoningDelta([*texts], "reasoning_details", fragments, ReasoningDetails)

        out = one_by_one(
            {"cumulative": ["reasoning"]},
            *(reasoning("h"), details(fragment="h"), reasoning("hm"), details(fragment="hm")),
            details("hm!", fragment="hm!"),
        )
        assert out[2:] == [reasoning("m"), details(fragment="m"), details("!", fragment="!")]

    def test_arguments_of_each_call_are_cumulative(self) -> None:
        def call(index: int, arguments: str, id: str | None = None) -> ToolCallDelta:
            return ToolCallDelta(index, id, None, [arguments])

        first = [call(0, '{"a"', "x"), call(1, "{", "y")]
        out = one_by_one(
            {"cumulative": ["tool_arguments"]}, *first, call(0, '{"a":1}'), call(1, "{}"), call(0, '{"a"', "z")
        )
        assert out == [*first, call(0, ":1}"), call(1, "}"), call(0, '{"a"', "z")]

    def test_cumulative_text_whose_last_delta_lacks_white_space_is_kept(self) -> None:
        assert one_by_one({"cumulative": ["content"]}, text("Hello\n"), text("Hello")) == [text("Hello\n")]

    @given(st.text("ab \n", min_size=1), st.lists(st.integers(0, 30)))
    def test_cumulative_text_of_any_growth_comes_once(self, whole: str, ends: list[int]) -> None:
        grown = [text(whole[:end]) for end in sorted(ends)]
        assert joined_text(one_by_one({"cumulative": ["content"]}, *grown, text(whole))) == whole


class TestWhitespaceOnlyContent:
    def test_blanks_between_reasoning_and_a_call_are_dropped(self) -> None:
        deltas = [reasoning("hm"), text("\n\n"), CALL, text("\n"), CALL, STOP]
        assert one_by_one(DROP, *deltas) == [reasoning("hm"), CALL, CALL, STOP]

    def test_blanks_before_a_text_are_kept(self) -> None:
        out = one_by_one(DROP, text("\n"), text("\n"), text("Hi"), text(" "), text("x"))
        assert out == [text("\n\nHi"), text(" "), text("x")]

    def test_blanks_after_a_call_are_dropped(self) -> None:
        assert one_by_one(DROP, text("Hi"), CALL, text("\n")) == [text("Hi"), CALL]


class TestReasoningOnlyAsMessage:
    def test_answer_of_reasoning_alone_is_emitted_as_text_too(self) -> None:
        out = one_by_one(ON, reasoning("The answer"), reasoning(" is 4."), text("\n"), STOP)
        assert out[-1] == text("The answer is 4.")

    @pytest.mark.parametrize(
        "rest",
        [
            [text("4"), STOP],
            [CALL, STOP],
            [RefusalDelta("no"), STOP],
            [Finished(FinishReason.LENGTH)],
            [Finished(FinishReason.CONTENT_FILTER)],
            [],
        ],
        ids=["text", "a call", "a refusal", "truncated", "filtered", "broken off"],
    )
    def test_other_answer_is_unchanged(self, rest: list[Delta]) -> None:
        assert one_by_one(ON, reasoning("hm"), *rest) == [reasoning("hm"), *rest]


TOOLS = {
    "chat": {"type": "function", "function": {"name": "f", "parameters": {}}},
    "responses": {"type": "function", "name": "f", "parameters": {}},
    "messages": {"name": "f", "input_schema": {}},
}
MARKED_CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


class TestCallMarks:
    @pytest.mark.parametrize("api", TOOLS)
    def test_call_in_the_text_becomes_a_call_for_every_api(self, api: str) -> None:
        out = filtered(MARKED, [text("Wait. "), text(MARKED_CALL)], tools=[TOOLS[api]])
        assert out == [text("Wait."), ToolCallDelta(None, None, "f", ['{"a": 1}'])]

    def test_call_of_an_unknown_function_stays_text(self) -> None:
        assert joined_text(filtered(MARKED, [text(MARKED_CALL)])) == MARKED_CALL

    def test_held_text_comes_before_a_call(self) -> None:
        assert one_by_one(MARKED, text("a <tool"), CALL) == [text("a"), text(" <tool"), CALL]


def test_filters_of_one_profile_work_together() -> None:
    options = {**AUTO, **ON, "cumulative": ["content"]}
    out = one_by_one(options, text("<think>"), text("<think>4</think>"), text("<think>4</think>"), STOP)
    assert (joined_reasoning(out), joined_text(out)) == ("4", "4")


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "a", " ", "\n", "bc"]), max_size=12)


@given(PIECES, st.data())
def test_filters_give_the_same_for_any_cut_of_reads(pieces: list[str], data: st.DataObject) -> None:
    deltas: list[Delta] = [*map(text, pieces), STOP]
    edges = sorted(data.draw(st.lists(st.integers(0, len(deltas)))))
    reads = [deltas[a:b] for a, b in zip([0, *edges], [*edges, len(deltas)], strict=True)]
    options = {**EVERYTHING, "cumulative": []}
    assert filtered(options, *reads) == filtered(options, deltas)


@given(PIECES)
def test_texts_of_one_delta_are_filtered_like_single_texts(pieces: list[str]) -> None:
    options = {**AUTO, **ON, **MARKED}
    single = filtered(options, [*map(text, pieces), STOP])
    together = filtered(options, [text(*pieces), STOP] if pieces else [STOP])
    assert (joined_reasoning(single), joined_text(single)) == (joined_reasoning(together), joined_text(together))
