"""
Golden files for all known forms of backend answers: see `tests/streams/recording.py`.

`UPDATE_STREAMS=1 pytest tests/core/stream/test_streams.py` writes them again. Review the changes.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.sse import decoder
from app.core.stream.event_types import CONTENT_REASONING, OPENAI_CONTENT_REASONING
from app.core.stream.replay import replayed_events
from app.core.types.request import Event
from tests.streams.recording import INDEX, NAMES, PLACE, index, load, play
from tests.support import laws

Play = Callable[..., tuple[list[Event], list[str]]]
Uncut = Callable[[str], tuple[list[Event], list[str]]]
UPDATE = bool(os.environ.get("UPDATE_STREAMS"))
ONE_BY_ONE = 20_000  # bytes; a longer body arrives in this many pieces


def golden(name: str) -> Path:
    return PLACE / f"{name}.events.jsonl"


def golden_documents(name: str) -> list[Any]:
    return [json.loads(line) for line in golden(name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Recordings at module scope, to group each recording's tests."""
    return str(request.param)


@pytest.fixture(scope="module")
def play_it() -> Iterator[Play]:
    """Play recordings in one event loop: creating a loop takes longer than playing most of them."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        yield lambda recording, positions=(): loop.run_until_complete(play(recording, positions))


@pytest.fixture(scope="module")
def uncut(play_it: Play) -> Uncut:
    """A recording's events if received in one piece, cached by name."""
    return functools.cache(lambda name: play_it(load(name)))


def test_recorded_stream_gives_its_golden_events(name: str, uncut: Uncut) -> None:
    events, lines = uncut(name)
    if events:
        laws.check(events)
    if UPDATE:
        golden(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert golden_documents(name) == [json.loads(line) for line in lines]


def test_recorded_stream_byte_by_byte_gives_the_same_events(name: str, play_it: Play, uncut: Uncut) -> None:
    recording = load(name)
    size = len(recording.body)
    _, cut = play_it(recording, range(0, size, 1 + size // ONE_BY_ONE))
    assert cut == uncut(name)[1]


def test_replay_of_a_recorded_answer_gives_it(name: str, uncut: Uncut) -> None:
    """A finished response's replayed events follow all laws, and have the same content."""
    events, _ = uncut(name)
    if not events:
        return  # a refusal
    final: Any = copy.deepcopy(events[-1]["response"])
    stored = copy.deepcopy(final)
    rows = OPENAI_CONTENT_REASONING if any("reasoning_text" in event["type"] for event in events) else CONTENT_REASONING
    replayed = replayed_events(final, rows).events()
    laws.check(replayed)
    assert replayed[-1]["response"] == stored == final
    assert replayed[-1]["type"] == events[-1]["type"]
    items = [event["item"] for event in replayed if event["type"] == "response.output_item.done"]
    assert items == final["output"]


def test_recorded_stream_as_large_events_gives_the_same_events(
    name: str, play_it: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "MAX_VALUES", 0)
    _, lines = play_it(load(name))
    assert golden_documents(name) == [json.loads(line) for line in lines]


@settings(max_examples=150, deadline=None)
@given(one=st.sampled_from(NAMES), positions=st.lists(st.integers(0, 6000), max_size=8))
def test_recorded_stream_of_any_cut_gives_the_same_events(
    play_it: Play, uncut: Uncut, one: str, positions: list[int]
) -> None:
    assert play_it(load(one), positions)[1] == uncut(one)[1]


def test_golden_files_have_recordings() -> None:
    golden_files = PLACE.glob("*/*.events.jsonl")
    assert sorted(f"{path.parent.name}/{path.name.removesuffix('.events.jsonl')}" for path in golden_files) == NAMES


def test_streams_index_lists_every_recording() -> None:
    if UPDATE:
        INDEX.write_text(index(), encoding="utf-8")
    assert INDEX.read_text(encoding="utf-8") == index()
