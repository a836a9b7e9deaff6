"""Queries whose requests are observed as part of a round."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from app.backends import Backend, BackendExchange, BackendWrapper, ExchangeWrapper, Question
from app.observability.lifecycle import ObservedRound
from app.responses.generate import ModelQuery


def within_round(query: ModelQuery, tool_round: ObservedRound) -> ModelQuery:
    """Return a query whose request to the backend is observed as part of a round."""
    return replace(query, backend=_WithinRound(query.backend, tool_round))


class _WithinRound(BackendWrapper):
    """A backend whose requests are observed as part of a round."""

    def __init__(self, backend: Backend, tool_round: ObservedRound) -> None:
        super().__init__(backend)
        self._round = tool_round

    def open(self, question: Question) -> BackendExchange:
        return _ExchangeWithinRound(self._backend.open(question), self._round)


class _ExchangeWithinRound(ExchangeWrapper):
    def __init__(self, exchange: BackendExchange, tool_round: ObservedRound) -> None:
        super().__init__(exchange)
        self._round = tool_round

    async def __aenter__(self) -> Self:
        with self._round.inside():
            return await super().__aenter__()
