"""
The prompt of a request, which is shortened when a backend reports that it is too long.

    prompt = Prompt(items, profile, translate)
    prompt.body     # the Chat Completions request
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from app.backends import Backend, BackendWrapper, ChatRequest, Chunk
from app.core.history.truncation import share_that_fits, truncated
from app.core.profile import Profile
from app.core.request import ChatTranslation
from app.core.types.request import Item
from app.core.types.token_estimate import estimate_chat, estimate_json
from app.errors import BackendError

logger = logging.getLogger(__name__)

# Shares of a prompt to try when it is too long, after the share that the backend's error message implies.
_SHARES = (0.75, 0.5, 0.25, 0.0)

# The part of the fitting share that is used, because sizes are only estimated; summaries are longer than most answers.
MARGIN = 0.9
SUMMARY_MARGIN = 0.7


class Prompt:
    """
    The prompt for a conversation: all of it at first, and less with each call of `shorten`.

    `translate` translates items to a Chat Completions request for a server with the given profile. `margin` is the part
    (0 to 1) of the fitting share that is used.
    """

    def __init__(
        self,
        items: Sequence[Item],
        profile: Profile,
        translate: Callable[[Sequence[Item], Profile], ChatTranslation],
        *,
        margin: float = MARGIN,
    ) -> None:
        self.profile = profile
        self._margin = margin
        self.chat = translate(items, profile)
        self.body = self.chat.body
        self._items = items
        self._left = items
        self._translate = translate
        self._shares: Iterator[float] | None = None

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed, one sentence each."""
        if not (left_out := len(self._items) - len(self._left)):
            return [*self.chat.warnings]
        warning = f"The conversation is too long for the model, so its oldest {left_out} items were left out."
        return [*self.chat.warnings, warning]

    def translate_for(self, profile: Profile) -> dict[str, Any]:
        """Return the request for a server with another profile; raises `InvalidRequest` if it cannot be translated."""
        return self._translate(self._left, profile).body

    def shorten(self, error: BackendError) -> None:
        """Leave out more items; raises the error again if it is another one, or if nothing more can be left out."""
        if error.code != "context_length_exceeded":
            raise error
        if self._shares is None:
            self._shares = _shares(share_that_fits(error.message), self._margin)
        total, removable = estimate_chat(self.chat.body), estimate_json(self._items)
        for share in self._shares:
            # Tools and instructions stay, so the items have to shrink by more than the whole prompt.
            left = truncated(self._items, 1 - (1 - share) * total / max(1, removable))
            if len(left) < len(self._left):
                self._left = left
                self.body = self._translate(left, self.profile).body
                logger.info("prompt too long; sent again without its oldest %d items", len(self._items) - len(left))
                return
        raise error


def _shares(fits: float | None, margin: float) -> Iterator[float]:
    first = 1.0 if fits is None else fits * margin
    if fits is not None:
        yield first
    yield from (share for share in _SHARES if share < first)


class Truncating(BackendWrapper):
    """A backend that repeats a request with a shorter prompt if the prompt was too long."""

    def __init__(self, backend: Backend, prompt: Prompt) -> None:
        super().__init__(backend)
        self._prompt = prompt

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Chunk]]]:
        """Return the stream of chunks: see `Backend.stream`."""
        async with AsyncExitStack() as stack:
            chunks = await self._open(stack, request)
            async with aclosing(self._chunks(stack, chunks, request)) as stream:
                yield stream

    async def _open(self, stack: AsyncExitStack, request: ChatRequest) -> AsyncIterator[list[Chunk]]:
        while True:
            try:
                shortened = dataclasses.replace(request, body=self._prompt.body)
                return await stack.enter_async_context(self._backend.stream(shortened))
            except BackendError as error:
                self._prompt.shorten(error)

    async def _chunks(
        self, stack: AsyncExitStack, chunks: AsyncIterator[list[Chunk]], request: ChatRequest
    ) -> AsyncGenerator[list[Chunk], None]:
        while True:
            started = False
            try:
                async for batch in chunks:
                    if batch or started:
                        started = True
                        yield batch
                return
            except BackendError as error:
                if started:
                    raise
                self._prompt.shorten(error)
            # Some servers reject a prompt only in the first frame of a stream.
            await stack.aclose()
            chunks = await self._open(stack, request)
