"""Servers' own chunk formats, and the resulting deltas."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.backends.apis.chat.decoder import ChunkReader
from app.core.profile import Profile
from app.core.stream.reasoning_fields import ReasoningDetails, ThinkingBlocks
from app.core.types.deltas import (
    AnnotationsAdded,
    AnswerMetadata,
    Delta,
    Finished,
    ProviderFields,
    ReasoningDelta,
    RefusalDelta,
    SourcesCited,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from tests.support.build import builder, deltas_of, reader_of


def chunk(choice: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", **fields, "choices": [] if choice is None else [choice]}


def delta(**fields: Any) -> dict[str, Any]:
    return chunk({"index": 0, "delta": fields, "finish_reason": None})


def chunk_reader(**options: Any) -> ChunkReader:
    return ChunkReader(Profile().override({f"response.{name}": value for name, value in options.items()}).response)


def deltas(*chunks: Any, **options: Any) -> list[Delta]:
    """The chunks' deltas, without metadata."""
    reader = chunk_reader(**options)
    found = [one for each in chunks for one in reader.read(each)]
    return [one for one in found if not isinstance(one, AnswerMetadata)]


CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
DETAILS = [{"text": "a"}, {"summary": "b"}]
BLOCKS = [{"type": "thinking", "thinking": "a"}]
SIGNED = {"extra_content": {"x": 1}}
CITED = {"type": "url_citation", "url": "u", "start_index": 0, "end_index": 0, "title": "u"}
LOGPROB = {"token": "x", "logprob": 0.0, "bytes": [120]}
READ: dict[str, tuple[Any, list[Delta]]] = {
    "text": (delta(role="assistant", content="Hi", tool_calls=[], refusal=None), [TextDelta(["Hi"])]),
    "logprobs": (
        chunk({"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{"token": "x", "logprob": 0}]}}),
        [TextDelta(["x"], [{**LOGPROB, "top_logprobs": []}])],
    ),
    "logprobs in lists": (
        chunk(
            {
                "index": 0,
                "delta": {"content": "x"},
                "logprobs": {"tokens": ["x"], "token_logprobs": [0], "top_logprobs": [{"x": 0}]},
            }
        ),
        [TextDelta(["x"], [{**LOGPROB, "top_logprobs": [LOGPROB]}])],
    ),
    "reasoning": (delta(reasoning_content="Hm"), [ReasoningDelta(["Hm"])]),
    "another name": (delta(reasoning="Hm"), [ReasoningDelta(["Hm"], "reasoning")]),
    "two names": (delta(reasoning="Hm", reasoning_content="Hm"), [ReasoningDelta(["Hm"])]),
    "details": (
        delta(reasoning_details=DETAILS),
        [ReasoningDelta(["a", "b"], "reasoning_details", DETAILS, ReasoningDetails)],
    ),
    "details beside a text": (
        delta(reasoning="a", reasoning_details=DETAILS),
        [
            ReasoningDelta(["a"], "reasoning"),
            ReasoningDelta([], "reasoning_details", DETAILS, ReasoningDetails),
        ],
    ),
    "thinking blocks": (
        delta(thinking_blocks=BLOCKS),
        [ReasoningDelta(["a"]), ReasoningDelta([], "thinking_blocks", BLOCKS, ThinkingBlocks)],
    ),
    "opaque": (delta(reasoning_opaque="x"), [ProviderFields({"reasoning_opaque": "x"})]),
    "parts": (
        delta(content=[{"type": "thinking", "thinking": [{"text": "a"}]}, {"type": "text", "text": "b"}], refusal="c"),
        [ReasoningDelta(["a"]), TextDelta(["b"]), RefusalDelta("c")],
    ),
    "a number": (delta(content=7), [TextDelta(["7"])]),
    "zero": (delta(content=0), [TextDelta(["0"])]),
    "an object": (delta(content={"a": 1}), [TextDelta(['{"a":1}'])]),
    "an empty object": (delta(content={}), [TextDelta(["{}"])]),
    "annotations": (delta(annotations=[{"type": "url_citation", "url": "u"}, 1]), [AnnotationsAdded([CITED])]),
    "a flat call": (
        delta(tool_calls={"name": "f", "arguments": {"a": 1}}),
        [ToolCallDelta(None, None, "f", ['{"a":1}'])],
    ),
    "an index as text": (delta(tool_calls=[{**CALL, "index": "0"}]), [ToolCallDelta(0, "a", "f", ["{}"])]),
    "a signature": (delta(tool_calls=[{**CALL, **SIGNED}]), [ToolCallDelta(0, "a", "f", ["{}"], SIGNED)]),
    "the legacy field": (delta(function_call={"name": "f"}), [ToolCallDelta(0, None, "f")]),
    "a message": (chunk({"index": 0, "message": {"content": "Hi"}}), [TextDelta(["Hi"])]),
    "a field of another meaning": (delta(content="a", reasoning_fragments=1), [TextDelta(["a"])]),
}


@pytest.mark.parametrize(("sent", "expected"), READ.values(), ids=READ)
def test_chunk_is_read_as_its_deltas(sent: Any, expected: list[Delta]) -> None:
    before = copy.deepcopy(sent)
    assert deltas(sent) == expected
    assert sent == before


def test_metadata_is_reported_when_it_changes() -> None:
    chunks = [chunk(), chunk(), chunk(service_tier="flex"), {**chunk(), "id": 1}]
    assert deltas_of(chunks) == [
        AnswerMetadata("c", "m", None),
        AnswerMetadata("c", "m", "flex"),
        AnswerMetadata(None, "m", None),
    ]


REPEATS: dict[str, tuple[Any, str, Delta]] = {
    "text": (delta(role="assistant", content="x"), "content", TextDelta(["a", "b"])),
    "reasoning": (delta(content="", reasoning="x"), "reasoning", ReasoningDelta(["a", "b"], "reasoning")),
    "arguments": (
        delta(tool_calls=[{"index": 2, "function": {"arguments": "x"}}]),
        "arguments",
        ToolCallDelta(2, None, None, ["a", "b"]),
    ),
}


@pytest.mark.parametrize(("sent", "field", "expected"), REPEATS.values(), ids=REPEATS)
def test_repeated_chunk_is_one_delta_with_its_texts(sent: Any, field: str, expected: Delta) -> None:
    found = chunk_reader().find_text(sent)
    assert found is not None
    name, read = found
    assert (name, read(["a", "b"])) == (field, expected)


@pytest.mark.parametrize(
    "sent",
    [
        delta(content="x", reasoning="y"),
        delta(content=""),
        delta(tool_calls=[CALL]),
        {**delta(content="x"), "usage": {"prompt_tokens": 1}},
        {**delta(content="x"), "citations": []},
        chunk({"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}),
        chunk({"index": 0, "delta": {"content": "x"}, "logprobs": {"content": []}, "error": None}),
        chunk({"index": 1, "delta": {"content": "x"}}),
    ],
)
def test_chunk_with_more_than_a_text_is_not_repeated(sent: Any) -> None:
    assert chunk_reader().find_text(sent) is None


def test_message_that_repeats_the_answer_is_skipped() -> None:
    assert deltas(delta(content="Hi"), chunk({"index": 0, "message": {"content": "Hi"}})) == [TextDelta(["Hi"])]


def test_legacy_function_call_beside_tool_calls_is_skipped() -> None:
    assert deltas(delta(tool_calls=[CALL]), delta(function_call={"name": "f"})) == [ToolCallDelta(0, "a", "f", ["{}"])]


def test_usage_is_the_latest_wherever_it_stands() -> None:
    chunks = [
        chunk(usage={"prompt_tokens": 5, "completion_tokens": 0}),
        chunk(x_groq={"usage": {"prompt_tokens": 0, "completion_tokens": 2}}),
        chunk({"index": 0, "delta": {"content": "x"}, "usage": {"completion_tokens": 3}}),
        chunk(usage="none"),
    ]
    usages = [one.usage for one in deltas(*chunks) if isinstance(one, UsageReported)]
    counts = [(usage.prompt, usage.completion) for usage in usages]
    assert counts == [(5, 0), (5, 2), (5, 3), (5, 3)]


def test_source_that_is_repeated_is_returned_once() -> None:
    results = [{"url": "https://a.test", "title": "A"}]
    cited = ["https://a.test", "https://b.test"]
    chunks = [chunk(citations=cited, search_results=results), chunk(citations=[*cited, {"url": "c"}])]
    assert deltas(*chunks) == [
        SourcesCited(
            [{"url": "https://a.test", "title": "A"}, {"url": "https://b.test", "title": "https://b.test"}],
        ),
        SourcesCited([{"url": "c", "title": "c"}]),
    ]


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"finish_reason": "stop"}, "stop"),
        ({"finish_reason": "eos_token"}, "stop"),
        ({"finish_reason": "tool_calls"}, "tool_calls"),
        ({"finish_reason": "MAX_TOKENS"}, "length"),
        ({"finish_reason": "content_filter: RECITATION"}, "content_filter"),
        ({"finish_reason": "stop", "native_finish_reason": "network_error"}, "error"),
        ({"finish_reason": "stop", "native_finish_reason": "eos"}, "stop"),
        ({"finish_reason": "null"}, None),
        ({"finish_reason": None}, None),
    ],
)
def test_finish_reason_has_one_word(choice: Any, word: str | None) -> None:
    read = deltas(chunk({"index": 0, "delta": {}, **choice}))
    assert [one.reason for one in read if isinstance(one, Finished)] == ([] if word is None else [word])


def test_finish_reason_of_a_profile_is_mapped() -> None:
    read = deltas(chunk({"delta": {}, "finish_reason": "max_out"}), finish_map={"max_out": "length"})
    assert read == [Finished("length")]  # type: ignore[arg-type]


# Choices.

BOTH = {
    "choices": [
        {"index": 0, "delta": {"content": "a"}},
        {"index": 1, "delta": {"tool_calls": [CALL]}},
    ]
}


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("strict", [TextDelta(["a"])]),
        ("ignore", [TextDelta(["a"])]),
        ("merge", [TextDelta(["a"]), ToolCallDelta(0, "a", "f", ["{}"])]),
    ],
)
def test_choices_of_one_chunk_are_read_by_option(option: str, expected: list[Delta]) -> None:
    assert deltas(BOTH, choice_index=option) == expected


@pytest.mark.parametrize(("option", "expected"), [("strict", ["a"]), ("ignore", ["a", "b"]), ("merge", ["a", "b"])])
def test_choice_index_that_counts_is_read_by_option(option: str, expected: list[str]) -> None:
    chunks = [chunk({"index": index, "delta": {"content": text}}) for index, text in enumerate("ab")]
    assert deltas(*chunks, choice_index=option) == [TextDelta([text]) for text in expected]


# Reasoning field names.


def test_reasoning_field_of_a_profile_is_read() -> None:
    read = deltas(delta(thoughts="hm", content="Hi"), reasoning_fields=["thoughts"])
    assert read == [ReasoningDelta(["hm"]), TextDelta(["Hi"])]


def test_reasoning_field_that_is_not_listed_is_dropped() -> None:
    chunks = [delta(reasoning_text="hm", reasoning="x"), delta(reasoning="y")]
    assert deltas(*chunks, reasoning_fields=["reasoning_text"]) == [ReasoningDelta(["hm"], "reasoning_text")]
    assert chunk_reader(reasoning_fields=["reasoning_text"]).find_text(delta(reasoning="y")) is None


NAMES = ["type", "text", "index", "id", "function", "name", "url"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [
    *("role", "content", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "reasoning_opaque"),
    *("refusal", "annotations", "tool_calls", "function_call"),
]
DELTAS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)
CHOICES = st.fixed_dictionaries(
    {"index": st.sampled_from([0, None, "0", 1])},
    optional={"delta": DELTAS | JSON, "message": DELTAS, "finish_reason": JSON, "logprobs": JSON, "usage": JSON},
)
CHUNKS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2) | JSON},
    optional={"usage": JSON, "x_groq": JSON, "citations": JSON, "search_results": JSON, "service_tier": JSON},
)


@example([{"choices": [{"index": 0, "delta": {"content": {"type": []}}}]}])
@example([{"choices": [{"index": 0, "delta": {"annotations": [{"type": []}]}}]}])
@given(st.lists(CHUNKS, max_size=4))
def test_chunk_of_any_form_can_be_read(chunks: list[Any]) -> None:
    before = copy.deepcopy(chunks)
    reader = reader_of(builder(), logprobs=True)
    reader.feed(deltas_of(chunks))
    reader.end(cut=False)
    assert reader.ended in {"completed", "max_output_tokens", "content_filter", "error", None}
    assert chunks == before
    for each in chunks:
        assert (found := chunk_reader().find_text(each)) is None or isinstance(found[0], str)
