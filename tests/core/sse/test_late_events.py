"""An event log has no late events with large texts, and its readers receive every event whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core import items, size
from app.core.sse import late_events
from app.core.sse.encoder import encode_sse
from app.core.sse.late_events import LogEncoder, lacks_texts, split_batch, with_texts
from app.core.sse.log import decode_events
from app.core.stream import event_types
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_types import ToolBinding
from app.core.stream.recovery import RecoveredBuilder
from app.core.stream.tool_calls import CallRules
from app.errors import APIError
from tests.core.stream import test_event_builder
from tests.support.build import builder, call, delta, finish, normal

BINDINGS = {
    "f": ToolBinding(items.CUSTOM_TOOL_CALL, {"name": "f"}),
    "g": ToolBinding(items.FUNCTION_CALL, {"name": "g"}),
    "shell": ToolBinding(items.SHELL_CALL, {}),
}
TEXT = 'A "large"\ntext, 你好. '


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts count as large."""
    for module in (size, late_events):
        monkeypatch.setattr(module, "LARGE", 40)
        monkeypatch.setattr(module, "TEXT_PIECE", 40)


def batches_of(chunks: Iterable[Any], **options: Any) -> tuple[list[EventBatch], Any]:
    """Return the events of an answer, a batch for each chunk, and the response."""
    made = builder(**options)
    made.start()
    reader = ChunkReader(made, CallRules(BINDINGS))
    batches = [made.take()]
    for chunk in normal([*chunks]):
        reader.feed(chunk)
        batches.append(made.take())
    reader.calls.end()
    made.complete()
    batches.append(made.take())
    made.end()
    return [batch for batch in (*batches, made.take()) if batch], made.response


def logged(batches: Iterable[EventBatch], response: Any) -> list[bytes]:
    """Return what is in the log."""
    encoder = LogEncoder(lambda: response)
    return [encoder.encode(part) for batch in batches for part in split_batch(batch)]


def read(log: list[bytes], response: Any) -> list[Any]:
    """Return the events as a reader of the log receives them."""
    events = []
    for data in log:
        lacking = lacks_texts(data)
        events += [with_texts(event, response) if lacking else event for event in decode_events(data)]
    return events


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(test_event_builder._chunk, max_size=15),
    reasoning=st.sampled_from([event_types.CONTENT_REASONING, event_types.BOTH_REASONING]),
    joined=st.integers(min_value=1, max_value=4),
)
@pytest.mark.usefixtures("large")
def test_readers_get_the_events_as_they_were(chunks: list[Any], reasoning: Any, joined: int) -> None:
    batches, response = batches_of(chunks, reasoning=reasoning)
    groups = []
    for begin in range(0, len(batches), joined):
        group = EventBatch()
        for batch in batches[begin : begin + joined]:
            group.extend(batch)
        groups.append(group)
    whole = decode_events(b"".join(map(encode_sse, batches)))
    assert read(logged(groups, response), response) == whole


@pytest.mark.parametrize(
    ("chunks", "times"),
    [
        ([delta(content="FIRST" + TEXT * 9), delta(content=TEXT)], 1),
        ([delta(reasoning_content="FIRST" + TEXT * 9), delta(content="Hi."), delta(content=TEXT * 9 + "SECOND")], 1),
        ([call(0, "a", "g", '{"x": "'), call(0, None, None, "y" * 90 + "FIRST"), call(0, None, None, '"}')], 1),
        ([call(0, "a", "f", '{"input": "FIRST' + "y" * 90 + '"}')], 1),
        # These have no deltas: the text is in an event of its own, and in the two events of the item.
        ([call(0, "a", "shell", '{"commands": ["ls", "FIRST' + "y" * 90 + '"]}')], 3),
        ([call(0, "a", "shell", '{"commands": ["FIRST' + "y" * 90 + '", "' + "z" * 90 + 'SECOND"]}')], 3),
    ],
)
@pytest.mark.usefixtures("large")
def test_large_text_is_not_stored_in_late_events(chunks: list[Any], times: int) -> None:
    batches, response = batches_of([*chunks, finish("stop")])
    whole = decode_events(b"".join(map(encode_sse, batches)))
    log = logged(batches, response)
    assert read(log, response) == whole
    assert b"".join(log).count(b"FIRST") == times
    assert b"".join(log).count(b"SECOND") == times * ("SECOND" in repr(chunks))


@pytest.mark.usefixtures("large")
def test_large_result_of_a_call_with_small_arguments_is_stored_with_its_item() -> None:
    made = builder()
    made.start()
    batch = made.take()
    opened = made.call("c1", ToolBinding(items.FUNCTION_CALL, {"name": "g", "result": "FIRST" + TEXT * 9}))
    made.arguments(opened, "{}")
    made.close_call(opened)
    made.complete()
    made.end()
    batch.extend(made.take())
    log = logged([batch], made.response)
    types = [event["type"] for data in log if lacks_texts(data) for event in decode_events(data)]
    assert types == ["response.completed"]
    assert b"FIRST" in b"".join(data for data in log if b"event: response.output_item.done" in data)


@pytest.mark.usefixtures("large")
def test_event_of_an_item_that_is_still_open_is_stored_whole() -> None:
    batches, response = batches_of([delta(reasoning_content=TEXT * 9)])
    whole = decode_events(b"".join(map(encode_sse, batches)))
    log = logged(batches, {**response, "output": []})
    assert [decode_events(data)[0]["type"] for data in log if lacks_texts(data)] == []
    assert read(log, response) == whole


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("until", range(1, 12))
@pytest.mark.parametrize(
    "chunk",
    [delta(content=TEXT * 9), delta(reasoning_content=TEXT * 9), call(0, "a", "f", '{"input": "%s"}' % ("y" * 90))],
)
def test_response_recovered_from_events_without_texts_has_them(chunk: Any, until: int) -> None:
    batches, response = batches_of([chunk, delta(content="Hi.")])
    whole = decode_events(b"".join(map(encode_sse, batches)))[:until]
    log = [event for data in logged(batches, response) for event in decode_events(data)][:until]
    recovered = []
    for events in (whole, log):
        made = RecoveredBuilder({**response, "output": []}, events)
        made.fail_abandoned(APIError("gone"))
        recovered.append(made.response["output"])
    assert recovered[0] == recovered[1]
