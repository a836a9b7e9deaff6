"""Questions with a prompt that is too long, which are asked again about less of the conversation."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from types import TracebackType
from typing import Self

from app.backends import Backend, BackendExchange, BackendWrapper, ChunkOrRun, ExchangeWrapper, Question
from app.core.history.truncation import share_that_fits, truncated
from app.core.types.token_estimate import estimate_chat, estimate_json
from app.errors import BackendError

logger = logging.getLogger(__name__)

# Shares of a prompt to try when it is too long, after the share that the backend's error message implies.
_SHARES = (0.75, 0.5, 0.25, 0.0)

# The part of the fitting share that is used, because sizes are only estimated; summaries are longer than most answers.
MARGIN = 0.9
SUMMARY_MARGIN = 0.7


class Truncating(BackendWrapper):
    """
    A backend that is asked again about less of the conversation if the prompt was too long.

    `margin` is the part (0 to 1) of the fitting share that is used.
    """

    def __init__(self, backend: Backend, *, margin: float = MARGIN) -> None:
        super().__init__(backend)
        self._margin = margin

    def open(self, question: Question) -> BackendExchange:
        return _TruncatedExchange(self._backend, question, self._margin)


class _TruncatedExchange(ExchangeWrapper):
    def __init__(self, backend: Backend, question: Question, margin: float) -> None:
        super().__init__(backend.open(question))
        self._backend = backend
        self._question = question
        self._left = question
        self._margin = margin
        self._shares: Iterator[float] | None = None
        self._earlier: list[str] = []  # backends that answered before
        self._entered = False

    @property
    def warnings(self) -> Sequence[str] | None:
        warnings = super().warnings
        if not (left_out := len(self._question.items) - len(self._left.items)):
            return warnings
        warnings = self._backend.encode(self._left).warnings if warnings is None else warnings
        return [*warnings, f"The conversation is too long for the model, so its oldest {left_out} items were left out."]

    @property
    def answered_by(self) -> Sequence[str]:
        return [*self._earlier, *super().answered_by]

    async def __aenter__(self) -> Self:
        while True:
            try:
                await super().__aenter__()
            except BackendError as error:
                self._shorten(error)
            else:
                self._entered = True
                return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._entered = False
            await super().__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncGenerator[list[ChunkOrRun], None]:
        while True:
            started = False
            try:
                async for batch in super().__aiter__():
                    if batch or started:
                        started = True
                        yield batch
                return
            except BackendError as error:
                if started:
                    raise
                exchange = self._exchange
                self._shorten(error)
            # Some servers reject a prompt only in the first frame of a stream.
            self._entered = False
            await exchange.__aexit__(None, None, None)
            await self.__aenter__()

    def _shorten(self, error: BackendError) -> None:
        """Leave out more items; raises the error again if it is another one, or if nothing more can be left out."""
        if error.code != "context_length_exceeded":
            raise error
        if self._shares is None:
            self._shares = _shares(share_that_fits(error.message), self._margin)
        items = self._question.items
        total, removable = estimate_chat(self._backend.encode(self._question).body), estimate_json(items)
        for share in self._shares:
            # Tools and instructions stay, so the items have to shrink by more than the whole prompt.
            left = truncated(items, 1 - (1 - share) * total / max(1, removable))
            if len(left) < len(self._left.items):
                self._left = self._question.without_oldest(left)
                self._earlier += self._exchange.answered_by
                self._exchange = self._backend.open(self._left)
                logger.info("prompt too long; sent again without its oldest %d items", len(items) - len(left))
                return
        raise error


def _shares(fits: float | None, margin: float) -> Iterator[float]:
    first = 1.0 if fits is None else fits * margin
    if fits is not None:
        yield first
    yield from (share for share in _SHARES if share < first)
