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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.recording import NAMES, PLACE, load, play
from tests.support import laws

UPDATE = bool(os.environ.get("UPDATE_STREAMS"))
ONE_BY_ONE = 20_000  # bytes; a body that is longer comes in this many pieces


def golden(name: str) -> Path:
    return PLACE / f"{name}.events.jsonl"


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_becomes_the_events_that_it_should(name: str) -> None:
    events, lines = asyncio.run(play(load(name)))
    if events:
        laws.check(events)
    if UPDATE:
        golden(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert [json.loads(line) for line in golden(name).read_text(encoding="utf-8").splitlines()] == [
        json.loads(line) for line in lines
    ]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_that_come_one_by_one_make_no_difference(name: str) -> None:
    recording = load(name)
    size = len(recording.body)
    _, cut = asyncio.run(play(recording, range(0, size, 1 + size // ONE_BY_ONE)))
    assert cut == asyncio.run(play(recording))[1]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 6000), max_size=8))
def test_how_the_bytes_are_cut_makes_no_difference(name: str, places: list[int]) -> None:
    recording = load(name)
    assert asyncio.run(play(recording, places))[1] == asyncio.run(play(recording))[1]


def test_every_golden_file_has_its_recording() -> None:
    assert sorted(path.name.removesuffix(".events.jsonl") for path in PLACE.glob("*.events.jsonl")) == NAMES
