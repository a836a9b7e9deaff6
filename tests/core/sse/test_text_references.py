"""An event log stores each large text once, and its readers receive every event whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core import bounded_json, items
from app.core.sse import text_references
from app.core.sse.encoder import encode_sse
from app.core.sse.log import decode_events
from app.core.sse.text_references import LogEncoder, TextReference, split_batch, split_references
from app.core.stream import event_types
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_types import ToolBinding
from app.core.stream.tool_calls import CallRules
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
    for module in (text_references, bounded_json):
        monkeypatch.setattr(module, "TEXT_PIECE", 40)
    monkeypatch.setattr(text_references, "_DELTA", 2)


def batches_of(chunks: Iterable[Any], **options: Any) -> list[EventBatch]:
    """Return the events of an answer, a batch for each chunk."""
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
    return [batch for batch in (*batches, made.take()) if batch]


def logged(batches: Iterable[EventBatch]) -> list[bytes]:
    """Return what is in the log."""
    encoder = LogEncoder()
    return [encoder.encode(part) for batch in batches for part in split_batch(batch)]


def read(log: list[bytes]) -> bytes:
    """Return the events as a reader of the log receives them."""
    whole: list[bytes] = []
    for data in log:
        for part in split_references(data):
            if isinstance(part, TextReference):
                numbered = [(event["sequence_number"], one) for one in log for event in _numbers(one)]
                earlier = dict.fromkeys(one for at, one in numbered if part.first <= at <= part.last)
                assert data not in earlier
                whole += [piece for one in earlier for piece in part.pieces(one)]
            else:
                whole.append(part)
    return b"".join(whole)


def _numbers(data: bytes) -> list[Any]:
    return decode_events(b"".join(part if isinstance(part, bytes) else b"" for part in split_references(data)))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunks=st.lists(test_event_builder._chunk, max_size=15),
    reasoning=st.sampled_from([event_types.CONTENT_REASONING, event_types.BOTH_REASONING]),
    joined=st.integers(min_value=1, max_value=4),
)
@pytest.mark.usefixtures("large")
def test_readers_get_the_events_as_they_were(chunks: list[Any], reasoning: Any, joined: int) -> None:
    batches = batches_of(chunks, reasoning=reasoning)
    groups = []
    for begin in range(0, len(batches), joined):
        group = EventBatch()
        for batch in batches[begin : begin + joined]:
            group.extend(batch)
        groups.append(group)
    assert read(logged(groups)) == b"".join(map(encode_sse, batches))


@pytest.mark.parametrize(
    "chunks",
    [
        [delta(content="FIRST" + TEXT * 9), delta(content=TEXT)],
        [delta(reasoning_content="FIRST" + TEXT * 9), delta(content="Hi."), delta(content=TEXT * 9 + "SECOND")],
        [call(0, "a", "g", '{"x": "'), call(0, None, None, "y" * 90 + "FIRST"), call(0, None, None, '"}')],
        [call(0, "a", "f", '{"input": "FIRST' + "y" * 90 + '"}')],
        [call(0, "a", "shell", '{"commands": ["ls", "FIRST' + "y" * 90 + '"]}')],
        [call(0, "a", "shell", '{"commands": ["FIRST' + "y" * 90 + '", "' + "z" * 90 + 'SECOND"]}')],
    ],
)
@pytest.mark.usefixtures("large")
def test_large_text_is_stored_once(chunks: list[Any]) -> None:
    batches = batches_of([*chunks, finish("stop")])
    log = logged(batches)
    assert read(log) == b"".join(map(encode_sse, batches))
    assert b"".join(log).count(b"FIRST") == 1
    assert b"".join(log).count(b"SECOND") == ("SECOND" in repr(chunks))


def test_text_of_many_small_deltas_is_stored_once_more() -> None:
    """To put it together from them, a reader would have to read a log of many times its size, for each event."""
    batches = batches_of([delta(content="word ") for _ in range(bounded_json.TEXT_PIECE // 4)])
    log = logged(batches)
    references = [part for part in split_references(b"".join(log)) if isinstance(part, TextReference)]
    [done] = [event["sequence_number"] for batch in batches for event in batch if event["type"].endswith("text.done")]
    assert [(text.first, text.last) for text in references] == [(done, done)] * 3
    assert read(log) == b"".join(map(encode_sse, batches))


@pytest.mark.usefixtures("large")
def test_text_that_cannot_be_told_from_another_is_stored_again() -> None:
    """Two texts of one event with the same JSON before them: only the first can be referred to."""
    event: Any = {"type": "t", "sequence_number": 0, "a": {"text": "x" * 90}, "b": [{"text": "y" * 90}] * 2}
    again = {**event, "sequence_number": 1}
    batch = EventBatch()
    batch.entries = [event]
    encoder = LogEncoder()
    log = [encoder.encode(batch)]
    batch.entries = [again]
    log.append(encoder.encode(batch))
    assert read(log) == encode_sse([event, again])
