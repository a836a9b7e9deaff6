"""
One response in the making, from the question to the last event.

It is drained (JSON), encoded (SSE), framed (WebSocket) or logged (background), but always the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.backends import Backend, ChatRequest
from app.core.dialects import DIALECTS, Dialect
from app.core.history.turns import Turn
from app.core.stream.chunk_reader import ChunkReader
from app.core.stream.event_builder import EventBuilder, settled
from app.core.types.request import CreateResponse, Event, Item, Response
from app.core.types.response import usage_of
from app.errors import APIError
from app.observability.lifecycle import Observer, ResponseLifecycle, Transport, clock
from app.responses import compaction
from app.responses.background.worker import SaveTurn
from app.responses.context import Context
from app.responses.generate import abort, prewarm, respond
from app.stores import Change, RunKey

logger = logging.getLogger(__name__)
content = logging.getLogger("app.content")  # silent, unless the settings want to hear it


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    owner: str = "anonymous"  # the hash of the caller's key: whose are the things that are stored
    key: str | None = None  # the key itself, for backends that pass it through
    dialect: Dialect = DIALECTS["openresponses"]


@dataclass(frozen=True, slots=True)
class Made:
    """The parts that a run is made of."""

    context: Context
    input: list[Item]  # as it is kept
    prompt: compaction.Prompt
    builder: EventBuilder
    reader: ChunkReader
    generate: bool  # or is no model to be asked?


class Run:
    """
    One response in the making: `response` is what there is of it, and the events come by iterating, in lists.

    The terminal event comes last, and after the response has been stored: whoever hears of it can continue from it.
    """

    def __init__(
        self,
        made: Made,
        request: CreateResponse,
        caller: Caller,
        *,
        backend: Backend,
        keep: SaveTurn,
        addition: Callable[[Turn], list[Change]],
        kept: bool,
        way: Transport,
        observers: Sequence[Observer] = (),
        seconds: float = 0,
    ) -> None:
        """
        `keep` stores the turn, if it is to be `kept` at all, together with its `addition` to its conversation;
        `observers` are told of its course; the answer may take so many `seconds`, or any number if it is 0.
        """
        context, prompt = made.context, made.prompt
        self.response = made.builder.response
        self.key = RunKey(f"{caller.owner}:{context.key}", self.response["id"])
        self.keep = keep
        self._backend = backend
        if context.compacts or request.truncation == "auto":
            self._backend = compaction.Truncating(backend, prompt)
        self._kept = kept
        self._ended = False  # has the terminal event been made?
        self._addition = addition
        self._begun_keeping = False
        self._made = made
        self._seconds = seconds
        self._lifecycle = ResponseLifecycle(self.response, way, observers)
        self._warned: set[str] = set()  # the warnings that an event was emitted for
        conversation, model = request.prompt_cache_key or context.key, self.response["model"]
        self._question = ChatRequest(prompt.body, caller.key, conversation, model, prompt.profile, prompt.translate_for)

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed, a sentence each."""
        return [*self._made.context.warnings, *self._made.prompt.warnings, *self._question.warnings]

    async def events(self, open_after: float | None = None) -> AsyncGenerator[list[Event], None]:
        """Make the response. Raises `APIError` for what fails before the first event; see `respond`."""
        lifecycle, builder, response = self._lifecycle, self._made.builder, self.response
        logger.info("response started", extra={"response_id": response["id"], "model": response["model"]})
        self._log_content("asked", body=self._question.body)
        with self.watched():
            async with contextlib.aclosing(self._answer(open_after)) as answer:
                async for events in answer:
                    if response["output"]:
                        lifecycle.first = clock()
                    yield [*events, *self._new_warnings()]
                    if lifecycle.first:
                        break
                async for events in answer:  # from the first token on, nothing is asked of each
                    yield events
            lifecycle.last = clock()
            await self._keep()
            lifecycle.failure = builder.failure
        last = self._new_warnings()
        builder.end()
        self._ended = True
        yield [*last, *builder.take()]

    def _new_warnings(self) -> list[Event]:
        """Return an `antiphon:warning` event for each warning that had none yet, if the caller wants such events."""
        builder = self._made.builder
        if not builder.framework_events:
            return []
        for warning in self.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                builder.framework("warning", message=warning)
        return builder.take()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """
        Tell those who watch, and the log, of the response while the context lasts; `events` does, by itself.

        Around `events` and `stop` it makes one lifecycle of them.
        """
        outer = not self._lifecycle.told
        try:
            with self._lifecycle.watched(self._usage):
                yield
        finally:
            if outer:
                self._log_end()

    def _answer(self, open_after: float | None) -> AsyncGenerator[list[Event], None]:
        made = self._made
        if not made.generate:
            return prewarm(made.builder)
        return respond(
            made.builder, made.reader, self._backend, self._question, open_after=open_after, seconds=self._seconds
        )

    def queue(self) -> list[Event]:
        """Say that the response is made in the background, before it is begun."""
        self._made.builder.queue()
        return self._made.builder.take()

    async def stop(self, error: APIError | None = None) -> list[Event]:
        """
        End the response from outside, once `events` is closed: it fails with that error, or else was cancelled.

        Returns all events that have not been yielded. Where the terminal one has been, it ended so, and was stored so.
        """
        if self._ended:
            return []
        abort(self._made.builder, self._made.reader, self._question, error)
        await self._keep()
        self._lifecycle.failure = self._made.builder.failure
        if self._lifecycle.ended:
            self._log_end()
        self._made.builder.end()
        return self._made.builder.take()

    def turn(self) -> Turn:
        """Return what is to be stored of the response as it stands."""
        upstream = {id: settled(said) for id, said in self._made.builder.upstream.items()}
        return Turn(self.response, self._made.input, self._made.context.brought | upstream)

    async def drain(self) -> Response:
        """
        Make the response, and return it whole.

        Raises `APIError` where nothing at all came of it: clients retry on an HTTP status, not on a failed response.
        """
        async for _ in self.events():
            pass
        failure = self._made.builder.failure
        if failure and not self.response["output"]:
            raise failure
        return self.response

    async def compacted(self) -> dict[str, Any]:
        """Make a compaction, and return the resource of `POST /responses/compact`; see `drain`."""
        context = self._made.context
        return compaction.resource(await self.drain(), context.items, context.key)

    def keepalive(self) -> list[Event]:
        """Return the event that tells a client of OpenAI's that the response lives."""
        self._made.builder.keepalive()
        return self._made.builder.take()

    def _usage(self) -> dict[str, Any]:
        """Return the usage by now: that of an answer that was broken off is estimated, {} where none had begun."""
        made, lifecycle = self._made, self._lifecycle
        if lifecycle.failure and lifecycle.first is None:
            return {}  # nothing came of it
        if self.response["usage"] or not made.generate:
            return self.response["usage"] or {}
        return usage_of(made.reader.usage, self._question.body, made.builder.standing())

    def _log_end(self) -> None:
        response, failure = self.response, self._lifecycle.failure
        fields = {"response_id": response["id"], "status": self._lifecycle.status, "usage": response["usage"]}
        level = logging.INFO
        if failure:
            fields |= failure.log_fields()
            level = logging.WARNING if failure.status >= 500 else logging.INFO
            failure.reported = True
        logger.log(level, "response ended", extra=fields)
        self._log_content("answered", output=response["output"])

    def _log_content(self, what: str, **said: Any) -> None:
        # By the level that was set for it, and not by that of all: "`store: false` is not stored anywhere, nor logged."
        if content.level == logging.DEBUG and self.response["store"]:
            content.debug(what, extra={"response_id": self.response["id"], **said})

    async def _keep(self) -> None:
        if not self._kept:
            return
        turn = self.turn()
        again, self._begun_keeping = self._begun_keeping, True
        try:
            await self.keep(turn, self._addition(turn), again=again)
        except APIError as error:
            logger.warning("response not stored", extra={"response_id": self.response["id"], "reason": str(error)})
            self._made.builder.fail(error)
            with contextlib.suppress(APIError):  # what is stored after all has to say the same as the stream
                await self.keep(self.turn(), [], again=True)
