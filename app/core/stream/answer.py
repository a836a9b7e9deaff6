"""
Translate a model's answer from body bytes to events.

An API-specific `AnswerDecoder` turns bytes into deltas, and an `Answer` turns deltas into events. Both are synchronous,
without clock or sockets: `app.backends.server.answer` receives the bytes, and `app.responses.generate` delivers the
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_batch import EventBatch
from app.core.types import JSONObject
from app.core.types.deltas import Delta
from app.errors import BackendError

# Returns the error reported in part of an answer, if any: `{"error": ...}`, in all servers' forms.
ErrorIn: TypeAlias = Callable[[JSONObject], BackendError | None]


class AnswerDecoder(Protocol):
    """
    Decodes an answer's body, fed in pieces, into deltas (`app.core.types.deltas`).

    It is synchronous and has no clock. Its attributes hold all results except the deltas.
    """

    ending: bool  # whether a finish reason, the end mark or an error was received: see the next attributes
    done: bool  # whether the server has marked the end of the answer
    finished: bool  # whether a finish reason was received; afterwards a broken connection is harmless
    resumed: bool  # whether output followed a finish reason: some gateways send a finish reason with every delta
    empty: bool  # whether the body ended without a delta
    failure: BackendError | None  # the reported error, or why the body is not an answer; it follows the deltas
    warnings: list[str]  # a sentence for each omitted part of the answer

    @property
    def continuation(self) -> JSONObject | None:
        """The request that continues a paused answer; None if the answer is over."""
        ...

    def resume(self) -> None:
        """Prepare for the response to `continuation`."""
        ...

    def decode(self, data: bytes) -> list[Delta]:
        """Return the deltas completed by these bytes."""
        ...

    def end(self) -> list[Delta]:
        """Return the remaining deltas at the end of the body."""
        ...

    def cut(self) -> list[Delta]:
        """Return the held deltas when the connection breaks; an incomplete event is lost."""
        ...


Tap: TypeAlias = Callable[[Sequence[Delta]], None]  # observes deltas


class Answer:
    """
    Turns the deltas of one model query into events.

    `taps` observe the deltas before they are read.
    """

    over = False  # whether further deltas are unwanted

    def __init__(self, reader: DeltaReader) -> None:
        self.reader = reader
        self._reads = reader.reads  # looked up here, since Python 3.11 is slow to find class attributes
        self.begun = False  # whether a delta was received; before that, another server can answer instead
        self.taps: list[Tap] = []

    def receive(self, deltas: Sequence[Delta]) -> bool:
        """Process the next deltas; return whether more can follow at once."""
        if not self.begun:
            self.begun = True
            self.begin()
        for tap in self.taps:
            tap(deltas)
        reader, reads = self.reader, self._reads
        for delta in deltas:  # not `feed`, to save a call per read of a slow stream
            reads[type(delta)](reader, delta)
        return self.deliver()

    def events(self) -> EventBatch:
        return self.reader.builder.pop_events()

    def begin(self) -> None:
        """Prepare for the first deltas. Override as needed."""

    def deliver(self) -> bool:
        """
        Deliver the new events; return whether more deltas can follow at once.

        Override as needed: by default the events wait for `events`.
        """
        return True
