from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from app.backends.apis.body_decoder import NO_ANSWER, BodyDecoder
from app.backends.apis.filters import Filter
from app.backends.server.errors.classification import failure
from app.core.sse.repeats import PatternMatcher, ServerEvent
from app.core.types import JSONObject
from app.core.types.deltas import DONE, Delta
from app.errors import BackendError

# The error in part of an answer, in all servers' forms: `{"error": ...}`.
ErrorIn: TypeAlias = Callable[[JSONObject], BackendError | None]


class APIDecoder(ABC):
    """Decodes an answer's body, fed in pieces, into deltas; synchronous, without a clock."""

    def __init__(
        self,
        body: BodyDecoder,
        error_in: ErrorIn,
        filters: Sequence[Filter] = (),
        repeats: PatternMatcher | None = None,
    ) -> None:
        """`repeats`, shared with `body`, decodes reads of a single event without parsing all of it."""
        self.ending = False  # a finish reason, the end mark or an error was received
        self.done = False  # the server marked the answer's end
        self.finished = False  # received a finish reason; afterwards a broken connection is harmless
        self.resumed = False  # output followed a finish reason, which some gateways send with every delta
        self.empty = False  # the body ended without a delta
        self.failure: BackendError | None = None  # the reported error, or why the body is not an answer
        self.warnings: list[str] = []  # a sentence for each omitted part of the answer
        self._body = body
        self._error_in = error_in
        self._filters = filters
        self._repeats = repeats
        self._begun = False

    @property
    def continuation(self) -> JSONObject | None:
        """The request that continues a paused answer; None if the answer is over."""
        return None

    def resume(self) -> None:
        self.ending = self.done = False

    def decode(self, data: bytes) -> list[Delta]:
        if self._repeats and (delta := self._repeats.match_frame(data)):  # most reads in a slow stream
            return self._repeated(delta) if self._filters or self.ending else [delta]
        try:
            return self._deltas(self._body.decode(data))
        except BackendError as error:
            self.failure = error
            return self.cut()
        finally:
            self.ending = self.finished or self.done or self.failure is not None

    def end(self) -> list[Delta]:
        try:
            deltas = self._deltas(self._body.end())
        except BackendError as error:
            self.failure = error
            return self.cut()
        if not (self.failure or self._begun):
            self.empty, self.failure = True, failure("failure", NO_ANSWER)
        return deltas if self.done or self.failure else [*deltas, *self.cut()]

    def cut(self) -> list[Delta]:
        """Held deltas when the connection breaks; an incomplete event is lost."""
        return self._filtered([], ended=True)

    def _deltas(self, events: list[ServerEvent]) -> list[Delta]:
        if not events:
            return []
        deltas = self._read(events)
        ended = self.done and self.continuation is None
        if self._filters:
            deltas = self._filtered(deltas, ended=ended or self.failure is not None)
        return [*deltas, DONE] if ended else deltas

    def _repeated(self, delta: Delta) -> list[Delta]:
        self.resumed = self.resumed or self.finished
        return self._filtered([delta], ended=False)

    def _filtered(self, deltas: list[Delta], *, ended: bool) -> list[Delta]:
        for each in self._filters:
            deltas = each.feed(deltas)
            if ended:
                deltas = [*deltas, *each.end()]
        return deltas

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    @abstractmethod
    def _read(self, events: list[ServerEvent]) -> list[Delta]: ...
