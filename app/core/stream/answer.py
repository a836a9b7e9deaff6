"""
One answer of a model, from the bytes of its body to events.

Both halves have no clock and no sockets, and wait for nothing: an `AnswerDecoder` makes chunks of the bytes that it is
given, as the API of the server has them, and an `Answer` makes events of the chunks. What waits for something is around
them: `app.backends.server.answer` receives the bytes, and `app.responses.generate` delivers the events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_batch import EventBatch
from app.core.types import JSONObject
from app.core.types.chunk import ChunkOrRun, RawChunk
from app.errors import BackendError

# Returns the error that a part of an answer reports, if any: `{"error": ...}`, in the forms of all servers.
ErrorIn: TypeAlias = Callable[[RawChunk], BackendError | None]


class AnswerDecoder(Protocol):
    """
    Decodes the body of one answer into normal chunks (`app.core.types.chunk`), fed in pieces of any size.

    It is synchronous and has no clock. What it finds besides chunks is in its attributes.
    """

    done: bool  # whether the server has marked the end of the answer
    finished: bool  # whether there was a finish reason, after which a connection that breaks does no harm
    resumed: bool  # whether there was output after a finish reason: some gateways send one with every chunk
    empty: bool  # whether the body has ended without a chunk
    failure: BackendError | None  # the error that the body reports, or that it is no answer; it follows the chunks
    warnings: list[str]  # a sentence for each thing that was left out of the answer

    @property
    def continuation(self) -> JSONObject | None:
        """The request that has the server go on, if the body ended with a pause; None if the answer is over."""
        ...

    def resume(self) -> None:
        """Prepare for the body of the answer to `continuation`."""
        ...

    def decode(self, data: bytes) -> list[ChunkOrRun]:
        """Return the chunks that are complete with the next bytes."""
        ...

    def end(self) -> list[ChunkOrRun]:
        """Return the remaining chunks, at the end of the body."""
        ...

    def cut(self) -> list[ChunkOrRun]:
        """Return what was held back, if the body breaks off; an incomplete event is lost."""
        ...


Tap: TypeAlias = Callable[[Sequence[ChunkOrRun]], None]  # is shown chunks


class Answer:
    """
    The answer to one query: chunks go in as they are received, and events come out.

    `taps` are shown the chunks before they are read, for observers.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self.reader = reader
        self.begun = False  # whether there was a chunk; until then another server may answer in place of this one
        self.taps: list[Tap] = []

    def receive(self, chunks: Sequence[ChunkOrRun]) -> bool:
        """Take the next chunks; return whether more may follow at once."""
        if not self.begun:
            self.begun = True
            self.begin()
        for tap in self.taps:
            tap(chunks)
        reader = self.reader
        for chunk in chunks:
            reader.feed(chunk)
        return self.deliver()

    def events(self) -> EventBatch:
        """Return the events since the last call."""
        return self.reader.builder.take()

    def begin(self) -> None:
        """Prepare for the first chunks. To be overridden."""

    def deliver(self) -> bool:
        """
        Pass the events on that there are now; return whether more may follow at once.

        To be overridden: here they wait for `events`.
        """
        return True
