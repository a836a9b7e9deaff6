"""What the decoders of all APIs of model servers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from app.backends.apis.body_decoder import NO_ANSWER, BodyDecoder
from app.backends.server.errors.classification import failure
from app.core.stream.answer import ErrorIn
from app.core.types import JSONObject
from app.core.types.chunk import ChunkOrRun, RawOrRun
from app.errors import BackendError


class APIDecoder(ABC):
    """Decodes the bytes of one answer of an API into chunks, up to its end or an error: see `AnswerDecoder`."""

    def __init__(self, body: BodyDecoder, error_in: ErrorIn) -> None:
        self.done = False
        self.finished = False
        self.resumed = False
        self.empty = False
        self.failure: BackendError | None = None
        self.warnings: list[str] = []
        self._body = body
        self._error_in = error_in

    @property
    def continuation(self) -> JSONObject | None:
        """None: no answer is paused, unless a subclass knows of it."""
        return None

    def resume(self) -> None:
        """Prepare for the body of the answer to `continuation`, for subclasses that have one."""
        self.done = False

    def decode(self, data: bytes) -> list[ChunkOrRun]:
        try:
            return self._chunks(self._body.decode(data))
        except BackendError as error:
            self.failure = error
            return self.cut()

    def end(self) -> list[ChunkOrRun]:
        try:
            chunks = self._chunks(self._body.end())
        except BackendError as error:
            self.failure = error
            return self.cut()
        if not (self.failure or self._has_begun()):
            self.empty, self.failure = True, failure("failure", NO_ANSWER)
        return chunks

    def cut(self) -> list[ChunkOrRun]:
        """Return what was held back, if the body breaks off, which is nothing; an incomplete event is lost."""
        return []

    @abstractmethod
    def _chunks(self, events: list[RawOrRun]) -> list[ChunkOrRun]:
        """Return the chunks of events, up to an error or the end of the answer."""

    @abstractmethod
    def _has_begun(self) -> bool:
        """Return whether there was an event of the answer."""
