"""
Make a conversation shorter: by a summary that stands for it (compaction), or without its oldest turns (truncation).

A compaction is a response like any other, but the model is asked for a summary, and the output is one item that holds
it, sealed: `{"type": "compaction", "encrypted_content": "antiphon1...."}`. It is asked for by an item of type
`compaction_trigger` at the end of the input, or at `POST /responses/compact`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from app.backends import Backend, BackendWrapper, ChatRequest, Chunk
from app.core.history.truncation import share_that_fits, truncated
from app.core.history.turns import input_item
from app.core.profile import Profile
from app.core.request import ChatTranslation
from app.core.stream.event_builder import EventBuilder, Upstream
from app.core.types.request import CreateResponse, Item, Model, Response, TextOptions
from app.core.types.token_estimate import estimate_chat, estimate_json
from app.errors import BackendError

logger = logging.getLogger(__name__)

TRIGGER = "compaction_trigger"

PROMPT = """\
The conversation above is about to be continued by someone who has not seen it. All they will have of it is what you \
write now, and the messages of the user. Write a summary that lets them go on as if they had been there.

Keep, as exactly as it was said:
- what the user wants, what was agreed on or decided, and why;
- instructions, constraints and preferences that still hold;
- facts, names, numbers, identifiers, paths, commands, addresses and code that may be needed again;
- what was done, what tools returned that matters, and what went wrong and how it was dealt with;
- what remains to be done, what was about to be done next, and questions that are open.

Leave out small talk and what has been superseded. A summary from before that stands above goes into yours. Call no \
tools, and do not answer or continue the conversation: write the summary, and nothing else.\
"""
_CUT = "\n[This summary was cut off here.]"

_KEPT_ROLES = frozenset({"user", "system", "developer"})


class CompactResponse(CreateResponse):
    """`CompactResponseMethodPublicBody` of the spec; what else a request may have is taken, too."""

    model: Model

    def triggering(self) -> CompactResponse:
        """Return it as a request for a response that is kept nowhere."""
        update = {"input": [*self.items(), {"type": TRIGGER}], "store": False, "stream": False, "background": False}
        return self.model_copy(update=update)


def is_compaction(items: Sequence[Item]) -> bool:
    """Tell whether an input asks for a compaction."""
    return bool(items) and items[-1]["type"] == TRIGGER


def messages_kept(items: Sequence[Item]) -> list[Item]:
    """Return what a compaction leaves as it is: all that was said to the model, and nothing that came from it."""
    return [item for item in items if item["type"] == "message" and item["role"] in _KEPT_ROLES]


def without_compacted(items: Sequence[Item]) -> list[Item]:
    """
    Return a conversation without what its latest compaction stands for.

    "The latest compaction item carries the necessary context to continue the conversation."
    """
    latest = max((position for position, item in enumerate(items) if item["type"] == "compaction"), default=0)
    return [*messages_kept(items[:latest]), *items[latest:]]


def summary_request(request: CreateResponse, items: Sequence[Item], prompt: str) -> tuple[CreateResponse, list[Item]]:
    """Return the request that asks the model for a summary, and the items that it is asked with, for `to_chat`."""
    # The tools that items bring are still there to be called.
    plain = {"tools": [], "tool_choice": "none", "text": TextOptions(), "include": [], "top_logprobs": None}
    asked = request.model_copy(update=plain)
    return asked, [*items, {"type": "message", "role": "user", "content": prompt or PROMPT}]


class CompactionBuilder(EventBuilder):
    """
    The state machine of a compaction: what the model says is the summary, and becomes one item when it is complete.

    A summary that was cut for want of room says so and is used: the conversation is too long to be summarized again,
    and would be lost.
    """

    def __init__(
        self, response: Response, *, new_id: Callable[[str], str], seal: Callable[[dict[str, Any]], str]
    ) -> None:
        super().__init__(response, new_id=new_id)
        self._seal_summary = seal
        self._pieces: list[str] = []

    def text(self, delta: str, logprobs: list[Any] | None = None) -> None:
        self._pieces.append(delta)

    def refusal(self, delta: str) -> None:
        pass

    def annotation(self, annotation: dict[str, Any]) -> None:
        pass

    def reasoning(self, delta: str, source: str = "reasoning_content") -> None:
        pass

    def reasoning_upstream(self) -> Upstream:
        return {}

    def complete(self) -> None:
        summary = "".join(self._pieces).strip()
        if not summary:
            self.fail(BackendError("The model wrote no summary.", type="model_error", code="model_error"))
            return
        content = {"summary": summary}
        item = {"type": "compaction", "id": self.new_id("cmp"), "encrypted_content": "", "status": "in_progress"}
        self.upstream[item["id"]] = content
        index = self._add(item)
        self._done(index, {**item, "encrypted_content": self._seal_summary(content), "status": "completed"})
        super().complete()

    def incomplete(self, reason: str) -> None:
        if reason == "max_output_tokens" and self._pieces:
            self._pieces.append(_CUT)
            self.complete()
        else:
            super().incomplete(reason)


def resource(response: Response, items: Sequence[Item], key: str) -> dict[str, Any]:
    """
    Return the answer of `POST /responses/compact`, of a compaction that has ended and the conversation it stands for.

    Its output is "a list of all user messages, followed by a single compaction item", to be sent as it is; other
    messages to the model are kept like the user's. Raises `BackendError` where there is no summary.
    """
    if response["status"] != "completed":
        reason = (response["incomplete_details"] or {}).get("reason", "model_error")
        raise BackendError("The model's summary is not complete.", type="model_error", code=reason)
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*(input_item(item, key) for item in messages_kept(items)), *response["output"]],
        "usage": response["usage"],
    }


# What is tried when a prompt is too long, as shares of it, beside what the backend's own numbers say.
_SHARES = (0.75, 0.5, 0.25, 0.0)

# What is taken of the share that should fit, for how large each part of a prompt is was only guessed; a summary needs
# more room for itself than many an answer.
MARGIN = 0.9
SUMMARY_MARGIN = 0.7


class Prompt:
    """
    A conversation as a backend is asked with it: the whole of it, and less each time the backend says it is too long.

    `ask` makes the request of a conversation, for a server of some profile; `margin` is what is taken of the room that
    there should be.
    """

    def __init__(
        self,
        items: Sequence[Item],
        profile: Profile,
        ask: Callable[[Sequence[Item], Profile], ChatTranslation],
        *,
        margin: float = MARGIN,
    ) -> None:
        self.profile = profile
        self._margin = margin
        self.chat = ask(items, profile)
        self.body = self.chat.body
        self._items = items
        self._left = items
        self._ask = ask
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
        return self._ask(self._left, profile).body

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
                self.body = self._ask(left, self.profile).body
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
