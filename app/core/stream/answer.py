"""
Translate a model's answer: an API-specific `AnswerDecoder` turns bytes into deltas, and an `Answer` turns deltas into
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

# The error in part of an answer, in all servers' forms: `{"error": ...}`.
ErrorIn: TypeAlias = Callable[[JSONObject], BackendError | None]


class AnswerDecoder(Protocol):
    """Decodes an answer's body, fed in pieces; synchronous, without a clock."""

    ending: bool  # a finish reason, the end mark or an error was received
    done: bool  # the server marked the answer's end
    finished: bool  # received a finish reason; afterwards a broken connection is harmless
    resumed: bool  # output followed a finish reason, which some gateways send with every delta
    empty: bool  # the body ended without a delta
    failure: BackendError | None  # the reported error, or why the body is not an answer
    warnings: list[str]  # a sentence for each omitted part of the answer

    @property
    def continuation(self) -> JSONObject | None:
        """The request that continues a paused answer; None if the answer is over."""
        ...

    def resume(self) -> None: ...

    def decode(self, data: bytes) -> list[Delta]: ...

    def end(self) -> list[Delta]: ...

    def cut(self) -> list[Delta]:
        """Held deltas when the connection breaks; an incomplete event is lost."""
        ...


Tap: TypeAlias = Callable[[Sequence[Delta]], None]


class Answer:
    """Turns a model query's deltas into events; `taps` observe the deltas first."""

    over = False  # further deltas are unwanted

    def __init__(self, reader: DeltaReader) -> None:
        self.reader = reader
        self._reads = reader.reads  # Python 3.11 is slow to find class attributes
        self.begun = False  # received a delta; before that, another server can answer instead
        self.taps: list[Tap] = []

    def receive(self, deltas: Sequence[Delta]) -> bool:
        if not self.begun:
            self.begun = True
            self.begin()
        for tap in self.taps:
            tap(deltas)
        reader, reads = self.reader, self._reads
        for delta in deltas:  # not `feed`, to save a call per read
            reads[type(delta)](reader, delta)
        return self.deliver()

    def events(self) -> EventBatch:
        return self.reader.builder.pop_events()

    def begin(self) -> None:
        """For subclasses; called before the first deltas."""

    def deliver(self) -> bool:
        """Whether more deltas can follow at once. By default, events wait for `events`."""
        return True
