"""
One response in the making, from the question to the last event.

It is drained (JSON), encoded (SSE), framed (WebSocket) or logged (background), but always the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.core.access import UNRESTRICTED, KeyAccess
from app.core.dialects import DIALECTS, Dialect
from app.core.history.context import Context
from app.core.history.turns import Turn
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_builder import settled
from app.core.types import Usage
from app.core.types.request import Item, Response
from app.errors import APIError
from app.observability import log_context
from app.observability.lifecycle import ResponseLifecycle, clock
from app.responses import compaction
from app.responses.background.worker import SaveTurn
from app.responses.generate import Generation
from app.stores import Change
from app.stores.event_log import RunKey

logger = logging.getLogger(__name__)
content = logging.getLogger("app.content")  # silent, unless the settings want to hear it

_WARNINGS_STORED = 50


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    owner: str = "anonymous"  # the hash of the caller's key: whose are the things that are stored
    key: str | None = None  # the key itself, for backends that pass it through
    dialect: Dialect = DIALECTS["openresponses"]
    access: KeyAccess = UNRESTRICTED  # what the key may do


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a response goes when it ends, and what is stored beside it."""

    save: SaveTurn
    addition: Callable[[Turn], list[Change]]  # what goes to its conversation with it
    input: list[Item]  # the request's own items, as they are listed
    request: dict[str, Any]  # what is stored of the request: see `recorded_request`


class Run:
    """
    One response in the making: `response` is what there is of it, and the events come by iterating, in lists.

    The terminal event comes last, and after the response has been stored: whoever hears of it can continue from it.
    """

    def __init__(
        self,
        context: Context,
        caller: Caller,
        generation: Generation,
        storage: Storage | None,
        lifecycle: ResponseLifecycle,
    ) -> None:
        """`storage` is None for a response that is not stored anywhere."""
        self.response = generation.builder.response
        self.key = RunKey(f"{caller.owner}:{context.key}", self.response["id"])
        self._builder = generation.builder
        self._context = context
        self._ended = False  # has the terminal event been made?
        self._begun_saving = False
        self._generation = generation
        self._lifecycle = lifecycle
        self._storage = storage
        self._warned: set[str] = set()  # the warnings that an event was emitted for

    @property
    def warnings(self) -> list[str]:
        """What was left out or changed, a sentence each."""
        return [*self._context.warnings, *self._generation.warnings]

    async def events(self, open_after: float | None = None) -> AsyncGenerator[EventBatch, None]:
        """Make the response. Raises `APIError` for what fails before the first event; see `respond`."""
        lifecycle, builder, response = self._lifecycle, self._builder, self.response
        logger.debug("response started", extra={"response_id": response["id"], "model": response["model"]})
        self._log_content("asked", body=self._generation.body)
        with self.watched():
            async with contextlib.aclosing(self._generation.events(open_after)) as answer:
                async for events in answer:
                    if response["output"]:
                        lifecycle.first = clock()
                    events.extend(self._new_warnings())
                    yield events
                    if lifecycle.first:
                        break
                async for events in answer:  # from the first token on, nothing is asked of each
                    yield events
            lifecycle.last = clock()
            await self._save()
            lifecycle.failure = builder.failure
        last = self._new_warnings()
        builder.end()
        self._ended = True
        last.extend(builder.take())
        yield last

    def _new_warnings(self) -> EventBatch:
        """Return an `antiphon:warning` event for each warning that had none yet, if the caller wants such events."""
        builder = self._builder
        for warning in self.warnings if builder.framework_events else ():
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
        outer = not self._lifecycle.observed
        try:
            with self._lifecycle.watched(self._usage):
                yield
        finally:
            if outer:
                self._log_end()

    def queue(self) -> EventBatch:
        """Say that the response is made in the background, before it is begun."""
        self._builder.queue()
        return self._builder.take()

    async def stop(self, error: APIError | None = None) -> EventBatch:
        """
        End the response from outside, once `events` is closed: it fails with that error, or else was cancelled.

        Returns all events that have not been yielded. Where the terminal one has been, it ended so, and was stored so.
        """
        if self._ended:
            return EventBatch()
        self._generation.abort(error)
        await self._save()
        self._lifecycle.failure = self._builder.failure
        if self._lifecycle.ended:
            self._log_end()
        self._builder.end()
        return self._builder.take()

    def turn(self) -> Turn:
        """Return what is to be stored of the response as it stands."""
        upstream = {id: settled(said) for id, said in self._builder.upstream.items()}
        input, request = (self._storage.input, self._storage.request) if self._storage else ([], {})
        brought = self._context.brought | upstream
        return Turn(self.response, input, brought, request, self.warnings[:_WARNINGS_STORED])

    async def drain(self) -> Response:
        """
        Make the response, and return it whole.

        Raises `APIError` where nothing at all came of it: clients retry on an HTTP status, not on a failed response.
        """
        async for _ in self.events():
            pass
        failure = self._builder.failure
        if failure and not self.response["output"]:
            raise failure
        return self.response

    async def compacted(self) -> dict[str, Any]:
        """Make a compaction, and return the resource of `POST /responses/compact`; see `drain`."""
        context = self._context
        return compaction.resource(await self.drain(), context.items, context.key)

    def keepalive(self) -> EventBatch:
        """Return the event that tells a client of OpenAI's that the response lives."""
        self._builder.keepalive()
        return self._builder.take()

    def _usage(self) -> Usage:
        """Return the usage by now: that of an answer that was broken off is estimated, {} where none had begun."""
        if self._lifecycle.failure and self._lifecycle.first is None:
            return {}  # nothing came of it
        return self._generation.usage()

    def _log_end(self) -> None:
        """Log how the response ended: in the line of its HTTP request, or in one of its own."""
        response, failure = self.response, self._lifecycle.failure
        fields = {
            "response_id": response["id"],
            "model": response["model"],
            "status": self._lifecycle.status,
            "usage": response["usage"],
            **self._lifecycle.account(),
        }
        level = logging.INFO
        if failure:
            fields |= failure.log_fields()
            level = logging.WARNING if failure.status >= 500 else logging.INFO
            failure.reported = True
        line = log_context.request_line() if self._lifecycle.transport in ("json", "sse") else None
        if line:
            line.message, line.level, line.fields = "response ended", level, fields
        else:
            logger.log(level, "response ended", extra=fields)
        self._log_content("answered", output=response["output"])

    def _log_content(self, what: str, **said: Any) -> None:
        # By the level that was set for it, and not by that of all: "`store: false` is not stored anywhere, nor logged."
        if content.level == logging.DEBUG and self.response["store"]:
            content.debug(what, extra={"response_id": self.response["id"], **said})

    async def _save(self) -> None:
        if self._storage is None:
            return
        turn = self.turn()
        again, self._begun_saving = self._begun_saving, True
        try:
            await self._storage.save(turn, self._storage.addition(turn), again=again)
        except APIError as error:
            logger.warning("response not stored", extra={"response_id": self.response["id"], "reason": str(error)})
            self._builder.fail(error)
            with contextlib.suppress(APIError):  # what is stored after all has to say the same as the stream
                await self._storage.save(self.turn(), [], again=True)
