"""
The prompt of a request, and the same with less of its conversation where a backend says that it is too long.

    prompt = Prompt(items, profile, translate)
    prompt.body     # of the Chat Completions request
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

# What is tried when a prompt is too long, as shares of it, beside what the backend's own numbers say.
_SHARES = (0.75, 0.5, 0.25, 0.0)

# What is taken of the share that should fit, for how large each part of a prompt is was only guessed; a summary needs
# more room for itself than many an answer.
MARGIN = 0.9
SUMMARY_MARGIN = 0.7


class Prompt:
    """
    A conversation as a backend is asked with it: the whole of it, and less each time the backend says it is too long.

    `translate` makes the request of a conversation, for a server of some profile; `margin` is what is taken of the room
    that there should be.
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
        """Say what was left out or changed, a sentence each."""
        if not (left_out := len(self._items) - len(self._left)):
            return [*self.chat.warnings]
        said = f"The conversation is too long for the model, so its oldest {left_out} items were left out."
        return [*self.chat.warnings, said]

    def translate_for(self, profile: Profile) -> dict[str, Any]:
        """Return what is asked for a server of another profile; raises `InvalidRequest` if it cannot be asked."""
        return self._translate(self._left, profile).body

    def shorten(self, error: BackendError) -> None:
        """Leave out more; raises the error if it is about something else, or if nothing more can be left out."""
        if error.code != "context_length_exceeded":
            raise error
        if self._shares is None:
            self._shares = _shares(share_that_fits(error.message), self._margin)
        whole, said = estimate_chat(self.chat.body), estimate_json(self._items)
        for share in self._shares:
            # Tools and instructions stay, so that what is to go has to go from the rest.
            left = truncated(self._items, 1 - (1 - share) * whole / max(1, said))
            if len(left) < len(self._left):
                self._left = left
                self.body = self._translate(left, self.profile).body
                logger.info("prompt too long; asking again without its oldest %d items", len(self._items) - len(left))
                return
        raise error


def _shares(fits: float | None, margin: float) -> Iterator[float]:
    first = 1.0 if fits is None else fits * margin
    if fits is not None:
        yield first
    yield from (share for share in _SHARES if share < first)


class Truncating(BackendWrapper):
    """A backend that is asked again with a shorter prompt when it says that the prompt is too long."""

    def __init__(self, backend: Backend, prompt: Prompt) -> None:
        super().__init__(backend)
        self._prompt = prompt

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[list[Chunk]]]:
        """Ask, and answer in chunks: see `Backend.stream`."""
        async with AsyncExitStack() as stack:
            chunks = await self._open(stack, request)
            async with aclosing(self._chunks(stack, chunks, request)) as told:
                yield told

    async def _open(self, stack: AsyncExitStack, request: ChatRequest) -> AsyncIterator[list[Chunk]]:
        while True:
            try:
                asked = dataclasses.replace(request, body=self._prompt.body)
                return await stack.enter_async_context(self._backend.stream(asked))
            except BackendError as error:
                self._prompt.shorten(error)

    async def _chunks(
        self, stack: AsyncExitStack, chunks: AsyncIterator[list[Chunk]], request: ChatRequest
    ) -> AsyncGenerator[list[Chunk], None]:
        while True:
            begun = False
            try:
                async for batch in chunks:
                    if batch or begun:
                        begun = True
                        yield batch
                return
            except BackendError as error:
                if begun:
                    raise
                self._prompt.shorten(error)
            # There are servers that refuse a prompt in the first frame of a stream.
            await stack.aclose()
            chunks = await self._open(stack, request)
