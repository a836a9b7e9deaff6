"""After its process died, another process ends a stream as its own builder would have."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import items
from app.core.dialects import DIALECTS
from app.core.stream import event_batch, event_types
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import ToolBinding
from app.core.stream.recovery import recovered_builder
from app.core.types.request import Event
from app.core.usage import usage_of
from app.errors import APIError
from tests.core.stream import test_event_builder
from tests.support import laws
from tests.support.build import builder, call, delta, deltas_of, reader_of, story

DIED = APIError("The process died.")

# Bindings shown only by the item are lost with the process.
BINDINGS = {
    "f": ToolBinding(items.CUSTOM_TOOL_CALL, {"name": "f"}),
    "g": ToolBinding(items.FUNCTION_CALL, {"name": "g"}),
}


def begun(chunks: list[Any], reasoning: Any = None, **reading: Any) -> tuple[EventBuilder, list[Event]]:
    """Return a builder in the middle of an answer, and its events so far."""
    made = builder(**({"reasoning": reasoning} if reasoning else {}))
    made.start()
    reader = reader_of(made, **reading)
    reader.feed(deltas_of(chunks))
    return made, made.pop_events().events()


def ended(made: EventBuilder) -> list[Event]:
    made.fail(DIED)
    made.response["usage"] = usage_of(None, {}, made.response["output"])
    made.end()
    return made.pop_events().events()


def recovered(stored: dict[str, Any], events: list[Event]) -> list[Event]:
    found = recovered_builder(stored, events)
    if not found.started:
        found.start()
    found.fail(DIED)
    found.response["usage"] = usage_of(None, {}, found.response["output"])
    found.end()
    return found.pop_events().events()


def spoken(events: list[Event]) -> bytes:
    """The bytes for a client. A log of reasoning without text does not show its dialect."""
    return DIALECTS["openresponses"].translate(event_batch.encode_sse(events))


@settings(max_examples=150, deadline=None)
@given(
    chunks=st.lists(test_event_builder._chunk, max_size=15),
    reasoning=st.sampled_from(
        [None, event_types.SUMMARY_REASONING, event_types.BOTH_REASONING, event_types.OPENAI_BOTH_REASONING]
    ),
    bindings=st.sampled_from([{}, BINDINGS]),
    parallel=st.booleans(),
)
def test_recovered_end_is_that_of_its_own_builder(chunks: list[Any], **how: Any) -> None:
    made, events = begun(chunks, **how)
    stored = {**copy.deepcopy(made.response), "output": [], "status": "in_progress"}
    before = copy.deepcopy(events)

    rest = recovered(stored, events)

    laws.check([*events, *rest])
    assert spoken(rest) == spoken(ended(made))
    assert events == before, "an event never changes"


@pytest.mark.parametrize(
    ("events", "rest"),
    [
        ("", "created queued in_progress error failed"),
        ("created queued", "in_progress error failed"),
        ("created queued in_progress", "error failed"),
    ],
)
def test_recovered_response_that_had_hardly_begun_is_failed(events: str, rest: str) -> None:
    made = builder()
    made.response["background"] = True
    stored = {**made.response}
    made.mark_queued()
    made.start()
    stored_events = made.pop_events().events()[: len(events.split())]
    assert story(stored_events) == events

    found = recovered(stored, stored_events)
    assert story(found) == rest
    laws.check([*stored_events, *found])


def test_recovered_open_items_are_closed() -> None:
    chunks = [delta(content="Hi"), call(0, "a", "f", '{"x'), call(1, "b", "g", '{"y')]
    made, events = begun(chunks)

    rest = recovered(made.response, events)

    assert story(rest) == (
        "function_call_arguments.done output_item.done function_call_arguments.done output_item.done error failed"
    )
    statuses = [item["status"] for item in rest[-1]["response"]["output"]]
    assert statuses == ["completed", "incomplete", "incomplete"]


def test_recovered_logprobs_are_kept() -> None:
    chunk = delta(content="Hi")
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "Hi", "logprob": -0.5, "top_logprobs": []}]}
    made, events = begun([chunk, chunk], logprobs=True)

    rest = recovered(made.response, events)

    assert spoken(rest) == spoken(ended(made))
    assert [one["token"] for one in rest[-1]["response"]["output"][0]["content"][0]["logprobs"]] == ["Hi", "Hi"]
