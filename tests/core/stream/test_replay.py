"""The events of a finished response, emitted anew, hold the laws of any stream and say the same."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from app.core.stream.event_types import CONTENT_REASONING, OPENAI_CONTENT_REASONING
from app.core.stream.replay import ReplayedBuilder
from tests.streams.recording import NAMES, load, play
from tests.support import laws


@pytest.mark.parametrize("name", NAMES)
def test_replay_of_a_recorded_answer_gives_it(name: str) -> None:
    events, _ = asyncio.run(play(load(name)))
    if not events:
        return  # a refusal
    final: Any = events[-1]["response"]
    stored = copy.deepcopy(final)
    rows = OPENAI_CONTENT_REASONING if any("reasoning_text" in event["type"] for event in events) else CONTENT_REASONING
    replayed = [*ReplayedBuilder(final, reasoning=rows).replay()]
    laws.check(replayed)
    assert replayed[-1]["response"] == stored == final
    assert replayed[-1]["type"] == events[-1]["type"]
    items = [event["item"] for event in replayed if event["type"] == "response.output_item.done"]
    assert items == final["output"]
