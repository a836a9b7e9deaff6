"""Answers with unexpected failures."""

from __future__ import annotations

import logging
import math
from typing import Any, cast

import pytest

from app.core.stream.delta_reader import DeltaReader
from app.core.types.deltas import DONE
from app.core.types.request import Event
from app.responses.delivery import NO_DELIVERY
from app.responses.generate import Deadline, respond
from tests.support import laws
from tests.support.build import builder, delta, finish, querying
from tests.support.deliveries import RecordingWriter
from tests.support.logs import records_of
from tests.support.scripted import Scripted

NOT_A_CHUNK = cast(Any, None)


async def ask(
    *script: Any, open_after: float | None = 1, reading: type[DeltaReader] = DeltaReader, seconds: float = 0
) -> list[Event]:
    made = builder()
    writer = RecordingWriter()
    query = querying(reading(made), Scripted([*script]))
    deadline = Deadline(seconds) if seconds else None
    await respond(query, writer, open_after=open_after, deadline=deadline)
    made.end()
    return [*writer.events, *made.pop_events().events()]


async def test_chunk_that_cannot_be_read_fails_the_response_with_the_output_so_far(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = await ask(delta(content="Hel"), NOT_A_CHUNK)
    laws.check(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert failed["output"][0]["content"][0]["text"] == "Hel"
    assert failed["error"]["message"] == "The backend's answer could not be read."
    assert [(record.levelno, record.exc_info is not None) for record in records_of(caplog, "app.responses")] == [
        (logging.ERROR, True)
    ]


async def test_first_chunk_that_cannot_be_read_fails_the_response_without_output() -> None:
    events = await ask(NOT_A_CHUNK, open_after=None)
    laws.check(events)
    assert (events[-1]["type"], events[-1]["response"]["output"]) == ("response.failed", [])


class Unending(DeltaReader):
    """A reader that fails at an answer's end, and for its usage."""

    @property
    def ended(self) -> str | None:
        raise ZeroDivisionError

    @property
    def usage(self) -> dict[str, Any] | None:
        raise ZeroDivisionError

    @usage.setter
    def usage(self, usage: dict[str, Any] | None) -> None:
        pass


@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_answer_that_cannot_be_completed_ends(caplog: pytest.LogCaptureFixture, seconds: float) -> None:
    events = await ask(delta(content="Hel"), *([10.0] if seconds else []), reading=Unending, seconds=seconds)
    laws.check(events)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert (failed["output"][0]["content"][0]["text"], failed["usage"]["output_tokens"] > 0) == ("Hel", True)
    assert records_of(caplog, "app.responses")[-1].getMessage() == "backend response completion failed"


@pytest.mark.parametrize("count", [-math.inf, math.inf, math.nan])
async def test_token_count_that_fails_takes_nothing_from_the_answer(count: float) -> None:
    events = await ask(delta(content="Hello"), {**finish("stop"), "usage": {"prompt_tokens": count}})
    laws.check(events)
    assert events[-1]["type"] == "response.completed"


async def test_failures_are_exceptions_of_their_own() -> None:
    """A raised exception keeps its frames, with the text in their variables."""
    failures = []
    for _ in range(2):
        made, cut = builder(), Scripted([delta(content="Hel"), DONE])
        reader = DeltaReader(made, finish_required=True)
        await respond(querying(reader, cut), NO_DELIVERY, open_after=None)
        failures.append(made.failure)
    assert failures[0] is not None
    assert failures[0] is not failures[1]
