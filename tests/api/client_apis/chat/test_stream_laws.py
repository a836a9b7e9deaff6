"""Law: the accumulated chunks of a chat completion equal the JSON answer."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from openai._models import construct_type_unchecked
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from app.api.client_apis.chat.writer import ChatWriter
from app.core.types.deltas import DONE
from app.core.types.request import Event
from tests.core.stream.test_event_builder import CHUNKS
from tests.streams.recording import NAMES, load, play
from tests.support.build import answer

ENDED = ("response.completed", "response.incomplete")


@pytest.fixture(scope="module")
def recorded() -> Iterator[Callable[[str], list[Event]]]:
    """Yield a function that returns a recording's events."""
    with asyncio.Runner() as runner:
        yield functools.cache(lambda name: runner.run(play(load(name), ()))[0])


def check(events: list[Event]) -> None:
    """Check the stream and the JSON answer for events with a completed or incomplete response."""
    writer = ChatWriter(include_usage=True)
    response = events[-1]["response"]
    body = b"".join(writer.event(_by_its_spec_name(event)) for event in events[:-1]) + writer.end(response)
    *frames, last, rest = body.decode().split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    state: Any = ChatCompletionStreamState()
    for frame in frames:
        data = json.loads(frame.removeprefix("data: "))
        # Like the SDK: its chunk type lacks custom tool calls.
        state.handle_chunk(construct_type_unchecked(value=data, type_=ChatCompletionChunk))
    document = writer.document(response)
    ChatCompletion.model_validate(document)
    assert _comparable(state.current_completion_snapshot.to_dict()) == _comparable(document)


def _by_its_spec_name(event: Event) -> Any:
    return {**event, "type": event["type"].replace(".reasoning_text.", ".reasoning.")}


def _comparable(completion: dict[str, Any]) -> dict[str, Any]:
    """Return a completion without the indexes of deltas, and without empty fields."""
    (choice,) = completion["choices"]
    message = {name: value for name, value in choice["message"].items() if value and name != "parsed"}
    for name in ("tool_calls", "images"):
        if name in message:
            message[name] = [_without_index(entry) for entry in message[name]]
    logprobs = (choice.get("logprobs") or {}).get("content") or None
    return {
        **{name: completion[name] for name in ("id", "created", "model", "usage")},
        "message": message,
        "logprobs": logprobs,
        "finish_reason": choice["finish_reason"],
    }


def _without_index(entry: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in entry.items() if name != "index" and value is not None}
    if function := fields.get("function"):
        fields["function"] = {name: value for name, value in function.items() if name != "parsed_arguments"}
    return fields


@pytest.mark.parametrize("name", NAMES)
def test_recorded_answer_is_the_same_streamed_and_whole(recorded: Callable[[str], list[Event]], name: str) -> None:
    events = recorded(name)
    if events and events[-1]["type"] in ENDED:
        check(events)


@settings(max_examples=150, deadline=None)
@given(chunks=CHUNKS)
def test_random_answer_is_the_same_streamed_and_whole(chunks: list[Any]) -> None:
    events = answer([*chunks, DONE])
    if events[-1]["type"] in ENDED:
        check(events)
