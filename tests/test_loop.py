"""What becomes of an answer that goes wrong in a way that nobody thought of."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from app.backends import ChatRequest
from app.core.chat_stream import ChunkReader
from app.core.schema import Event
from app.loop import respond
from tests.core import laws
from tests.core.build import builder, delta
from tests.scripted import Scripted

NOT_A_CHUNK = cast(Any, None)


async def ask(*script: Any, open_after: float | None = 1) -> list[Event]:
    made = builder()
    said: list[Event] = []
    request = ChatRequest({"messages": []})
    async for events in respond(made, ChunkReader(made), Scripted([*script]), request, open_after=open_after):
        said += events
    made.end()
    return [*said, *made.take()]


async def test_a_chunk_that_cannot_be_read_fails_the_response_and_keeps_what_there_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = await ask(delta(content="Hel"), NOT_A_CHUNK)
    laws.check(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert failed["output"][0]["content"][0]["text"] == "Hel"
    assert failed["error"]["message"] == "The backend's answer could not be read."
    assert [(record.levelno, record.exc_info is not None) for record in caplog.records] == [(logging.ERROR, True)]


async def test_where_it_is_the_first_chunk_the_response_has_failed_with_nothing_in_it() -> None:
    events = await ask(NOT_A_CHUNK, open_after=None)
    laws.check(events)
    assert (events[-1]["type"], events[-1]["response"]["output"]) == ("response.failed", [])
