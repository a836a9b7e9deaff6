"""Laws for Messages streams: they are well-formed, and accumulate to the JSON answer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from app.api.client_apis.messages.writer import MessagesWriter
from app.core.types.deltas import DONE
from app.core.types.request import Event
from tests.core.stream.test_event_builder import CHUNKS
from tests.streams.recording import NAMES, load, play
from tests.support.build import answer
from tests.support.message_stream import accumulated, frames

# Types from Anthropic's SDK, which does not check them itself.
EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
MESSAGE: TypeAdapter[Any] = TypeAdapter(BetaMessage)
ENDED = ("response.completed", "response.incomplete")


@pytest.fixture(scope="module")
def recorded() -> Iterator[Callable[[str], list[Event]]]:
    """Yield a function that returns a recording's events."""
    with asyncio.Runner() as runner:
        yield functools.cache(lambda name: runner.run(play(load(name), ()))[0])


def check(events: list[Event], *, shows_thinking: bool) -> None:
    """Check the stream and the JSON answer for events with a completed or incomplete response."""
    writer = MessagesWriter(shows_thinking=shows_thinking)
    response = events[-1]["response"]
    body = b"".join(writer.event(_by_its_spec_name(event)) for event in events[:-1]) + writer.end(response)
    document = writer.document(response)
    assert accumulated(body) == document
    for event in frames(body):
        EVENT.validate_python(event)
    MESSAGE.validate_python(document)


def _by_its_spec_name(event: Event) -> Any:
    return {**event, "type": event["type"].replace(".reasoning_text.", ".reasoning.")}


@pytest.mark.parametrize("shows_thinking", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_recorded_answer_is_the_same_streamed_and_whole(
    recorded: Callable[[str], list[Event]], name: str, shows_thinking: bool
) -> None:
    events = recorded(name)
    if events and events[-1]["type"] in ENDED:
        check(events, shows_thinking=shows_thinking)


@settings(max_examples=150, deadline=None)
@given(chunks=CHUNKS, shows_thinking=st.booleans())
def test_random_answer_is_the_same_streamed_and_whole(chunks: list[Any], shows_thinking: bool) -> None:
    events = answer([*chunks, DONE])
    if events[-1]["type"] in ENDED:
        check(events, shows_thinking=shows_thinking)
