"""Event builder and chunk reader: single streams, and laws for all streams."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response

from app.core import items
from app.core.bounded_json import LARGE
from app.core.stream import event_types
from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_builder import EventBuilder, resolve_upstream
from app.core.stream.event_types import ToolBinding
from app.core.types.deltas import DONE
from app.errors import BackendError
from tests.support import laws
from tests.support.build import answer, builder, call, calls, delta, deltas_of, finish, output, story, whole

TEXT = "output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done"

STORIES: dict[str, tuple[list[Any], str]] = {
    "text": (
        whole(delta(content="Hel"), delta(content="lo")),
        "created in_progress output_item.added content_part.added output_text.delta output_text.delta "
        "output_text.done content_part.done output_item.done completed",
    ),
    "reasoning, then text": (
        whole(delta(reasoning_content="hm"), delta(content="Hi")),
        "created in_progress output_item.added content_part.added reasoning.delta reasoning.done content_part.done "
        f"output_item.done {TEXT} completed",
    ),
    "a refusal is a part of the message": (
        whole(delta(content="Well,"), delta(refusal="no.")),
        "created in_progress output_item.added content_part.added output_text.delta output_text.done content_part.done "
        "content_part.added refusal.delta refusal.done content_part.done output_item.done completed",
    ),
    "a call is done as soon as its arguments have closed": (
        whole(call(0, "c", "f"), call(0, arguments='{"a":'), call(0, arguments="1}"), delta(content="Done.")),
        "created in_progress output_item.added function_call_arguments.delta function_call_arguments.delta "
        f"function_call_arguments.done output_item.done {TEXT} completed",
    ),
    "two calls, interleaved": (
        whole(
            call(0, "c", "f", "{"), call(1, "d", "g", "{"), call(0, arguments="}"), call(1, arguments="}"),
        ),
        "created in_progress output_item.added function_call_arguments.delta output_item.added "
        "function_call_arguments.delta function_call_arguments.delta function_call_arguments.done output_item.done "
        "function_call_arguments.delta function_call_arguments.done output_item.done completed",
    ),
    "nothing at all": (whole(), "created in_progress completed"),
    "a call without arguments has empty ones": (
        whole(call(0, "c", "f"), reason="tool_calls"),
        "created in_progress output_item.added function_call_arguments.delta function_call_arguments.done "
        "output_item.done completed",
    ),
    "the server dies": (
        [delta(content="Hal")],
        "created in_progress output_item.added content_part.added output_text.delta output_text.done content_part.done "
        "output_item.done error failed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("chunks", "expected"), STORIES.values(), ids=STORIES)
def test_chunks_become_their_events(chunks: list[Any], expected: str) -> None:
    events = answer(chunks)
    assert story(events) == expected
    laws.check(events)


# Laws for any stream.

_names = st.sampled_from(["f", "g", "get_weather"])
_pieces = st.sampled_from(
    [
        "",
        "{",
        "}",
        '{"a": "}',
        '{"input": "',
        "raw",
        "\\ud83d",
        "\\u",
        "de00",
        '\\"',
        '"',
        '{"a": {"b": [1]}}',
        "[",
        "]",
        '"}',
    ]
)
_texts = st.sampled_from(["", " ", "Hi", "ü😀", "\n\n", "<think>"])
_fragment = st.builds(
    lambda index, id, name, arguments: call(index, id, name, arguments),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from([None, "", "a", "b", "c" * 70]),
    st.one_of(st.none(), st.just(""), _names),
    st.one_of(st.none(), _pieces, st.just({"x": 1})),
)
_annotation = st.just({"type": "url_citation", "url_citation": {"url": "https://x", "title": None}})
_chunk = st.one_of(
    st.builds(lambda text: delta(content=text), _texts),
    st.builds(
        lambda text: delta(content=[{"type": "text", "text": text}, {"type": "thinking", "thinking": text}]), _texts
    ),
    st.builds(lambda text: delta(reasoning_content=text, reasoning=text), _texts),
    st.builds(lambda text: delta(reasoning_details=[{"type": "reasoning.text", "text": text, "index": 0}]), _texts),
    st.builds(lambda text: delta(refusal=text), _texts),
    st.builds(lambda one: delta(annotations=[one]), _annotation),
    st.just(delta(function_call={"name": "f", "arguments": "{}"})),
    st.just({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
    st.sampled_from([{}, {"choices": None}, {"choices": [{}]}, {"choices": [{"delta": None}]}, {"choices": [7]}]),
    st.builds(finish, st.sampled_from([None, "", "stop", "tool_calls", "length", "content_filter", "error", "eos"])),
    _fragment,
    _fragment,
)
CHUNKS = st.lists(_chunk, max_size=25)
_bindings = st.sampled_from(
    [
        {},
        {"f": ToolBinding(items.CUSTOM_TOOL_CALL, {"name": "f"}), "g": ToolBinding(items.FUNCTION_CALL, {"name": "g"})},
        {
            "f": ToolBinding(items.CUSTOM_TOOL_CALL, {"name": "f", "namespace": "n"}),
            "g": ToolBinding(items.TOOL_SEARCH_CALL, {"execution": "client"}),
        },
    ]
)
_reasoning = st.sampled_from(
    [None, event_types.SUMMARY_REASONING, event_types.BOTH_REASONING, event_types.OPENAI_CONTENT_REASONING]
)


@settings(max_examples=150, deadline=None)
@given(
    chunks=CHUNKS,
    done=st.booleans(),
    reasoning=_reasoning,
    bindings=_bindings,
    allowed=st.sampled_from([None, frozenset(), frozenset({"f"})]),
    parallel=st.booleans(),
    failure=st.sampled_from([None, BackendError("Oh.")]),
)
def test_events_of_any_chunks_keep_the_laws_of_the_stream(
    chunks: list[Any], done: bool, reasoning: Any, failure: Any, **reading: Any
) -> None:
    before = copy.deepcopy(chunks)
    events = answer(chunks + [DONE] * done, failure, reasoning, **reading)
    laws.check(events)
    assert chunks == before, "a chunk is not ours to change"
    json.dumps(events)


@settings(max_examples=100, deadline=None)
@given(chunks=CHUNKS, reasoning=_reasoning, failure=st.sampled_from([None, BackendError("Oh.")]))
def test_response_is_the_same_if_its_events_are_not_built(chunks: list[Any], reasoning: Any, failure: Any) -> None:
    parts = reasoning or event_types.CONTENT_REASONING
    made, unread = builder(reasoning=parts), builder(reasoning=parts)
    unread.events = None
    for each in (made, unread):
        each.start()
        reader = DeltaReader(each)
        reader.feed(deltas_of(chunks))
        reader.end(cut=bool(failure))
        each.annotation({"type": "url_citation"})
        if failure:
            each.fail(failure)
        else:
            each.complete()
        each.end()

    assert unread.response == made.response
    assert made.pop_events() and unread.pop_events() == []


def test_event_never_changes_once_taken() -> None:
    made = builder()
    made.start()
    taken = []
    frozen = []

    def take() -> None:
        events = made.pop_events().events()
        taken.extend(events)
        frozen.extend(copy.deepcopy(events))

    take()
    for act in (
        lambda: made.text("a", logprobs=[{"token": "a"}]),
        lambda: made.annotation({"type": "url_citation"}),
        lambda: made.refusal("b"),
        lambda: made.reasoning("c"),
        lambda: made.arguments(made.call("d", ToolBinding(items.FUNCTION_CALL, {"name": "f"})), "{}"),
        made.complete,
        made.end,
    ):
        act()
        take()

    assert taken == frozen


@pytest.mark.parametrize(
    "write",
    [
        lambda made, text: made.text(text),
        lambda made, text: made.refusal(text),
        lambda made, text: made.reasoning(text),
        lambda made, text: made.reasoning_summary(text),
        lambda made, text: made.arguments(made.call("a", ToolBinding(items.FUNCTION_CALL, {"name": "f"})), text),
        lambda made, text: made.arguments(made.call("a", ToolBinding(items.CUSTOM_TOOL_CALL, {"name": "f"})), text),
    ],
    ids=["text", "refusal", "reasoning", "summary", "call", "custom call"],
)
def test_size_of_events_counts_a_text_where_it_is_whole(write: Callable[[EventBuilder, str], None]) -> None:
    made = builder()
    made.start()
    write(made, "x" * 1000)
    assert made.pop_events().characters < 1000  # deltas are not counted
    made.complete()
    assert 1000 <= made.pop_events().characters < 2000
    made.end()
    assert 1000 <= made.pop_events().characters < 2000


def test_large_batch_is_divided_into_its_entries() -> None:
    made = builder()
    made.start()
    made.text("x" * (LARGE + 1))
    assert len(made.pop_events().parts()) == 1
    made.complete()
    batch = made.pop_events()
    assert [[*part] for part in batch.parts()] == [[event] for event in batch]


@settings(max_examples=100, deadline=None)
@given(chunks=st.lists(_chunk, max_size=20))
def test_official_client_rebuilds_the_response_from_the_events(chunks: list[Any]) -> None:
    events = answer(whole(*chunks), reasoning=event_types.OPENAI_CONTENT_REASONING)
    state = ResponseStreamState(text_format=omit, input_tools=omit)
    for event in events[:-1]:  # the last event contains the whole answer
        if event["type"] != "error":
            state.handle_event(laws.OPENAI_EVENTS[event["type"]].model_validate(event))
    snapshot = state._ResponseStreamState__current_snapshot  # type: ignore[attr-defined]

    def content_of(item: dict[str, Any]) -> Any:
        if item["type"] == "message":
            return [part.get("text") for part in item["content"] if part["type"] == "output_text"]
        return item.get("arguments")

    rebuilt = [content_of(item.model_dump()) for item in snapshot.output]
    assert rebuilt == [content_of(item) for item in output(events)]
    Response.model_validate(events[-1]["response"])


# Endings are truthful.


@pytest.mark.parametrize(
    ("reason", "status", "detail"),
    [
        ("stop", "completed", None),
        ("eos_token", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("MAX_TOKENS", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("network_error", "failed", None),
        (None, "completed", None),  # `[DONE]`, but never a reason
    ],
)
def test_finish_reason_gives_its_status(reason: str | None, status: str, detail: str | None) -> None:
    response = answer(whole(delta(content="Hi"), reason=reason))[-1]["response"]
    assert response["status"] == status
    assert (response["incomplete_details"] or {}).get("reason") == detail
    assert response["output"][0]["status"] == ("completed" if status == "completed" else "incomplete")
    assert (response["completed_at"] is None) == (status != "completed")


def test_call_that_was_cut_off_is_incomplete_whatever_the_finish_reason() -> None:
    for reason in ("tool_calls", "stop", "length", None):
        events = answer(whole(call(0, "c", "f", '{"a": "b'), reason=reason))
        assert calls(events) == [("f", '{"a": "b', "incomplete")]
        assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_call_cut_after_its_name_is_incomplete_without_arguments() -> None:
    events = answer(whole(call(0, "c", "f", '{"a": 1}'), call(1, "d", "g"), reason="length"))
    assert calls(events) == [("f", '{"a": 1}', "completed"), ("g", "", "incomplete")]


def test_error_after_the_finish_reason_takes_nothing_away() -> None:
    events = answer([delta(content="Hi"), finish("length")], BackendError("reset"))
    assert events[-1]["type"] == "response.incomplete"


def test_failure_is_emitted_nested_flat_and_in_the_response() -> None:
    failure = BackendError("Too much.", error_type="too_many_requests", code="rate_limit_exceeded", status=429)
    error, failed = answer([delta(content="Hi")], failure)[-2:]
    expected = {"type": "too_many_requests", "code": "rate_limit_exceeded", "message": "Too much.", "param": None}
    assert error["error"] == {**expected, "headers": {"Retry-After": "1"}}
    assert (error["code"], error["message"], error["param"]) == ("rate_limit_exceeded", "Too much.", None)
    assert failed["response"]["error"] == expected
    assert [item["status"] for item in failed["response"]["output"]] == ["incomplete"]


# Usage.


@pytest.mark.parametrize(
    ("reported_usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}, (5, 0, 7, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}}, (5, 3, 7, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_cache_hit_tokens": 4}, (5, 4, 7, 0)),
        (
            {"prompt_tokens": 5, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 6}},
            (5, 0, 7, 6),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 7, "reasoning_tokens": 2}, (5, 0, 7, 2)),
        (  # xAI counts reasoning apart
            {
                "prompt_tokens": 5,
                "completion_tokens": 7,
                "total_tokens": 32,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            (5, 0, 27, 20),
        ),
        ({"prompt_tokens": None, "completion_tokens": 7, "prompt_tokens_details": None}, (0, 0, 7, 0)),
        (  # by chance as many are cached as are missing
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "total_tokens": 184,
                "prompt_tokens_details": {"cached_tokens": 64},
                "completion_tokens_details": {"reasoning_tokens": 64},
            },
            (100, 64, 84, 64),
        ),
        (  # as with Claude: cached tokens are not input tokens, and reasoning tokens are output tokens
            {
                "prompt_tokens": 100,
                "completion_tokens": 80,
                "total_tokens": 244,
                "cache_read_input_tokens": 64,
                "completion_tokens_details": {"reasoning_tokens": 64},
            },
            (164, 64, 80, 64),
        ),
        # Gemini's thoughts are in the total alone
        ({"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 32}, (5, 0, 27, 20)),
    ],
)
def test_usage_is_mapped_and_adds_up(reported_usage: dict[str, Any], expected: tuple[int, int, int, int]) -> None:
    usage = answer(whole(delta(content="Hi"), {"choices": [], "usage": reported_usage}))[-1]["response"]["usage"]
    input_, cached, output_, reasoning = expected
    assert usage == {
        "input_tokens": input_,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": output_,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": input_ + output_,
    }


def test_usage_in_any_field_is_found_and_the_last_counts() -> None:
    chunks = [
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
        {"choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 2, "completion_tokens": 1}}]},
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}},
    ]
    for count, usage_chunk in enumerate(chunks, 1):
        assert answer(whole(*chunks[:count], delta(content="x")))[-1]["response"]["usage"]["input_tokens"] == count, (
            usage_chunk
        )


def test_usage_without_a_report_is_estimated() -> None:
    usage = answer(whole(delta(content="word " * 100)))[-1]["response"]["usage"]
    assert usage["output_tokens"] == 100
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize(
    "shown", [event_types.CONTENT_REASONING, event_types.SUMMARY_REASONING, event_types.BOTH_REASONING]
)
@pytest.mark.parametrize("more", [{}, {"completion_tokens_details": {"reasoning_tokens": None}}])
def test_reasoning_tokens_without_a_report_are_estimated_by_their_share(shown: Any, more: dict[str, Any]) -> None:
    chunks = [delta(reasoning_content="hm " * 300), delta(content="word " * 50), call(0, "c", "f", '{"x": 1}')]
    usage_chunk = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 800, **more}}
    usage = answer(whole(*chunks, usage_chunk), reasoning=shown)[-1]["response"]["usage"]
    assert usage["output_tokens"] == 800
    assert 640 < usage["output_tokens_details"]["reasoning_tokens"] < 700  # 300 out of about 355
    estimated = answer(whole(*chunks), reasoning=shown)[-1]["response"]["usage"]
    assert estimated["output_tokens_details"]["reasoning_tokens"] == 300
    assert estimated["output_tokens"] > 350


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_tokens": 0},
        {"completion_tokens_details": {"reasoning_tokens": 0}},
        {"output_tokens_details": {"reasoning_tokens": 0}},
    ],
)
def test_reasoning_tokens_reported_as_zero_are_not_estimated(more: dict[str, Any]) -> None:
    usage_chunk = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 800, **more}}
    usage = answer(whole(delta(reasoning_content="hm"), delta(content="word"), usage_chunk))[-1]["response"]["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]["reasoning_tokens"]) == (800, 0)


def test_answer_of_reasoning_alone_has_no_other_tokens() -> None:
    usage_chunk = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}
    usage = answer(whole(delta(reasoning="hm"), usage_chunk))[-1]["response"]["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] == 7


# Reasoning, in its forms.


def test_reasoning_as_a_summary_is_emitted() -> None:
    events = answer(whole(delta(reasoning="hm"), delta(reasoning="m")), reasoning=event_types.SUMMARY_REASONING)
    assert story(events[2:-1]) == (
        "output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.delta "
        "reasoning_summary_text.done reasoning_summary_part.done output_item.done"
    )
    assert output(events)[0]["summary"] == [{"type": "summary_text", "text": "hmm"}]
    assert "content" not in output(events)[0]


def test_reasoning_in_both_forms_is_emitted() -> None:
    (item,) = output(answer(whole(delta(reasoning="hm")), reasoning=event_types.OPENAI_BOTH_REASONING))
    assert item["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_reasoning_under_two_names_is_emitted_once() -> None:
    (item,) = output(answer(whole(delta(reasoning_content="hm", reasoning="hm"))))
    assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_reasoning_and_text_may_alternate() -> None:
    events = answer(whole(delta(reasoning="a"), delta(content="b"), delta(reasoning="c"), delta(content="d")))
    assert [item["type"] for item in output(events)] == ["reasoning", "message", "reasoning", "message"]


def test_delta_with_several_fields_is_emitted_reasoning_first() -> None:
    both = {**call(0, "c", "f", "{}")["choices"][0]["delta"], "content": "Hi", "reasoning_content": "hm"}
    assert [item["type"] for item in output(answer(whole(delta(**both))))] == ["reasoning", "message", "function_call"]


def test_reasoning_fragment_costs_the_same_however_long_the_output() -> None:
    class Output(list[Any]):
        walks = 0

        def __iter__(self) -> Any:
            self.walks += 1
            return super().__iter__()

    made = builder()
    made.response["output"] = output = Output()
    reader = DeltaReader(made)
    made.start()
    before = output.walks
    for n in range(3):
        thought = delta(reasoning_details=[{"type": "reasoning.text", "text": "hm", "index": n}])
        reader.feed(deltas_of([thought, delta(reasoning_opaque=f"opaque {n}"), delta(content="So")]))
    assert output.walks == before
    assert [item["type"] for item in output] == ["reasoning", "message"] * 3
    assert [fields.get("reasoning_opaque") for fields in made.upstream.values()] == ["opaque 0", "opaque 1", "opaque 2"]


def test_backend_fields_are_stored_for_replay() -> None:
    made = builder()
    made.start()
    reader = DeltaReader(made)
    chunks = whole(
        delta(reasoning="h", reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "h"}]),
        delta(reasoning="m", reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "m", "signature": "s"}]),
        delta(content="Hi"),
        delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}, "extra_content": {"google": {"x": 1}}}]),
    )
    reader.feed(deltas_of(chunks))
    reader.end(cut=False)
    made.complete()
    reasoning, _, function_call = made.response["output"]
    assert resolve_upstream(made.upstream[reasoning["id"]]) == {
        "reasoning": "hm",
        "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "hm", "signature": "s"}],
    }
    assert made.upstream[function_call["id"]] == {"extra_content": {"google": {"x": 1}}}


# Tool calls: no field identifies them reliably.

CALLS: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "whole, in one delta": ([call(0, "a", "f", '{"x":1}')], [("f", '{"x":1}')]),
    "in sequence": ([call(0, "a", "f", "{}"), call(1, "b", "g", "{}")], [("f", "{}"), ("g", "{}")]),
    "no index, whole": ([call(None, "a", "f", "{}"), call(None, "b", "f", "{}")], [("f", "{}"), ("f", "{}")]),
    "no index, in pieces": (
        [call(None, "a", "f", "{"), call(None, arguments="}"), call(None, "b", "g", "{"), call(None, arguments="}")],
        [("f", "{}"), ("g", "{}")],
    ),
    "no index and no id, whole": (
        [call(None, None, "f", '{"x":1}'), call(None, None, "f", '{"x":2}')],
        [("f", '{"x":1}'), ("f", '{"x":2}')],
    ),
    "always index 0": (
        [call(0, "a", "f", "{"), call(0, arguments="}"), call(0, "b", "f", '{"y":1}')],
        [("f", "{}"), ("f", '{"y":1}')],
    ),
    "one id and one index for two calls": (
        [call(0, "a", "f", "{}"), call(0, "a", "g", "{}")],
        [("f", "{}"), ("g", "{}")],
    ),
    "one id for two calls of other index": (
        [call(0, "a", "f", '{"x":1}'), call(1, "a", "f", '{"x":2}')],
        [("f", '{"x":1}'), ("f", '{"x":2}')],
    ),
    "one id for two calls, no index": (
        [call(None, "a", "f", '{"x":1}'), call(None, "a", "f", '{"x":2}')],
        [("f", '{"x":1}'), ("f", '{"x":2}')],
    ),
    "index from 1": ([call(1, "a", "f", "{}"), call(2, "b", "g", "{}")], [("f", "{}"), ("g", "{}")]),
    "the index of the arguments is not that of the name": (
        [call(0, "a", "f"), call(1, arguments='{"x":'), call(1, arguments="1}")],
        [("f", '{"x":1}')],
    ),
    "a new id with every piece": (
        [call(0, "a", "f", ""), call(0, "b", None, "{"), call(0, "c", None, "}")],
        [("f", "{}")],
    ),
    "id and name with every piece": (
        [call(0, "a", "f", "{"), call(0, "a", "f", '"x":1'), call(0, "a", "f", "}")],
        [("f", '{"x":1}')],
    ),
    "id and name empty or null later": (
        [call(0, "a", "f", "{"), {**delta(tool_calls=[{"index": 0, "id": None, "type": None,
          "function": {"name": None, "arguments": "}"}}])}, call(0, "", "", "")],
        [("f", "{}")],
    ),
    "a name in pieces": (
        [call(0, "a", "get_"), call(0, None, "weather"), call(0, None, None, "{}")],
        [("get_weather", "{}")],
    ),
    "a late id": ([call(0, None, "f"), call(0, "a"), call(0, None, None, "{}")], [("f", "{}")]),
    "a late name": ([call(0, "a"), call(0, None, "f", "{}")], [("f", "{}")]),
    "arguments before the name": ([call(0, "a", None, '{"x"'), call(0, None, "f", ":1}")], [("f", '{"x":1}')]),
    "arguments as an object": ([call(0, "a", "f", {"x": 1})], [("f", '{"x":1}')]),
    "tool_calls as an object": (
        [delta(tool_calls={"id": "a", "function": {"name": "f", "arguments": "{}"}})],
        [("f", "{}")],
    ),
    "arguments null": ([delta(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": None}}])], [("f", "{}")]),
    "complete arguments resent": (
        [call(0, "a", "f", '{"x":'), call(0, None, None, "1}"), call(0, None, None, '{"x":1}')],
        [("f", '{"x":1}')],
    ),
    "control tokens in the name": ([call(0, "a", "f<|channel|>json", "{}")], [("f", "{}")]),
    "a tag in the name": ([call(0, "a", "f</arg_value>", "{}")], [("f", "{}")]),
    "the legacy field": (
        [delta(function_call={"name": "f", "arguments": "{"}), delta(function_call={"arguments": "}"})],
        [("f", "{}")],
    ),
    "the legacy field as a mirror": (
        [delta(function_call={"name": "f", "arguments": "{}"}, tool_calls=[{"index": 0, "id": "a", "function":
         {"name": "f", "arguments": "{}"}}])],
        [("f", "{}")],
    ),
    "braces in strings and escapes": (
        [call(0, "a", "f", '{"x":"}\\'), call(0, None, None, '"{"'), call(0, None, None, "}")],
        [("f", '{"x":"}\\"{"}')],
    ),
    "arguments that are no object": ([call(0, "a", "f", "[1,"), call(0, None, None, "2]")], [("f", "[1,2]")]),
    "white space kept": ([call(0, "a", "f", ' { "x" : 1 } ')], [("f", ' { "x" : 1 } ')]),
    "junk": ([delta(tool_calls=[None, 7, {"function": None}]), call(0, "a", "f", "{}")], [("f", "{}")]),
    "interleaved with text": (
        [call(0, "a", "f", "{"), delta(content="Hi"), call(0, None, None, "}"), delta(content="!")],
        [("f", "{}")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("chunks", "expected"), CALLS.values(), ids=CALLS)
def test_tool_calls_are_assembled(chunks: list[Any], expected: list[tuple[str, str]]) -> None:
    bindings = {"f": ToolBinding(items.FUNCTION_CALL, {"name": "f"})}
    events = answer(whole(*chunks, reason="tool_calls"), bindings=bindings)
    laws.check(events)
    assert calls(events) == [(name, arguments, "completed") for name, arguments in expected]


def test_call_ids_are_kept_if_they_can_be() -> None:
    events = answer(whole(call(0, "functions.f:0", "f", "{}"), call(1, "x" * 65, "g", "{}"), call(2, "", "h", "{}")))
    kept, shortened, minted = [item["call_id"] for item in output(events)]
    assert kept == "functions.f:0"
    assert 0 < len(shortened) <= 64
    assert minted.startswith("call_")


def test_call_id_that_is_too_long_is_stored_for_the_backend() -> None:
    made = builder()
    reader = DeltaReader(made)
    reader.feed(deltas_of(whole(call(0, "x" * 65, "f", "{}"), call(1, "call_b", "g", "{}"))))
    reader.end(cut=False)
    assert [*made.upstream.values()] == [{"original_id": "x" * 65}]


def test_call_of_a_tool_that_was_not_offered_is_not_emitted() -> None:
    stream = whole(delta(content="Hi"), call(0, "a", "f", "{}"), call(1, "b", "g", "{}"), reason="tool_calls")
    assert calls(answer(stream, allowed=frozenset({"g"}))) == [("g", "{}", "completed")]
    assert calls(answer(stream, allowed=frozenset())) == []
    assert calls(answer(stream, parallel=False)) == [("f", "{}", "completed")]


def test_binding_gives_the_clients_name() -> None:
    bindings = {"lab__add": ToolBinding(items.FUNCTION_CALL, {"name": "add", "namespace": "lab"})}
    (item,) = output(answer(whole(call(0, "a", "lab__add", "{}")), bindings=bindings))
    assert (item["name"], item["namespace"]) == ("add", "lab")


# Other fields in a chunk.


def test_annotations_are_flattened_and_counted() -> None:
    nested = {
        "type": "url_citation",
        "url_citation": {"url": "https://a", "title": "A", "start_index": 1, "end_index": 2},
    }
    events = answer(whole(delta(content="Hi"), delta(annotations=[nested]), delta(annotations=[nested])))
    annotations = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    flat = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 1, "end_index": 2}
    assert [(event["annotation_index"], event["annotation"]) for event in annotations] == [(0, flat), (1, flat)]
    assert output(events)[0]["content"][0]["annotations"] == [flat, flat]


def test_citations_of_the_whole_answer_are_emitted_once() -> None:
    chunk = {**delta(content="Hi"), "citations": ["https://a", "https://b"]}
    (item,) = output(answer(whole(chunk, chunk)))
    assert [annotation["url"] for annotation in item["content"][0]["annotations"]] == ["https://a", "https://b"]


def test_logprobs_are_in_the_deltas_and_the_part_if_requested() -> None:
    token = {"token": "Hi", "logprob": -0.5, "bytes": None, "id": 7, "top_logprobs": [{"token": "Ho", "logprob": -1}]}
    chunk = delta(content="Hi")
    chunk["choices"][0]["logprobs"] = {"content": [token]}
    flat = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}
    top = {"token": "Ho", "logprob": -1, "bytes": [72, 111]}
    events = answer(whole(chunk), logprobs=True)
    laws.check(events)
    assert output(events)[0]["content"][0]["logprobs"] == [{**flat, "top_logprobs": [top]}]
    assert [event["logprobs"] for event in events if event["type"].endswith("text.delta")] == [
        [{**flat, "top_logprobs": [top]}]
    ]
    assert output(answer(whole(chunk)))[0]["content"][0]["logprobs"] == []


def test_chunk_that_repeats_the_whole_message_adds_nothing() -> None:
    last = delta(content="")
    last["choices"][0]["message"] = {"role": "assistant", "content": "Hello"}
    (item,) = output(answer(whole(delta(content="Hello"), last)))
    assert item["content"][0]["text"] == "Hello"


def test_choices_other_than_the_first_are_ignored() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    (item,) = output(answer(whole(delta(content="ours"), other)))
    assert item["content"][0]["text"] == "ours"


def test_failed_response_cannot_be_cancelled() -> None:
    made = builder()
    made.start()
    made.fail(BackendError("Gone."))
    assert made.started
    made.cancel()
    made.end()
    *_, error, failed = made.pop_events().events()
    assert (error["type"], failed["type"]) == ("error", "response.failed")


@pytest.mark.parametrize("end", [lambda made: made.complete(), lambda made: made.incomplete("max_output_tokens")])
def test_failure_after_completion_is_a_failure(end: Callable[[EventBuilder], None]) -> None:
    """It cannot be stored, say."""
    made = builder()
    made.start()
    end(made)
    made.fail(BackendError("Gone."))
    made.end()
    failed = made.pop_events().events()[-1]["response"]
    assert (failed["status"], failed["completed_at"], failed["incomplete_details"]) == ("failed", None, None)


def test_service_tier_of_the_backend_is_returned() -> None:
    events = answer(whole({**delta(content="Hi"), "service_tier": "flex"}))
    assert [event["response"]["service_tier"] for event in (events[0], events[-1])] == ["default", "flex"]
    assert answer(whole(delta(content="Hi")))[-1]["response"]["service_tier"] == "default"
    alone = [*whole(delta(content="Hi")), {"choices": [], "service_tier": "priority"}]
    assert answer(alone)[-1]["response"]["service_tier"] == "priority"
