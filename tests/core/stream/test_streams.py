"""
Every way in which backends answer that we know of, as golden files: see `tests/streams/recording.py`.

`UPDATE_STREAMS=1 pytest tests/core/stream/test_streams.py` writes them anew. Read what has
changed before you believe it.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backends.server import answer
from app.core import bounded_json
from app.core.size import pieces_of
from app.core.sse import decoder
from app.core.stream import answer as chunks
from app.core.stream import tool_calls
from tests.streams.recording import INDEX, NAMES, PLACE, index, load, play
from tests.support import laws

UPDATE = bool(os.environ.get("UPDATE_STREAMS"))
ONE_BY_ONE = 20_000  # bytes; a body that is longer comes in this many pieces


def golden(name: str) -> Path:
    return PLACE / f"{name}.events.jsonl"


@pytest.mark.parametrize("name", NAMES)
def test_recorded_stream_gives_its_golden_events(name: str) -> None:
    events, lines = asyncio.run(play(load(name)))
    if events:
        laws.check(events)
    if UPDATE:
        golden(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [json.loads(line) for line in golden(name).read_text(encoding="utf-8").splitlines()] == [
        json.loads(line) for line in lines
    ]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_stream_byte_by_byte_gives_the_same_events(name: str) -> None:
    recording = load(name)
    size = len(recording.body)
    _, cut = asyncio.run(play(recording, range(0, size, 1 + size // ONE_BY_ONE)))
    assert cut == asyncio.run(play(recording))[1]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event counts as large."""
    monkeypatch.setattr(answer, "TEXT_PIECE", -1)
    monkeypatch.setattr(decoder, "LARGE", 0)
    for limit in ("LARGE", "_SHORT"):
        monkeypatch.setattr(bounded_json, limit, 4)
    for module in (decoder, bounded_json):
        monkeypatch.setattr(module, "_PIECE", 16)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("large")
def test_recorded_stream_as_large_events_gives_the_same_events(name: str) -> None:
    _, lines = asyncio.run(play(load(name)))
    assert [json.loads(line) for line in golden(name).read_text(encoding="utf-8").splitlines()] == [
        json.loads(line) for line in lines
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("large")
def test_recorded_stream_with_large_texts_gives_the_same_response(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunks, tool_calls):
        monkeypatch.setattr(module, "pieces_of", lambda text, size=0: pieces_of(text, 16))
    events, lines = asyncio.run(play(load(name)))
    if events:
        laws.check(events)
    *_, last = [json.loads(line) for line in golden(name).read_text(encoding="utf-8").splitlines()]
    assert _without_number(json.loads(lines[-1])) == _without_number(last)


def _without_number(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "sequence_number"}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 6000), max_size=8))
def test_recorded_stream_of_any_cut_gives_the_same_events(name: str, places: list[int]) -> None:
    recording = load(name)
    assert asyncio.run(play(recording, places))[1] == asyncio.run(play(recording))[1]


def test_golden_files_have_recordings() -> None:
    golden_files = PLACE.glob("*/*.events.jsonl")
    assert sorted(f"{path.parent.name}/{path.name.removesuffix('.events.jsonl')}" for path in golden_files) == NAMES


def test_streams_index_lists_every_recording() -> None:
    if UPDATE:
        INDEX.write_text(index(), encoding="utf-8")
    assert INDEX.read_text(encoding="utf-8") == index()
