"""
OpenAI's libraries know every event, and accumulate events to the final response.

All recorded backend answers (`tests/streams`) are played in the libraries' dialects.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.backends.profiles import load_profile
from app.backends.server.client import ModelServer
from app.core.dialects import DIALECTS
from app.core.stream.event_batch import DONE_FRAME as END
from app.core.stream.event_batch import encode_sse as encoded
from app.core.types.request import CreateResponse, Event
from app.errors import APIError
from app.responses import Caller
from app.stores.memory import MemoryStore
from tests.clients.clients import CLIENTS, Driver
from tests.streams.recording import CIPHER, NAMES, Recording, Wire, load
from tests.support.build import builder, responses_on
from tests.support.deliveries import RecordingWriter
from tests.support.upstream import DONE, Upstream, call, finish, reply, sse, usage

OPENAI = ["openai-python", "openai-python-2", "openai-node", "openai-node-6"]

EVENTS = {
    *(f"response.{name}" for name in ("created", "queued", "in_progress", "completed", "incomplete", "failed")),
    *("response.output_item.added", "response.output_item.done"),
    *("response.content_part.added", "response.content_part.done"),
    *("response.output_text.delta", "response.output_text.done", "response.output_text.annotation.added"),
    *("response.refusal.delta", "response.refusal.done"),
    *("response.reasoning_text.delta", "response.reasoning_text.done"),
    *("response.reasoning_summary_part.added", "response.reasoning_summary_part.done"),
    *("response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"),
    *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
    *("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"),
    *(f"response.web_search_call.{name}" for name in ("in_progress", "searching", "completed")),
    *(f"response.image_generation_call.{name}" for name in ("in_progress", "partial_image", "completed")),
    "error",
}


async def events_of(recording: Recording, dialect: str) -> list[Event]:
    """Return a client's events for an answer; [] if it is refused."""
    options = recording.options
    profile = load_profile(options.get("profile", "default")).override(options.get("overrides", {}))
    wire = Wire(recording, [recording.body])
    backend = ModelServer("http://backend/v1", profile=profile, http=wire, retries=0)
    tools = [{"type": "function", "name": name} for name in options.get("tools", ())]
    fields = {"model": "m", "input": "Hi", "store": False, "tools": tools, **options.get("request", {})}
    responses = responses_on(backend, MemoryStore(ttl=60, max_bytes=1), cipher=CIPHER)
    try:
        run = await responses.create(CreateResponse.model_validate(fields), Caller(dialect=DIALECTS[dialect]))
        writer = RecordingWriter()
        await run.generate(writer)
        return writer.events
    except APIError:
        return []


def body(steps: list[Any]) -> bytes:
    """The upstream's steps for a recording."""
    pieces = (step for step in steps[1:] if isinstance(step, bytes))
    return b"".join(piece.partition(b"\r\n")[2].removesuffix(b"\r\n") for piece in pieces)


def queued() -> list[Event]:
    """A background response."""
    made = builder(CreateResponse(model="m", input="hi", background=True))
    made.mark_queued()
    made.start()
    made.text("Hello.")
    made.complete()
    made.end()
    return made.pop_events().events()


async def streams() -> AsyncIterator[list[Event]]:
    yield queued()
    patch = [call(id="call_1", name="patch"), call(arguments='{"input": "a'), call(arguments='\\nb"}')]
    custom = {
        "request": {"tools": [{"type": "custom", "name": "patch"}, {"type": "tool_search", "execution": "client"}]}
    }
    yield await events_of(Recording(custom, body(sse(*patch, finish("tool_calls"), usage(), DONE))), "openai")
    search = [call(id="call_1", name="tool_search"), call(arguments='{"query": "add"}')]
    yield await events_of(Recording(custom, body(sse(*search, finish("tool_calls"), usage(), DONE))), "openai")
    for name in NAMES:
        recording = load(name)
        for dialect in ("openai", "openai-both") if b"reasoning" in recording.body else ("openai",):
            if events := await events_of(recording, dialect):
                yield events


def _is_of_an_interrupted_search(event: Event) -> bool:
    """Return whether an event has a status unknown to version 2's types."""
    item = event.get("item", {})
    return item.get("type") == "web_search_call" and item.get("status") == "incomplete"


@pytest.mark.parametrize("name", OPENAI)
async def test_client_knows_every_event_and_joins_them(name: str, upstream: Upstream, tmp_path: Path) -> None:
    streamed = [events async for events in streams()]
    assert {event["type"] for events in streamed for event in events} == EVENTS
    upstream.native = True  # it is asked as Antiphon is
    if name == "openai-python-2":
        streamed = [events for events in streamed if not any(map(_is_of_an_interrupted_search, events))]
    for _ in ("one by one", "put together"):
        for events in streamed:
            upstream.say(reply(encoded(events) + END, "text/event-stream"))

    driver = Driver(CLIENTS[name], upstream.url, tmp_path)
    shown = await driver.shows("events", COUNT=str(len(streamed)))

    assert shown["unknown"] == []
    for events, counted, whole in zip(streamed, shown["counts"], shown["wholes"], strict=True):
        last = events[-1]["response"]
        complaint = next((event["message"] for event in events if event["type"] == "error"), None)
        assert counted == (complaint or len(events))
        assert whole == (complaint or json.loads(json.dumps(last["output"])))
