"""
Every way in which backends answer that we know of, as golden files: see `tests/streams/recording.py`.

`UPDATE_STREAMS=1 pytest tests/core/stream/test_streams.py` writes them anew. Read what has
changed before you believe it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
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
from app.core.types.request import Event
from tests.streams.recording import INDEX, NAMES, PLACE, Recording, index, load, play
from tests.support import laws

Uncut = Callable[[str], tuple[list[Event], list[str]]]
UPDATE = bool(os.environ.get("UPDATE_STREAMS"))
ONE_BY_ONE = 20_000  # bytes; a body that is longer comes in this many pieces


def golden(name: str) -> Path:
    return PLACE / f"{name}.events.jsonl"


def golden_documents(name: str) -> list[Any]:
    return [json.loads(line) for line in golden(name).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop: to make and to close one takes longer than to play most recordings."""
    with asyncio.Runner() as runner:
        yield runner


def played(runner: asyncio.Runner, recording: Recording, places: Iterable[int] = ()) -> tuple[list[Event], list[str]]:
    return runner.run(play(recording, places), context=contextvars.copy_context())


@pytest.fixture(scope="module")
def uncut(runner: asyncio.Runner) -> Uncut:
    """What a recording gives if it comes in one piece, by its name; played once."""
    return functools.cache(lambda name: played(runner, load(name)))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_stream_gives_its_golden_events(name: str, uncut: Uncut) -> None:
    events, lines = uncut(name)
    if events:
        laws.check(events)
    if UPDATE:
        golden(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert golden_documents(name) == [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", NAMES)
def test_recorded_stream_byte_by_byte_gives_the_same_events(name: str, runner: asyncio.Runner, uncut: Uncut) -> None:
    recording = load(name)
    size = len(recording.body)
    _, cut = played(runner, recording, range(0, size, 1 + size // ONE_BY_ONE))
    assert cut == uncut(name)[1]


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
def test_recorded_stream_as_large_events_gives_the_same_events(name: str, runner: asyncio.Runner) -> None:
    _, lines = played(runner, load(name))
    assert golden_documents(name) == [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("large")
def test_recorded_stream_with_large_texts_gives_the_same_response(
    name: str, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chunks, tool_calls):
        monkeypatch.setattr(module, "pieces_of", lambda text, size=0: pieces_of(text, 16))
    events, lines = played(runner, load(name))
    if events:
        laws.check(events)
    assert _without_number(json.loads(lines[-1])) == _without_number(golden_documents(name)[-1])


def _without_number(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "sequence_number"}


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES), places=st.lists(st.integers(0, 6000), max_size=8))
def test_recorded_stream_of_any_cut_gives_the_same_events(
    runner: asyncio.Runner, uncut: Uncut, name: str, places: list[int]
) -> None:
    assert played(runner, load(name), places)[1] == uncut(name)[1]


def test_golden_files_have_recordings() -> None:
    golden_files = PLACE.glob("*/*.events.jsonl")
    assert sorted(f"{path.parent.name}/{path.name.removesuffix('.events.jsonl')}" for path in golden_files) == NAMES


def test_streams_index_lists_every_recording() -> None:
    if UPDATE:
        INDEX.write_text(index(), encoding="utf-8")
    assert INDEX.read_text(encoding="utf-8") == index()
