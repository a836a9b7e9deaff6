"""One background run in the process that makes it: what is said is written down, and its end is stored."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from app.core.history.turns import Turn
from app.core.sse import encoder
from app.core.stream.event_batch import EventBatch
from app.core.types.request import TERMINAL, Response
from app.errors import APIError, StoreUnavailable
from app.stores import Change, Store, apply_with
from app.stores.event_log import Batch, EventLog, LeaseState, RunKey

T = TypeVar("T")

logger = logging.getLogger(__name__)

UNEXPECTED = "The server had an error while it was making this response."

# Seconds between two appends of one run: each costs the store as much as many events do, and who follows a run in the
# background does not see the difference.
PAUSE = 0.05

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class SaveTurn(Protocol):
    """Stores a turn, and makes the changes that go with it; `again`, if it may have been stored already."""

    async def __call__(self, turn: Turn, addition: Sequence[Change], /, *, again: bool) -> None: ...


class BackgroundJob(Protocol):
    """A response in the making."""

    key: RunKey
    response: Response

    def queue(self) -> EventBatch:
        """Return the events that come before the response is begun."""
        ...

    def watched(self) -> AbstractContextManager[None]:
        """Tell those who watch of the response while the context lasts."""
        ...

    def turn(self) -> Turn:
        """Return what is to be stored of the response as it stands."""
        ...

    def events(self, open_after: float | None = None) -> AsyncGenerator[EventBatch, None]:
        """Make the response."""
        ...

    async def stop(self, error: APIError | None = None) -> EventBatch:
        """End it as failed, or else as cancelled, once `events` is closed; return the events that are left."""
        ...


class LeaseLost(Exception):
    """A run is not this worker's any more, or cannot be stored: who finds its lease run out will end it."""


class RunWorker:
    """
    One run, in this process.

    One task makes the response, and another one writes down what it says, with a pause after each time, but at the
    end: a slow store makes larger batches, and does not slow the backend down.
    """

    def __init__(
        self,
        run: BackgroundJob,
        store: Store,
        log: EventLog,
        worker: str,
        *,
        patience: float,
        announce: Callable[[Response], Awaitable[None]] | None = None,
    ) -> None:
        """`announce` is called with the response that has ended, before its log says so."""
        self.task: asyncio.Task[None] | None = None
        self.renewed = asyncio.get_running_loop().time()  # when what is stored of it was last used
        self._run = run
        self._store = store
        self._log = log
        self._worker = worker
        self._patience = patience
        self._announce = announce
        self._stopped: asyncio.Future[APIError | None] = asyncio.get_running_loop().create_future()
        self._said = EventBatch()
        self._spoke = asyncio.Event()

    async def queue(self) -> Response:
        """Store the response and begin its log; return the response as it is now."""
        events, turn = self._run.queue(), self._run.turn()
        queued: Response = {**turn.response, "output": []}
        await self._log.begin(self._run.key, self._worker)
        bucket, id = self._run.key
        await self._store.apply(Change(bucket, {id: turn.record()}, entries={id: turn.entry()}))
        await self._log.append(self._run.key, self._worker, batch_of(events))
        return queued

    def begin(self, ended: Callable[[], object]) -> None:
        self.task = asyncio.create_task(self._write())
        self.task.add_done_callback(lambda _: ended())

    def stop(self, error: APIError | None = None) -> None:
        """Let the run fail with that error, or else be cancelled, if it has not ended yet."""
        if not self._stopped.done():
            self._stopped.set_result(error)

    def release(self) -> None:
        """Give the run up as it is: it is somebody else's, or nobody's."""
        if self.task:
            self.task.cancel()

    def apply_claim(self, claim: LeaseState) -> None:
        """Do what follows from how it stands with the lease."""
        if claim == "lost":
            self.release()
        elif claim == "cancelled":
            self.stop()

    async def _write(self) -> None:
        """Append to the log what is said, as it is said."""
        making = asyncio.create_task(self._make())
        making.add_done_callback(lambda _: self._spoke.set())
        try:
            while self._said or not making.done():
                await self._spoke.wait()
                self._spoke.clear()
                if events := self._said:
                    self._said = EventBatch()
                    await self._append(batch_of(events))
                    await asyncio.wait({making}, timeout=PAUSE)
            await making
        except (LeaseLost, StoreUnavailable) as error:
            logger.warning("response abandoned", extra={"response_id": self._run.key.id, "reason": str(error)})
        except Exception:  # nobody waits for this task: what is not said here is said nowhere
            logger.exception("unexpected error", extra={"response_id": self._run.key.id})
        finally:
            making.cancel()
            await asyncio.wait({making})

    async def _append(self, batch: Batch) -> None:
        if batch.ends and (announce := self._announce):
            try:
                await persist(lambda: announce(self._run.response), self._patience)
            except StoreUnavailable:
                logger.warning("webhook lost", extra={"response_id": self._run.key.id})
        claim = await persist(lambda: self._log.append(self._run.key, self._worker, batch), self._patience)
        if claim == "lost":
            raise LeaseLost("another worker took it over")
        self.apply_claim(claim)

    async def _make(self) -> None:
        """Make the response, until it ends or is stopped."""
        with self._run.watched():
            await self._until_stopped()

    async def _until_stopped(self) -> None:
        turn = self._run.turn()
        await self.save(turn._replace(response={**turn.response, "status": "in_progress", "output": []}), again=True)
        draining = asyncio.create_task(self._drain())
        try:
            first: list[asyncio.Future[Any]] = [draining, self._stopped]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._run.response["status"] not in TERMINAL:
                draining.cancel()
            await asyncio.wait({draining})
        finally:
            draining.cancel()
            await asyncio.wait({draining})
        if draining.cancelled():
            error = self._stopped.result()
        else:
            match draining.exception():
                case None:
                    return
                case APIError() as refusal:
                    error = refusal
                case LeaseLost() as lost:
                    raise lost
                case unexpected:
                    logger.error("unexpected error", exc_info=unexpected)
                    error = APIError(UNEXPECTED)
        self._say(await self._run.stop(error))

    async def _drain(self) -> None:
        async with contextlib.aclosing(self._run.events(open_after=0)) as batches:
            async for events in batches:
                self._say(events)

    def _say(self, events: EventBatch) -> None:
        self._said.extend(events)
        self._spoke.set()

    async def save(self, turn: Turn, addition: Sequence[Change] = (), /, *, again: bool) -> None:
        """
        Store a turn, which was stored as `queued` at least: if it is not there any more, it was deleted.

        The lease is renewed first: who lost it must not overwrite what was stored instead.
        """

        bucket, id = self._run.key

        async def put() -> None:
            if (await self._log.renew(self._worker, [self._run.key]))[self._run.key] == "lost":
                raise LeaseLost("another worker took it over")
            change = Change(bucket, {id: turn.record()}, given=id, entries={id: turn.entry()})
            if not await apply_with(self._store, change, addition):
                raise LeaseLost("it was deleted")

        try:
            await persist(put, self._patience)
        except StoreUnavailable as error:
            raise LeaseLost("it cannot be stored") from error


async def persist(attempt: Callable[[], Awaitable[T]], patience: float) -> T:
    """Try, and try again while the store is unavailable, but not for longer than `patience` seconds."""
    give_up = asyncio.get_running_loop().time() + patience
    pause = 0.05
    while True:
        try:
            return await attempt()
        except StoreUnavailable:
            if asyncio.get_running_loop().time() + pause > give_up:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, 1)


def batch_of(events: EventBatch) -> Batch:
    """Encode events, which follow one another without a gap."""
    first, last = events.first, events.last
    return Batch(
        first["sequence_number"], last["sequence_number"], encoder.encode_sse(events), ends=last["type"] in _LAST
    )
