"""
Runs that outlive their request.

A background run is the same run as any other. A task of its own drains it into an event log, which can be followed
from any point, by any process that shares the store. What the store says of the response is the truth about its
status: it says `queued` before the caller hears of the response at all, and how it ended before the log does.

The worker of a run holds a lease on it. Where a lease has run out, whoever notices ends the run in the worker's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence

from app.core.history.turns import Turn
from app.core.sse import log as frames
from app.core.stream.recovery import RecoveredBuilder
from app.core.types.request import TERMINAL, Event, Response
from app.core.types.usage import usage_of
from app.errors import APIError, StoreUnavailable, TooManyRequests
from app.responses.background.subscription import EventSubscription
from app.responses.background.webhooks import Webhooks
from app.responses.background.worker import BackgroundJob, LeaseLost, RunWorker, batch_of
from app.stores import Change, Store
from app.stores.event_log import EventLog, RunKey

__all__ = ["Background", "EventSubscription", "Run"]

logger = logging.getLogger(__name__)

TOO_MANY = "Too many background responses are running. Try again when some of them have ended."
WORKER_DIED = "The process that was making this response died before it was complete."
SHUT_DOWN = "The server was shut down before this response was complete."

STOP_TIMEOUT = 10.0  # seconds in which a run that is stopped has to come to its end


class Background:
    """The background runs of this process, and a view of those of every other."""

    def __init__(
        self,
        store: Store,
        log: EventLog,
        *,
        lease: float = 20,
        ttl: float = math.inf,
        limit: int = 1000,
        webhooks: Webhooks | None = None,
    ) -> None:
        """
        `lease` is that of the log and `ttl` the time to live of what is stored, both in seconds; `limit` is how many
        runs this process may have at once.
        """
        self._webhooks = webhooks
        self._lease = lease
        self._ttl = ttl
        self._store = store
        self._log = log
        self._limit = limit
        self._worker = secrets.token_hex(8)
        self._works: dict[RunKey, RunWorker] = {}
        self._ending: set[RunKey] = set()  # runs of workers that died, which are being ended here
        self._pulse: asyncio.Task[None] | None = None
        self._sweep: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Look for runs whose worker has died, now and from time to time."""
        self._sweep = asyncio.create_task(self._sweep_on())
        if self._webhooks:
            self._webhooks.start()

    async def launch(self, run: BackgroundJob) -> Response:
        """
        Begin a run, and return its response, which is stored as `queued`.

        Raises `TooManyRequests` where this process has as many runs as it may have, and `StoreUnavailable`.
        """
        if self._closing:
            raise APIError(SHUT_DOWN, status=503, retry_after=1)
        if len(self._works) >= self._limit:
            raise TooManyRequests(TOO_MANY)
        work = self._works[run.key] = RunWorker(
            run,
            self._store,
            self._log,
            self._worker,
            patience=3 * self._lease,
            announce=self._webhooks.announce if self._webhooks else None,
        )
        try:
            queued = await work.queue()
        except BaseException:
            del self._works[run.key]
            raise
        work.begin(ended=lambda: self._works.pop(run.key))
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.create_task(self._pulse_on())
        return queued

    async def save(self, run: RunKey, turn: Turn, addition: Sequence[Change], /, *, again: bool) -> None:
        """Store how a run that was launched here has ended, before its terminal event is yielded: see `SaveTurn`."""
        if (work := self._works.get(run)) is None:
            raise LeaseLost("nobody is at work on it here")
        await work.save(turn, addition, again=again)

    async def ended(self, run: RunKey) -> bool:
        """Tell whether a run has ended by now. If nobody is at work on it any more, it is ended here."""
        standing = await self._log.standing(run)
        if standing in ("orphaned", "absent") and run not in self._works:
            await self._end_for_worker(run)
            standing = await self._log.standing(run)
        return standing in ("ended", "absent")

    async def cancel(self, run: RunKey) -> None:
        """Cancel a run, in whichever process; return when it has ended, or after `STOP_TIMEOUT`."""
        if work := self._works.get(run):
            work.stop()
        else:
            await self._log.cancel(run)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._end_of(run)

    async def delete(self, run: RunKey) -> None:
        """Forget the events of a run, and give the run up if it is still running."""
        if work := self._works.get(run):
            work.release()
        await self._log.delete(run)

    async def follow(self, run: RunKey, after: int) -> EventSubscription | None:
        """Return the events of a run that come after that sequence number; None if they are not kept."""
        return (
            None
            if await self._log.standing(run) == "absent"
            else EventSubscription(self._log, run, after, self.ended, self._lease)
        )

    async def aclose(self, grace: float = 0) -> None:
        """Let the runs end for `grace` seconds; what has not ended by then fails. To be called before the store's."""
        self._closing = True
        await self._wait(grace)
        for work in self._works.values():
            work.stop(APIError(SHUT_DOWN))
        await self._wait(STOP_TIMEOUT)
        for work in self._works.values():
            work.release()
        for task in (self._pulse, self._sweep):
            if task:
                task.cancel()
                await asyncio.wait({task})
        await self._wait(STOP_TIMEOUT)
        if self._webhooks:
            await self._webhooks.aclose()
        await self._log.aclose()

    async def _end_of(self, run: RunKey) -> None:
        if (work := self._works.get(run)) and work.task:
            await asyncio.wait({work.task})
        for pause in itertools.chain((0.01, 0.02, 0.05, 0.1), itertools.repeat(0.2)):
            if await self.ended(run):
                break
            await asyncio.sleep(pause)

    async def _wait(self, seconds: float) -> None:
        tasks = {work.task for work in self._works.values() if work.task}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _pulse_on(self) -> None:
        """Keep the leases of this process's runs, and hear which of them are to be cancelled."""
        while self._works:
            await asyncio.sleep(min(1, self._lease / 4, self._ttl / 4))
            with _carrying_on():
                await self._keep_alive()
            with _carrying_on():
                claims = await self._log.renew(self._worker, [run for run, work in self._works.items() if work.task])
                for run, claim in claims.items():
                    if work := self._works.get(run):
                        work.apply_claim(claim)

    async def _keep_alive(self) -> None:
        """Let nothing that is stored of this process's runs expire while they run."""
        now = asyncio.get_running_loop().time()
        for run, work in [*self._works.items()]:
            if now - work.renewed >= self._ttl / 4:
                work.renewed = now
                await self._store.get(run.bucket, "")  # to read what is not there renews the bucket too

    async def _sweep_on(self) -> None:
        """End the runs whose worker died, over and over, and not in all processes at the same time."""
        while True:
            with _carrying_on():
                for run in await self._log.orphans():
                    with _carrying_on():
                        await self._end_for_worker(run)
            await asyncio.sleep(self._lease * random.uniform(0.5, 1))

    async def _end_for_worker(self, run: RunKey) -> None:
        """End a run in the place of its worker, if nobody else does so."""
        if run in self._works or run in self._ending:
            return
        self._ending.add(run)
        try:
            if await self._log.claim(run, self._worker):
                await self._end_claimed(run)
        finally:
            self._ending.discard(run)

    async def _end_claimed(self, run: RunKey) -> None:
        record = await self._store.get(*run)
        turn = record and Turn.of(record)
        events = [event async for event in self._events(run)]
        if not turn or (turn.response["status"] in TERMINAL and not events):
            await self._log.delete(run)  # there is nothing to end
            return
        builder = RecoveredBuilder(turn.response, events)
        if turn.response["status"] in TERMINAL:
            builder.response = turn.response  # the worker came as far as storing this
        else:
            builder.fail_abandoned(APIError(WORKER_DIED))
            builder.response["usage"] = usage_of(None, {"messages": turn.input}, builder.response["output"])
            lost = turn._replace(response=builder.response)
            change = Change(run.bucket, {run.id: lost.record()}, given=run.id, entries={run.id: lost.entry()})
            if not await self._store.apply(change):
                await self._log.delete(run)  # it was deleted meanwhile
                return
            logger.warning("response lost", extra={"response_id": run.id})
        builder.end()
        if self._webhooks:
            await self._webhooks.announce(builder.response)
        await self._log.append(run, self._worker, batch_of(builder.take()))

    async def _events(self, run: RunKey) -> AsyncGenerator[Event, None]:
        last = -1
        while batches := await self._log.read(run, last):
            for batch in batches:
                for event in frames.decode_events(batch.data):
                    yield event
            last = batches[-1].last


@contextlib.contextmanager
def _carrying_on() -> Iterator[None]:
    """Let what is done over and over go on, whatever happened once. The outage of a store is logged by the store."""
    try:
        yield
    except StoreUnavailable:
        pass
    except Exception:
        logger.exception("unexpected error")
