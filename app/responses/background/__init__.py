"""
Background responses: runs that continue after their request.

A task drains the run into an event log, which any process with the same store can follow. The stored response
determines the status: `queued` is stored before the caller's answer, a terminal status before the log ends. When a
worker's lease on a run expires, any process can end the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial

from app.core.history.turns import Turn
from app.core.stream import event_batch
from app.core.stream.recovery import recovered_builder
from app.core.types.request import TERMINAL, Event, Response
from app.core.usage import usage_of
from app.errors import APIError, NotFound, StoreUnavailable, TooManyRequests
from app.responses.background.webhooks import Webhooks
from app.responses.generate import abort_response
from app.responses.images import load_images, turn_changes
from app.responses.run import LeaseLost, Run, RunWorker, persist, segment_of
from app.runtime.tasks import end
from app.stores import Change, EventLog, RunKey, Store, owner_of

__all__ = ["Background", "EventSubscription", "Run"]

logger = logging.getLogger(__name__)

TOO_MANY = "Too many background responses are running. Try again later."
WORKER_DIED = "The process that created this response died before it was complete."
SHUT_DOWN = "The server was shut down before this response was complete."

STOP_TIMEOUT = 10.0  # seconds until a stopped run is abandoned


class Background:
    """This process's background runs, and access to other processes' runs."""

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
        """`lease` and `ttl` (of stored objects) are in seconds; `limit` is for this process's concurrent runs."""
        self.webhooks = webhooks
        self._lease = lease
        self._ttl = ttl
        self._store = store
        self._log = log
        self._limit = limit
        self._worker = secrets.token_hex(8)
        self._workers: dict[RunKey, RunWorker] = {}
        self._ending: set[RunKey] = set()  # dead workers' runs that this process is ending
        self._renewal: asyncio.Task[None] | None = None
        self._orphan_check: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        self._orphan_check = asyncio.create_task(self._end_orphans_periodically())
        if self.webhooks:
            self.webhooks.start()

    async def launch(self, run: Run) -> Response:
        """Start a run; return its queued, stored response. Raises `TooManyRequests` and `StoreUnavailable`."""
        if self._closing:
            raise APIError(SHUT_DOWN, status=503, retry_after=1)
        if len(self._workers) >= self._limit:
            raise TooManyRequests(TOO_MANY)
        work = self._workers[run.key] = RunWorker(
            run,
            self._store,
            self._log,
            self._worker,
            timeout=3 * self._lease,
            announce=self.webhooks.announce if self.webhooks else None,
        )
        try:
            queued = await work.queue()
        except BaseException:
            del self._workers[run.key]
            raise
        work.begin(ended=lambda: self._workers.pop(run.key))
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew_periodically())
        return queued

    async def save(self, run: RunKey, turn: Turn, addition: Sequence[Change]) -> None:
        if (work := self._workers.get(run)) is None:
            raise LeaseLost("this process has no worker for it")
        await work.save(turn, addition)

    async def ended(self, run: RunKey) -> bool:
        """Whether a run has ended. A run without a live worker is ended first."""
        state = await self._log.state(run)
        if state in ("orphaned", "absent") and run not in self._workers:
            await self._end_orphan(run)
            state = await self._log.state(run)
        return state in ("ended", "absent")

    async def cancel(self, run: RunKey) -> None:
        """Cancel any process's run; wait up to `STOP_TIMEOUT` for its end."""
        if work := self._workers.get(run):
            work.stop()
        else:
            await self._log.cancel(run)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await self._end_of(run)

    async def delete(self, run: RunKey) -> None:
        """An active run is abandoned."""
        if work := self._workers.get(run):
            work.release()
        await self._log.delete(run)

    async def follow(self, run: RunKey, after: int) -> EventSubscription | None:
        """Events after a sequence number; None if they are not stored."""
        if await self._log.state(run) == "absent":
            return None
        return EventSubscription(self._log, run, after, self.ended, self._lease)

    async def aclose(self, grace: float = 0) -> None:
        """Wait up to `grace` seconds for the runs, and fail the rest. Call before the store is closed."""
        self._closing = True
        await self._wait(grace)
        for work in self._workers.values():
            work.stop(APIError(SHUT_DOWN))
        await self._wait(STOP_TIMEOUT)
        for work in self._workers.values():
            work.release()
        await end(self._renewal, self._orphan_check)
        await self._wait(STOP_TIMEOUT)
        if self.webhooks:
            await self.webhooks.aclose()
        await self._log.aclose()

    async def _end_of(self, run: RunKey) -> None:
        if (work := self._workers.get(run)) and work.task:
            await asyncio.wait({work.task})
        for pause in itertools.chain((0.01, 0.02, 0.05, 0.1), itertools.repeat(0.2)):
            if await self.ended(run):
                break
            await asyncio.sleep(pause)

    async def _wait(self, seconds: float) -> None:
        tasks = {work.task for work in self._workers.values() if work.task}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def _renew_periodically(self) -> None:
        while self._workers:
            await asyncio.sleep(min(1, self._lease / 4, self._ttl / 4))
            with _logging_errors():
                now = asyncio.get_running_loop().time()
                for run, work in [*self._workers.items()]:
                    if now - work.renewed >= self._ttl / 4:
                        work.renewed = now
                        await self._store.get(run.partition, "")  # any read renews the partition
            with _logging_errors():
                claims = await self._log.renew(self._worker, [run for run, work in self._workers.items() if work.task])
                for run, claim in claims.items():
                    if run in self._workers:
                        self._workers[run].apply_claim(claim)

    async def _end_orphans_periodically(self) -> None:
        """End dead workers' runs, at random intervals to spread the processes."""
        while True:
            with _logging_errors():
                for run in await self._log.orphans():
                    with _logging_errors():
                        await self._end_orphan(run)
            await asyncio.sleep(self._lease * random.uniform(0.5, 1))

    async def _end_orphan(self, run: RunKey) -> None:
        if run in self._workers or run in self._ending:
            return
        self._ending.add(run)
        try:
            if await self._log.claim(run, self._worker):
                await self._end_claimed(run)
        finally:
            self._ending.discard(run)

    async def _end_claimed(self, run: RunKey) -> None:
        record = await self._store.get(*run)
        turn = await asyncio.to_thread(Turn.of, record) if record else None
        turn = turn and await load_images(self._store, owner_of(run.partition), turn)
        events = [event async for event in self._events(run)]
        if not turn or (turn.response["status"] in TERMINAL and not events):
            await self._log.delete(run)
            return
        builder = recovered_builder(turn.response, events)
        if turn.response["status"] in TERMINAL:
            builder.response = turn.response  # the worker died after storing the final response
        else:
            abort_response(builder, APIError(WORKER_DIED))
            builder.response["usage"] = usage_of(None, {"messages": turn.input}, builder.response["output"])
            failed = turn._replace(response=builder.response)
            if not await self._store.apply(*turn_changes(run.partition, failed, requires=run.id)):
                await self._log.delete(run)  # the response was deleted meanwhile
                return
            logger.warning("background response failed: worker died", extra={"response_id": run.id})
        builder.end()
        if self.webhooks:
            await self.webhooks.announce(builder.response)
        await self._log.append(run, self._worker, segment_of(builder.pop_events()))

    async def _events(self, run: RunKey) -> AsyncGenerator[Event, None]:
        last = -1
        while batches := await self._log.read(run, last):
            for batch in batches:
                for event in await asyncio.to_thread(event_batch.decode_events, batch.data):
                    yield event
            last = batches[-1].last


@contextlib.contextmanager
def _logging_errors() -> Iterator[None]:
    """Log exceptions and continue; the store logs its own outages."""
    try:
        yield
    except StoreUnavailable:
        pass
    except Exception:
        logger.exception("unexpected error")


GONE = "The events of this response are no longer stored."


class EventSubscription:
    def __init__(
        self,
        log: EventLog,
        run: RunKey,
        after: int,
        ended: Callable[[RunKey], Awaitable[bool]],
        lease: float,
    ) -> None:
        """`ended` returns whether a run has ended, and ends a dead worker's run; `lease` is in seconds."""
        self.last = after
        self._log = log
        self._run = run
        self._ended = ended
        self._lease = lease  # also the timeout of store operations

    def keepalive(self) -> list[Event]:
        """Not logged, so it repeats the last sequence number."""
        return [{"type": "keepalive", "sequence_number": max(self.last, 0)}]

    async def batches(self) -> AsyncGenerator[bytes, None]:
        ended = False
        try:
            while True:
                wait = 0 if ended else self._lease / 4
                batches = await persist(partial(self._log.read, self._run, self.last, wait), self._lease)
                found = bool(batches)
                batches.reverse()
                while batches:  # batches can be large: free each after sending
                    first, last, data, ends = batches.pop()
                    if b"\0" in data:  # logs of version 0.2.0 contain references
                        raise NotFound(GONE)
                    yield event_batch.events_after(data, first, self.last)
                    del data
                    self.last = last
                    if ends:
                        return
                if ended and not found:
                    break
                ended = ended or (not found and await persist(lambda: self._ended(self._run), self._lease))
            if await self._log.state(self._run) == "absent":
                yield self._error(NotFound(GONE))
        except (NotFound, StoreUnavailable) as error:
            yield self._error(error)
        except Exception:
            logger.exception("unexpected error", extra={"response_id": self._run.id})
            yield self._error(APIError("The server failed while reading the events of this response."))

    def _error(self, error: APIError) -> bytes:
        """Not logged: the stream ends, but the run can continue."""
        event: Event = {
            "type": "error",
            "sequence_number": self.last + 1,
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "error": error.payload(),
        }
        return event_batch.encode_sse([event])
