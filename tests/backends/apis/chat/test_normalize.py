"""What a server sends in its own way, and the one form in which the core reads it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.backends.apis.chat.normalize import Normalizer
from app.core.stream.chunk_reader import ChunkReader
from app.core.types.chunk import ChunkRun
from tests.support.build import builder, each


def chunk(choice: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", **fields, "choices": [] if choice is None else [choice]}


def delta(**fields: Any) -> dict[str, Any]:
    return chunk({"index": 0, "delta": fields, "finish_reason": None})


def normal(*chunks: Any) -> list[Any]:
    normalizer = Normalizer()
    return [one for chunk in chunks for one in normalizer.feed([chunk])]


def deltas(*chunks: Any) -> list[dict[str, Any]]:
    return [one["choices"][0]["delta"] for one in normal(*chunks)]


@pytest.mark.parametrize(
    "sent",
    [
        delta(content="Hi"),
        delta(role="assistant", content="Hi", reasoning=None, tool_calls=[], refusal=None),
        delta(reasoning_content="Hm"),
        delta(tool_calls=[{"index": 1, "function": {"arguments": "{"}}]),
        chunk({"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{"token": "x"}]}}, usage=None),
    ],
)
def test_chunk_of_the_normal_form_is_the_same_object(sent: Any) -> None:
    first, _ = Normalizer().feed([sent, delta(content="more")])
    assert first is sent


def test_reasoning_run_under_another_name_stays_a_run() -> None:
    run = ChunkRun(delta(role="assistant", reasoning="a"), "reasoning", ["b", "c"])
    (normalized,) = Normalizer().feed([run])
    assert isinstance(normalized, ChunkRun)
    assert normalized.field == "reasoning_content"
    expected = [{"reasoning_content": text, "reasoning_field": "reasoning"} for text in ("b", "c")]
    assert [one["choices"][0]["delta"] for one in each([normalized])] == deltas(*run.chunks()) == expected


def test_reasoning_run_with_another_field_is_taken_apart() -> None:
    run = ChunkRun(
        chunk({"index": 0, "delta": {"content": "a"}}, citations=["https://a.example"]), "content", ["b", "c"]
    )
    assert [one.get("sources") for one in Normalizer().feed([run])] == [
        [{"url": "https://a.example", "title": "https://a.example"}],
        None,
    ]


def test_fields_of_the_normal_form_alone_are_not_taken_from_a_server() -> None:
    sent = chunk({"index": 0, "delta": {"content": "a", "reasoning_fragments": 1}}, sources=[1])
    (normalized,) = normal(sent)
    assert normalized["choices"] == [{"delta": {"content": "a"}, "finish_reason": None}]
    assert "sources" not in normalized


CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
TELLS: dict[str, tuple[Any, list[Any]]] = {
    "another name": (delta(reasoning="Hm"), [{"reasoning_content": "Hm", "reasoning_field": "reasoning"}]),
    "two names": (delta(reasoning="Hm", reasoning_content="Hm"), [{"reasoning_content": "Hm"}]),
    "fragments": (
        delta(reasoning_details=[{"text": "a"}, {"summary": "b"}]),
        [
            {"reasoning_content": "a", "reasoning_field": "reasoning_details"},
            {"reasoning_content": "b", "reasoning_field": "reasoning_details"},
            {"reasoning_fragments": {"reasoning_details": [{"text": "a"}, {"summary": "b"}]}},
        ],
    ),
    "opaque": (delta(reasoning_opaque="x"), [{"reasoning_upstream": {"reasoning_opaque": "x"}}]),
    "parts": (
        delta(content=[{"type": "thinking", "thinking": [{"text": "a"}]}, {"type": "text", "text": "b"}], refusal="c"),
        [{"reasoning_content": "a"}, {"content": "b"}, {"refusal": "c"}],
    ),
    "a number": (delta(content=7), [{"content": "7"}]),
    "zero": (delta(content=0), [{"content": "0"}]),
    "an object": (delta(content={"a": 1}), [{"content": '{"a":1}'}]),
    "an empty object": (delta(content={}), [{"content": "{}"}]),
    "a flat call": (
        delta(tool_calls={"name": "f", "arguments": {"a": 1}}),
        [{"tool_calls": [{"index": None, "id": None, "function": {"name": "f", "arguments": '{"a":1}'}}]}],
    ),
    "an index as text": (delta(tool_calls=[{**CALL, "index": "0"}]), [{"tool_calls": [CALL]}]),
    "a signature": (
        delta(tool_calls=[{**CALL, "extra_content": {"x": 1}}]),
        [{"tool_calls": [{**CALL, "upstream": {"extra_content": {"x": 1}}}]}],
    ),
    "the legacy field": (
        delta(function_call={"name": "f"}),
        [{"tool_calls": [{"index": 0, "id": None, "function": {"name": "f", "arguments": ""}}]}],
    ),
    "a message": (chunk({"index": 0, "message": {"content": "Hi"}}), [{"content": "Hi"}]),
}


@pytest.mark.parametrize(("sent", "expected"), TELLS.values(), ids=TELLS)
def test_delta_is_normalized_to_its_contents(sent: Any, expected: list[Any]) -> None:
    before = copy.deepcopy(sent)
    assert deltas(sent) == expected
    assert sent == before


def test_message_that_repeats_the_answer_is_skipped() -> None:
    assert deltas(delta(content="Hi"), chunk({"index": 0, "message": {"content": "Hi"}})) == [{"content": "Hi"}, {}]


def test_legacy_function_call_beside_tool_calls_is_skipped() -> None:
    assert deltas(delta(tool_calls=[CALL]), delta(function_call={"name": "f"})) == [{"tool_calls": [CALL]}, {}]


def test_usage_is_the_latest_wherever_it_stands() -> None:
    chunks = [
        chunk(usage={"prompt_tokens": 5, "completion_tokens": 0}),
        chunk(x_groq={"usage": {"prompt_tokens": 0, "completion_tokens": 2}}),
        chunk({"index": 0, "delta": {"content": "x"}, "usage": {"completion_tokens": 3}}),
        chunk(usage="none"),
    ]
    usages = [one["usage"] for one in normal(*chunks)]
    assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages] == [
        (5, 0),
        (5, 2),
        (5, 3),
        (5, 3),
    ]


def test_source_that_is_repeated_is_returned_once() -> None:
    results = [{"url": "https://a.test", "title": "A"}]
    cited = ["https://a.test", "https://b.test"]
    first, second = normal(chunk(citations=cited, search_results=results), chunk(citations=[*cited, {"url": "c"}]))
    assert first["sources"] == [
        {"url": "https://a.test", "title": "A"},
        {"url": "https://b.test", "title": "https://b.test"},
    ]
    assert second["sources"] == [{"url": "c", "title": "c"}]


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ({"finish_reason": "stop"}, "stop"),
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
    (one,) = normal(chunk({"index": 0, "delta": {}, **choice}))
    assert one["choices"][0]["finish_reason"] == word


NAMES = ["type", "text", "index", "id", "function", "name", "url"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "index", "id", "function", "name", "url"]), inner, max_size=4
        )
    ),
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
@given(st.lists(CHUNKS, max_size=4))
def test_chunk_of_any_form_can_be_read(chunks: list[Any]) -> None:
    before = copy.deepcopy(chunks)
    reader = ChunkReader(builder(), logprobs=True)
    for one in Normalizer().feed(chunks):
        reader.feed(one)
    reader.calls.end()
    assert reader.ended in {"completed", "max_output_tokens", "content_filter", "error", None}
    assert chunks == before
