"""A profile's response options, done to chunks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.backends.apis.chat.filters import filters
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.types.chunk import Chunk


def delta(index: int = 0, **fields: Any) -> Chunk:
    return {"choices": [{"index": index, "delta": fields}]}


def stop(reason: str = "stop", **fields: Any) -> Chunk:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def filtered(options: dict[str, Any], *reads: list[Chunk]) -> list[Chunk]:
    """What comes out of a profile's filters, fed read by read; what goes in is not touched."""
    chain = filters(Profile().override({f"response.{name}": value for name, value in options.items()}))
    before = copy.deepcopy(reads)
    out: list[Chunk] = []
    for read in reads:
        for each in chain:
            read = each.feed(read)
        out += read
    held: list[Chunk] = []
    for each in chain:
        held = each.feed(held) + each.end()
    assert reads == before
    return out + held


def one_by_one(options: dict[str, Any], *chunks: Chunk) -> list[Chunk]:
    return filtered(options, *([chunk] for chunk in chunks))


def said(chunks: list[Chunk], field: str) -> str:
    return "".join(chunk["choices"][0]["delta"].get(field) or "" for chunk in chunks if chunk["choices"])


def test_default_profile_has_no_filters() -> None:
    assert filters(Profile()) == []


@pytest.mark.parametrize("name", ["minimax", "tgi", "copilot", "mlx"])
def test_built_in_profile_has_its_filters(name: str) -> None:
    assert filters(load_profile(name)) != []


AUTO = {"think_tags": "auto"}
DROP = {"whitespace_only_content": "drop"}
ON = {"reasoning_only_as_message": True}
MARKED = {"call_marks": "auto"}

STRANGE: list[Chunk] = [
    {},
    {"choices": None},
    {"choices": []},
    {"choices": [], "usage": {"total_tokens": 1}},
    {"choices": [None]},
    {"choices": [{"index": 0}]},
    {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
    delta(),
    delta(content=None, tool_calls=None, reasoning_content=None),
    delta(role="assistant", content=""),
    delta(content=[{"type": "text", "text": "x"}]),
    delta(tool_calls=[None, {"index": 0}, {"function": None}, {"function": {"arguments": {}}}]),
    delta(reasoning_details=["x", {"type": "reasoning.encrypted", "data": "x"}]),
]
EVERYTHING = {
    "think_tags": "auto",
    "call_marks": "auto",
    "cumulative": ["content", "reasoning", "tool_arguments"],
    "whitespace_only_content": "drop",
    "choice_index": "merge",
    "finish_map": {"done": "stop"},
    "reasoning_fields": ["thoughts", "reasoning"],
    "reasoning_only_as_message": True,
}


@pytest.mark.parametrize("chunk", STRANGE)
def test_strange_chunk_passes_all_filters(chunk: Chunk) -> None:
    out = one_by_one(EVERYTHING, chunk)[0]
    assert out.keys() == chunk.keys()
    assert len(out.get("choices") or []) == len(chunk.get("choices") or [])


@pytest.mark.parametrize(
    "options", [AUTO, DROP, ON, {"finish_map": {"done": "stop"}}, {"choice_index": "merge"}, MARKED]
)
def test_chunk_that_no_filter_concerns_is_the_same_object(options: dict[str, Any]) -> None:
    chunks = [delta(content="a"), delta(tool_calls=[{"index": 0, "id": "c"}]), stop("tool_calls"), {"choices": []}]
    assert all(out is chunk for out, chunk in zip(one_by_one(options, *chunks), chunks, strict=True))


class TestThinkTags:
    def test_think_tags_become_reasoning(self) -> None:
        out = one_by_one(
            AUTO,
            delta(role="assistant", content="<th"),
            delta(content="ink>hm</think>"),
            delta(content="Hi"),
            stop(),
        )
        assert out == [delta(role="assistant"), delta(reasoning_content="hm"), delta(content="Hi"), stop()]

    def test_reasoning_and_text_of_one_delta_stay_in_one(self) -> None:
        (out,) = one_by_one(AUTO, delta(content="<think>hm</think>Hi"))
        assert out == delta(reasoning_content="hm", content="Hi")

    def test_text_held_back_comes_at_the_end(self) -> None:
        assert one_by_one(AUTO, delta(content="<thi"), stop()) == [delta(), stop(), delta(content="<thi")]

    def test_text_held_back_comes_before_a_call(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
        out = one_by_one(AUTO, delta(content="<"), delta(tool_calls=[call]))
        assert out == [delta(), delta(tool_calls=[call], content="<")]

    def test_reasoning_field_switches_think_tags_off(self) -> None:
        chunks = [delta(reasoning="hm"), delta(content="<think>"), delta(content=" is a tag")]
        out = one_by_one(AUTO, *chunks)
        assert (said(out, "reasoning"), said(out, "content"), said(out, "reasoning_content")) == (
            "hm",
            "<think> is a tag",
            "",
        )

    def test_reasoning_in_tags_and_in_a_field_is_emitted_once(self) -> None:
        out = one_by_one(AUTO, delta(reasoning_content="hm", content="<think>hm"), delta(content="</think>Hi"))
        assert (said(out, "reasoning_content"), said(out, "content")) == ("hm", "Hi")

    def test_reasoning_field_may_be_details(self) -> None:
        details = [{"type": "reasoning.text", "text": "hm", "index": 0}]
        out = one_by_one(AUTO, delta(reasoning_details=details), delta(content="<think>hm</think>Hi"))
        assert (said(out, "reasoning_content"), said(out, "content")) == ("", "Hi")

    def test_think_tag_opened_in_the_prompt_is_assumed(self) -> None:
        out = one_by_one({"think_tags": "implicit_open"}, delta(content="hm</thi"), delta(content="nk>Hi"))
        assert (said(out, "reasoning_content"), said(out, "content")) == ("hm", "Hi")

    def test_think_tags_can_be_configured(self) -> None:
        tags = {"mode": "auto", "open": "[THINK]", "close": "[/THINK]"}
        out = one_by_one({"think_tags": tags}, delta(content="[THINK]hm[/THINK]Hi"))
        assert out == [delta(reasoning_content="hm", content="Hi")]

    def test_choices_have_think_tags_of_their_own(self) -> None:
        out = one_by_one(AUTO, delta(0, content="<think>"), delta(1, content="Hi"), delta(0, content="hm"))
        assert out == [delta(0), delta(1, content="Hi"), delta(0, reasoning_content="hm")]


class TestCumulative:
    def test_cumulative_text_is_reduced_to_what_is_new(self) -> None:
        out = one_by_one(
            {"cumulative": ["content"]},
            delta(content=""),
            delta(content="He"),
            delta(content="Hello"),
            stop(content="Hello"),
        )
        assert out == [delta(content=""), delta(content="He"), delta(content="llo"), stop(content="")]

    def test_cumulative_text_that_does_not_continue_is_an_increment(self) -> None:
        out = one_by_one(
            {"cumulative": ["content"]}, delta(content="He"), delta(content="llo"), delta(content="Hello you")
        )
        assert said(out, "content") == "Hello you"

    def test_cumulative_fields_other_than_named_are_unchanged(self) -> None:
        out = one_by_one({"cumulative": ["content"]}, delta(reasoning="h"), delta(reasoning="h"))
        assert said(out, "reasoning") == "hh"

    def test_reasoning_under_each_name_is_cumulative(self) -> None:
        def details(text: str) -> list[dict[str, Any]]:
            return [{"type": "reasoning.text", "index": 0, "text": text}]

        out = one_by_one(
            {"cumulative": ["reasoning"]},
            delta(reasoning_content="h", reasoning_details=details("h")),
            delta(reasoning_content="hm", reasoning_details=details("hm")),
        )
        assert out[1] == delta(reasoning_content="m", reasoning_details=details("m"))

    def test_arguments_of_each_call_are_cumulative(self) -> None:
        def call(index: int, arguments: str, **rest: Any) -> dict[str, Any]:
            return {"index": index, **rest, "function": {"arguments": arguments}}

        out = one_by_one(
            {"cumulative": ["tool_arguments"]},
            delta(tool_calls=[call(0, '{"a"', id="x"), call(1, "{", id="y")]),
            delta(tool_calls=[call(0, '{"a":1}'), call(1, "{}")]),
            delta(tool_calls=[call(0, '{"a"', id="z")]),
        )
        assert out == [
            delta(tool_calls=[call(0, '{"a"', id="x"), call(1, "{", id="y")]),
            delta(tool_calls=[call(0, ":1}"), call(1, "}")]),
            delta(tool_calls=[call(0, '{"a"', id="z")]),
        ]

    @given(st.text("ab \n", min_size=1), st.lists(st.integers(0, 30)))
    def test_cumulative_text_of_any_growth_comes_once(self, text: str, ends: list[int]) -> None:
        grown = [delta(content=text[:end]) for end in sorted(ends)]
        assert said(one_by_one({"cumulative": ["content"]}, *grown, delta(content=text)), "content") == text


class TestChoiceIndex:
    def test_choice_index_that_counts_is_ignored(self) -> None:
        out = one_by_one(
            {"choice_index": "ignore"}, delta(0, content="a"), delta(1, content="b"), delta(2, content="c")
        )
        assert out == [delta(0, content="a"), delta(0, content="b"), delta(0, content="c")]

    def test_choices_other_than_the_first_are_ignored(self) -> None:
        both = {"choices": [*delta(0, content="a")["choices"], *delta(1, content="b")["choices"]]}
        assert one_by_one({"choice_index": "ignore"}, both) == [delta(0, content="a")]

    def test_choices_that_were_split_are_merged(self) -> None:
        text, calls = delta(0, content="a"), delta(1, tool_calls=[{"id": "c"}])
        both = {"id": "x", "choices": [*text["choices"], *calls["choices"]]}
        assert one_by_one({"choice_index": "merge"}, both) == [
            {"id": "x", **text},
            {"id": "x", **delta(0, tool_calls=[{"id": "c"}])},
        ]


class TestReasoningFields:
    def test_reasoning_under_another_name_is_renamed(self) -> None:
        out = one_by_one({"reasoning_fields": ["thoughts"]}, delta(thoughts="hm", content="Hi"))
        assert out == [delta(content="Hi", reasoning_content="hm")]

    def test_reasoning_names_that_are_not_listed_are_dropped(self) -> None:
        out = one_by_one(
            {"reasoning_fields": ["reasoning_text"]}, delta(reasoning_text="hm", reasoning="x"), delta(reasoning="y")
        )
        assert out == [delta(reasoning_text="hm"), delta()]


class TestWhitespaceOnlyContent:
    def test_blanks_between_reasoning_and_a_call_are_dropped(self) -> None:
        chunks = [
            delta(reasoning="hm"),
            delta(content="\n\n"),
            delta(tool_calls=[{"id": "a"}]),
            delta(content="\n"),
            delta(tool_calls=[{"id": "b"}]),
            stop(),
        ]
        assert said(one_by_one(DROP, *chunks), "content") == ""

    def test_blanks_before_a_text_are_kept(self) -> None:
        out = one_by_one(
            DROP,
            delta(content="\n"),
            delta(content="\n"),
            delta(content="Hi"),
            delta(content=" "),
            delta(content="x"),
        )
        assert out == [delta(), delta(), delta(content="\n\nHi"), delta(content=" "), delta(content="x")]

    def test_blanks_after_a_call_are_kept(self) -> None:
        out = one_by_one(DROP, delta(content="Hi"), delta(tool_calls=[{"id": "a"}]), delta(content="\n"))
        assert out[-1] == delta()


def test_finish_reasons_of_a_profile_are_mapped() -> None:
    out = one_by_one({"finish_map": {"max_out": "length"}}, delta(content="a"), stop("max_out"), stop("stop"))
    assert out == [delta(content="a"), stop("length"), stop("stop")]


class TestReasoningOnlyAsMessage:
    def test_answer_that_was_taken_for_reasoning_is_emitted_as_text_too(self) -> None:
        out = one_by_one(ON, delta(reasoning="The answer"), delta(reasoning=" is 4."), delta(content="\n"), stop())
        assert out[-1] == delta(content="The answer is 4.")

    @pytest.mark.parametrize(
        "rest",
        [
            [delta(content="4"), stop()],
            [delta(tool_calls=[{"id": "c"}]), stop()],
            [delta(refusal="no"), stop()],
            [stop("length")],
            [stop("content_filter")],
            [],
        ],
        ids=["text", "a call", "a refusal", "cut off", "filtered", "broken off"],
    )
    def test_chunks_of_another_kind_are_unchanged(self, rest: list[Chunk]) -> None:
        assert one_by_one(ON, delta(reasoning="hm"), *rest) == [delta(reasoning="hm"), *rest]


def test_filters_of_one_profile_work_together() -> None:
    options = {
        "think_tags": "auto",
        "cumulative": ["content"],
        "reasoning_only_as_message": True,
        "choice_index": "ignore",
    }
    out = one_by_one(
        options, delta(5, content="<think>"), delta(6, content="<think>4</think>"), stop(content="<think>4</think>")
    )
    assert (said(out, "reasoning_content"), said(out, "content")) == ("4", "4")


TEXT = st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "a", " ", "\n", "bc"]), max_size=12)


@given(TEXT, st.data())
def test_filters_give_the_same_for_any_cut_of_reads(texts: list[str], data: st.DataObject) -> None:
    chunks = [delta(content=text) for text in texts] + [stop()]
    edges = sorted(data.draw(st.lists(st.integers(0, len(chunks)))))
    reads = [chunks[a:b] for a, b in zip([0, *edges], [*edges, len(chunks)], strict=True)]
    options = {**EVERYTHING, "cumulative": []}
    assert filtered(options, *reads) == filtered(options, chunks)


def test_cumulative_text_whose_last_chunk_lacks_white_space_is_kept() -> None:
    out = one_by_one({"cumulative": ["content"]}, delta(content="Hello\n"), stop(content="Hello"))
    assert out == [delta(content="Hello\n"), stop(content="")]
