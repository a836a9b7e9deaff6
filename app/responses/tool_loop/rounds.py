"""Questions whose requests are observed as part of a round."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from app.backends import Backend, BackendWrapper, ChatRequest, Chunk
from app.observability.lifecycle import ObservedRound
from app.responses.generate import Question


def within_round(question: Question, round: ObservedRound) -> Question:
    """Return a question whose request to the backend is observed as part of a round."""
    return replace(question, backend=_WithinRound(question.backend, round))


class _WithinRound(BackendWrapper):
    """A backend whose requests are observed as part of a round."""

    def __init__(self, backend: Backend, round: ObservedRound) -> None:
        super().__init__(backend)
        self._round = round

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Chunk]]]:
        """Return the stream of chunks: see `Backend.stream`."""
        async with AsyncExitStack() as stack:
            with self._round.inside():
                chunks = await stack.enter_async_context(self._backend.stream(request))
            yield chunks
