"""
One answer of a model, from the bytes of its body to events.

An `AnswerDecoder` turns the bytes into deltas, by the server's API, and an `Answer` turns the deltas into events. Both
are synchronous, without a clock or sockets: `app.backends.server.answer` receives the bytes, and
`app.responses.generate` delivers the events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from app.core.stream.delta_reader import DeltaReader
from app.core.stream.event_batch import EventBatch
from app.core.types import JSONObject
from app.core.types.deltas import Delta
from app.errors import BackendError

# Returns the error that a part of an answer reports, if any: `{"error": ...}`, in the forms of all servers.
ErrorIn: TypeAlias = Callable[[JSONObject], BackendError | None]


class AnswerDecoder(Protocol):
    """
    Decodes the body of one answer into deltas (`app.core.types.deltas`), fed in pieces of any size.

    It is synchronous and has no clock. What it finds besides deltas is in its attributes.
    """

    done: bool  # whether the server has marked the end of the answer
    finished: bool  # whether there was a finish reason, after which a connection that breaks does no harm
    resumed: bool  # whether there was output after a finish reason: some gateways send one with every delta
    empty: bool  # whether the body has ended without a delta
    failure: BackendError | None  # the error that the body reports, or that it is no answer; it follows the deltas
    warnings: list[str]  # a sentence for each thing that was left out of the answer

    @property
    def continuation(self) -> JSONObject | None:
        """The request that has the server go on, if the body ended with a pause; None if the answer is over."""
        ...

    def resume(self) -> None:
        """Prepare for the body of the answer to `continuation`."""
        ...

    def decode(self, data: bytes) -> list[Delta]:
        """Return the deltas that are complete with the next bytes."""
        ...

    def end(self) -> list[Delta]:
        """Return the remaining deltas, at the end of the body."""
        ...

    def cut(self) -> list[Delta]:
        """Return what was held back, if the body breaks off; an incomplete event is lost."""
        ...


Tap: TypeAlias = Callable[[Sequence[Delta]], None]  # is shown deltas


class Answer:
    """
    The answer to one query: deltas go in as they are received, and events come out.

    `taps` are shown the deltas before they are read, for observers.
    """

    over = False  # whether no more deltas are wanted

    def __init__(self, reader: DeltaReader) -> None:
        self.reader = reader
        self.begun = False  # whether there was a delta; until then another server may answer in place of this one
        self.taps: list[Tap] = []

    def receive(self, deltas: Sequence[Delta]) -> bool:
        """Take the next deltas; return whether more may follow at once."""
        if not self.begun:
            self.begun = True
            self.begin()
        for tap in self.taps:
            tap(deltas)
        reader, reads = self.reader, self.reader.reads
        for delta in deltas:  # not by `feed`: a call less for each read of a slow stream
            reads[type(delta)](reader, delta)
        return self.deliver()

    def events(self) -> EventBatch:
        """Return the events since the last call."""
        return self.reader.builder.take()

    def begin(self) -> None:
        """Prepare for the first deltas. To be overridden."""

    def deliver(self) -> bool:
        """
        Pass the events on that there are now; return whether more may follow at once.

        To be overridden: here they wait for `events`.
        """
        return True
