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


def test_the_default_profile_costs_nothing() -> None:
    assert filters(Profile()) == []


@pytest.mark.parametrize("name", ["minimax", "tgi", "copilot", "mlx"])
def test_a_built_in_profile_has_its_filters(name: str) -> None:
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
def test_a_strange_chunk_passes_all_filters(chunk: Chunk) -> None:
    out = one_by_one(EVERYTHING, chunk)[0]
    assert out.keys() == chunk.keys()
    assert len(out.get("choices") or []) == len(chunk.get("choices") or [])


@pytest.mark.parametrize(
    "options", [AUTO, DROP, ON, {"finish_map": {"done": "stop"}}, {"choice_index": "merge"}, MARKED]
)
def test_a_chunk_that_is_not_concerned_passes_as_it_is(options: dict[str, Any]) -> None:
    chunks = [delta(content="a"), delta(tool_calls=[{"index": 0, "id": "c"}]), stop("tool_calls"), {"choices": []}]
    assert all(out is chunk for out, chunk in zip(one_by_one(options, *chunks), chunks, strict=True))


class TestThinkTags:
    def test_tags_become_reasoning(self) -> None:
        out = one_by_one(
            AUTO,
            delta(role="assistant", content="<th"),
            delta(content="ink>hm</think>"),
            delta(content="Hi"),
            stop(),
        )
        assert out == [delta(role="assistant"), delta(reasoning_content="hm"), delta(content="Hi"), stop()]

    def test_thought_and_text_of_one_delta_stay_in_one(self) -> None:
        (out,) = one_by_one(AUTO, delta(content="<think>hm</think>Hi"))
        assert out == delta(reasoning_content="hm", content="Hi")

    def test_what_is_held_comes_at_the_end(self) -> None:
        assert one_by_one(AUTO, delta(content="<thi"), stop()) == [delta(), stop(), delta(content="<thi")]

    def test_what_is_held_comes_before_a_call(self) -> None:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
        out = one_by_one(AUTO, delta(content="<"), delta(tool_calls=[call]))
        assert out == [delta(), delta(tool_calls=[call], content="<")]

    def test_a_structured_field_switches_it_off(self) -> None:
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

    def test_the_structured_field_may_be_details(self) -> None:
        details = [{"type": "reasoning.text", "text": "hm", "index": 0}]
        out = one_by_one(AUTO, delta(reasoning_details=details), delta(content="<think>hm</think>Hi"))
        assert (said(out, "reasoning_content"), said(out, "content")) == ("", "Hi")

    def test_the_opening_tag_may_be_in_the_prompt(self) -> None:
        out = one_by_one({"think_tags": "implicit_open"}, delta(content="hm</thi"), delta(content="nk>Hi"))
        assert (said(out, "reasoning_content"), said(out, "content")) == ("hm", "Hi")

    def test_tags_can_be_configured(self) -> None:
        tags = {"mode": "auto", "open": "[THINK]", "close": "[/THINK]"}
        out = one_by_one({"think_tags": tags}, delta(content="[THINK]hm[/THINK]Hi"))
        assert out == [delta(reasoning_content="hm", content="Hi")]

    def test_choices_are_split_each_for_itself(self) -> None:
        out = one_by_one(AUTO, delta(0, content="<think>"), delta(1, content="Hi"), delta(0, content="hm"))
        assert out == [delta(0), delta(1, content="Hi"), delta(0, reasoning_content="hm")]


class TestCumulative:
    def test_only_what_is_new_of_a_text_goes_on(self) -> None:
        out = one_by_one(
            {"cumulative": ["content"]},
            delta(content=""),
            delta(content="He"),
            delta(content="Hello"),
            stop(content="Hello"),
        )
        assert out == [delta(content=""), delta(content="He"), delta(content="llo"), stop(content="")]

    def test_what_does_not_continue_the_text_is_taken_for_an_increment(self) -> None:
        out = one_by_one(
            {"cumulative": ["content"]}, delta(content="He"), delta(content="llo"), delta(content="Hello you")
        )
        assert said(out, "content") == "Hello you"

    def test_only_named_fields_are_concerned(self) -> None:
        out = one_by_one({"cumulative": ["content"]}, delta(reasoning="h"), delta(reasoning="h"))
        assert said(out, "reasoning") == "hh"

    def test_reasoning_under_each_of_its_names(self) -> None:
        def details(text: str) -> list[dict[str, Any]]:
            return [{"type": "reasoning.text", "index": 0, "text": text}]

        out = one_by_one(
            {"cumulative": ["reasoning"]},
            delta(reasoning_content="h", reasoning_details=details("h")),
            delta(reasoning_content="hm", reasoning_details=details("hm")),
        )
        assert out[1] == delta(reasoning_content="m", reasoning_details=details("m"))

    def test_arguments_of_each_call(self) -> None:
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
    def test_any_growing_text_comes_out_once(self, text: str, ends: list[int]) -> None:
        grown = [delta(content=text[:end]) for end in sorted(ends)]
        assert said(one_by_one({"cumulative": ["content"]}, *grown, delta(content=text)), "content") == text


class TestChoiceIndex:
    def test_a_counting_index_is_ignored(self) -> None:
        out = one_by_one(
            {"choice_index": "ignore"}, delta(0, content="a"), delta(1, content="b"), delta(2, content="c")
        )
        assert out == [delta(0, content="a"), delta(0, content="b"), delta(0, content="c")]

    def test_other_choices_of_a_chunk_are_ignored(self) -> None:
        both = {"choices": [*delta(0, content="a")["choices"], *delta(1, content="b")["choices"]]}
        assert one_by_one({"choice_index": "ignore"}, both) == [delta(0, content="a")]

    def test_split_choices_are_merged(self) -> None:
        text, calls = delta(0, content="a"), delta(1, tool_calls=[{"id": "c"}])
        both = {"id": "x", "choices": [*text["choices"], *calls["choices"]]}
        assert one_by_one({"choice_index": "merge"}, both) == [
            {"id": "x", **text},
            {"id": "x", **delta(0, tool_calls=[{"id": "c"}])},
        ]


class TestReasoningFields:
    def test_a_name_of_its_own_becomes_a_known_one(self) -> None:
        out = one_by_one({"reasoning_fields": ["thoughts"]}, delta(thoughts="hm", content="Hi"))
        assert out == [delta(content="Hi", reasoning_content="hm")]

    def test_names_that_are_not_listed_are_dropped(self) -> None:
        out = one_by_one(
            {"reasoning_fields": ["reasoning_text"]}, delta(reasoning_text="hm", reasoning="x"), delta(reasoning="y")
        )
        assert out == [delta(reasoning_text="hm"), delta()]


class TestWhitespaceOnlyContent:
    def test_blanks_between_a_thought_and_a_call_are_dropped(self) -> None:
        chunks = [
            delta(reasoning="hm"),
            delta(content="\n\n"),
            delta(tool_calls=[{"id": "a"}]),
            delta(content="\n"),
            delta(tool_calls=[{"id": "b"}]),
            stop(),
        ]
        assert said(one_by_one(DROP, *chunks), "content") == ""

    def test_blanks_before_a_text_belong_to_it(self) -> None:
        out = one_by_one(
            DROP,
            delta(content="\n"),
            delta(content="\n"),
            delta(content="Hi"),
            delta(content=" "),
            delta(content="x"),
        )
        assert out == [delta(), delta(), delta(content="\n\nHi"), delta(content=" "), delta(content="x")]

    def test_after_a_call_blanks_are_blanks_again(self) -> None:
        out = one_by_one(DROP, delta(content="Hi"), delta(tool_calls=[{"id": "a"}]), delta(content="\n"))
        assert out[-1] == delta()


def test_words_for_the_finish_can_be_mapped() -> None:
    out = one_by_one({"finish_map": {"max_out": "length"}}, delta(content="a"), stop("max_out"), stop("stop"))
    assert out == [delta(content="a"), stop("length"), stop("stop")]


class TestReasoningOnlyAsMessage:
    def test_an_answer_that_was_taken_for_reasoning_is_emitted_as_text_too(self) -> None:
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
    def test_anything_else_is_left_alone(self, rest: list[Chunk]) -> None:
        assert one_by_one(ON, delta(reasoning="hm"), *rest) == [delta(reasoning="hm"), *rest]


def test_filters_work_together() -> None:
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
def test_how_reads_are_cut_makes_no_difference(texts: list[str], data: st.DataObject) -> None:
    chunks = [delta(content=text) for text in texts] + [stop()]
    edges = sorted(data.draw(st.lists(st.integers(0, len(chunks)))))
    reads = [chunks[a:b] for a, b in zip([0, *edges], [*edges, len(chunks)], strict=True)]
    options = {**EVERYTHING, "cumulative": []}
    assert filtered(options, *reads) == filtered(options, chunks)


def test_the_last_chunk_of_a_text_that_grows_may_leave_out_white_space() -> None:
    out = one_by_one({"cumulative": ["content"]}, delta(content="Hello\n"), stop(content="Hello"))
    assert out == [delta(content="Hello\n"), stop(content="")]
