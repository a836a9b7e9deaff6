"""The worker of one background run: it appends the events to the log and stores the final response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from app.core.history.turns import Turn
from app.core.sse.encoder import encode_sse
from app.core.stream.event_batch import EventBatch
from app.core.types.request import TERMINAL, Response
from app.errors import APIError, StoreUnavailable
from app.responses.delivery import EventWriter, Outbox
from app.responses.images import turn_changes
from app.stores import Change, Store, apply_with
from app.stores.event_log import Batch, EventLog, LeaseState, RunKey

T = TypeVar("T")

logger = logging.getLogger(__name__)

UNEXPECTED = "The server failed while creating this response."

# Seconds between two appends of one run: an append costs the store as much as many events, and clients that follow a
# background run do not notice the delay.
PAUSE = 0.05

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


class SaveTurn(Protocol):
    """Stores a turn and applies the changes that belong to it; `again`: whether it may have been stored before."""

    async def __call__(self, turn: Turn, addition: Sequence[Change], /, *, again: bool) -> None: ...


class BackgroundJob(Protocol):
    """What the worker uses of a `Run`."""

    key: RunKey
    response: Response

    def queue(self) -> EventBatch: ...

    def watched(self) -> AbstractContextManager[None]:
        """Return a context that notifies the observers of the response's start and end."""
        ...

    def turn(self) -> Turn: ...

    async def generate(self, delivery: EventWriter, open_after: float | None = None) -> None:
        """Generate the response and deliver its events."""
        ...

    async def stop(self, error: APIError | None = None) -> EventBatch:
        """End it as failed, or cancelled without an error, after `generate` was cancelled; returns the other events."""
        ...


class LeaseLost(Exception):
    """The worker has lost its lease or cannot store the run; another process ends it when the lease expires."""


class RunWorker:
    """
    Runs one background response in this process.

    One task generates the response; another appends its events to the log, with a pause after each append except the
    last. A slow store leads to larger batches, and slows down the backend only if much text is unwritten.
    """

    def __init__(
        self,
        run: BackgroundJob,
        store: Store,
        log: EventLog,
        worker: str,
        *,
        timeout: float,
        announce: Callable[[Response], Awaitable[None]] | None = None,
    ) -> None:
        """`timeout` is how long to retry store operations, in seconds; `announce` is called before the log ends."""
        self.task: asyncio.Task[None] | None = None
        self.renewed = asyncio.get_running_loop().time()  # when its stored data was last renewed, in loop time
        self._run = run
        self._store = store
        self._log = log
        self._worker = worker
        self._timeout = timeout
        self._announce = announce
        self._stopped: asyncio.Future[APIError | None] = asyncio.get_running_loop().create_future()
        self._unwritten = Outbox()

    @property
    def response(self) -> Response:
        """The response as it is now."""
        return self._run.response

    async def queue(self) -> Response:
        """Store the response, start its log, and return the queued response."""
        events, turn = self._run.queue(), self._run.turn()
        queued: Response = {**turn.response, "output": []}
        await self._log.begin(self._run.key, self._worker)
        await self._store.apply(*await turn_changes(self._run.key.bucket, turn))
        await self._log.append(self._run.key, self._worker, batch_of(events))
        return queued

    def begin(self, ended: Callable[[], object]) -> None:
        """Start the run; `ended` is called at its end."""
        self.task = asyncio.create_task(self._write())
        self.task.add_done_callback(lambda _: ended())

    def stop(self, error: APIError | None = None) -> None:
        """Make the run fail with that error, or cancel it without one, unless it has ended."""
        if not self._stopped.done():
            self._stopped.set_result(error)

    def release(self) -> None:
        """Abandon the run: another process has it, or it was deleted."""
        if self.task:
            self.task.cancel()

    def apply_claim(self, claim: LeaseState) -> None:
        """Release or stop the run if its lease was lost or it was cancelled."""
        if claim == "lost":
            self.release()
        elif claim == "cancelled":
            self.stop()

    async def _write(self) -> None:
        """Append events to the log as they are generated."""
        making = asyncio.create_task(self._generate())
        making.add_done_callback(lambda _: self._unwritten.close())
        try:
            while self._unwritten or not making.done():
                await self._unwritten.wait()
                if self._unwritten:
                    is_full = self._unwritten.full
                    await self._write_batch()
                    await asyncio.wait({making}, timeout=0 if is_full else PAUSE)
            await making
        except (LeaseLost, StoreUnavailable) as error:
            logger.warning("response abandoned", extra={"response_id": self._run.key.id, "reason": str(error)})
        except Exception:  # no code awaits this task, so the exception has to be logged here
            logger.exception("unexpected error", extra={"response_id": self._run.key.id})
        finally:
            making.cancel()
            await asyncio.wait({making})

    async def _write_batch(self) -> None:
        """Append the events that are not written yet."""
        for part in self._unwritten.take().parts():
            await self._append(batch_of(part))
            await asyncio.sleep(0)  # for other requests: appending to a log in memory does not yield

    async def _append(self, batch: Batch) -> None:
        if batch.ends and (announce := self._announce):
            try:
                await persist(lambda: announce(self._run.response), self._timeout)
            except StoreUnavailable:
                logger.warning("webhook lost", extra={"response_id": self._run.key.id})
        claim = await persist(lambda: self._log.append(self._run.key, self._worker, batch), self._timeout)
        if claim == "lost":
            raise LeaseLost("another worker took it over")
        self.apply_claim(claim)

    async def _generate(self) -> None:
        """Generate the response until it ends or is stopped."""
        with self._run.watched():
            await self._until_stopped()

    async def _until_stopped(self) -> None:
        turn = self._run.turn()
        await self.save(turn._replace(response={**turn.response, "status": "in_progress", "output": []}), again=True)
        draining = asyncio.create_task(self._run.generate(self._unwritten, open_after=0))
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
        self._unwritten.send(await self._run.stop(error))

    async def save(self, turn: Turn, addition: Sequence[Change] = (), /, *, again: bool) -> None:
        """
        Store a turn in place of the earlier record; if that is missing, the response was deleted.

        The lease is renewed first, because a worker without a lease must not overwrite what its successor stored.
        """

        bucket, response_id = self._run.key

        async def put() -> None:
            if (await self._log.renew(self._worker, [self._run.key]))[self._run.key] == "lost":
                raise LeaseLost("another worker took it over")
            changes = await turn_changes(bucket, turn, requires=response_id)
            if not await apply_with(self._store, changes, addition):
                raise LeaseLost("it was deleted")

        try:
            await persist(put, self._timeout)
        except StoreUnavailable as error:
            raise LeaseLost("it cannot be stored") from error


async def persist(attempt: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Repeat an attempt while the store is unavailable, for up to so many `seconds`; then raise `StoreUnavailable`."""
    give_up = asyncio.get_running_loop().time() + seconds
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
    """Encode consecutive events."""
    first, last = events.first, events.last
    return Batch(first["sequence_number"], last["sequence_number"], encode_sse(events), ends=last["type"] in _LAST)
