"""
What happens now, and what happened in the last hours, in all processes of a store.

    activity = Activity(store, backends=router.state)   # an observer of all responses
    activity.refused(refusal)
    await activity.hours(24)                             # counts, durations and refusals
    await activity.now()                                 # running responses, and loads of backends

Each process counts in memory, and puts records of bounded size into the store: one for the current hour, and, while it
works, one for what it does now. The records of an hour are in one bucket. There are as many of these as a day has
hours, each of which is used again a day later. No record has content of a request or of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from app.backends import RefusedRequest
from app.core.bounded_json import dumps
from app.core.types import JSONObject
from app.core.types.request import TERMINAL
from app.errors import StoreUnavailable
from app.observability.activity.hours import HOUR, ActivityHour, Refusal
from app.observability.lifecycle import ResponseLifecycle
from app.stores import Store
from app.tasks import end

logger = logging.getLogger(__name__)

HOURS = 24  # that are kept
PUBLISHING = 2.0  # seconds between two records of a process that works
PUBLISHING_TIMEOUT = 5.0  # seconds
_STALE = 15.0  # seconds after which a process that has written nothing does not work any more
_LISTED = 200  # running responses of a process, those that began last
_NOW = "server:now"  # no owner of a caller has this name


@dataclass(frozen=True, slots=True)
class Now:
    """What the processes of a store do now."""

    states: Sequence[JSONObject]  # of each process: `running` and `backends`
    whole: bool  # whether the store could tell of the other processes


class Activity:
    """The activity of this process, and of all that share its store."""

    def __init__(
        self,
        store: Store,
        *,
        backends: Callable[[], list[JSONObject]] = lambda: [],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`backends` returns the state of the backends in this process; `clock` the Unix time."""
        self._store = store
        self._backends = backends
        self._clock = clock
        self._process = secrets.token_hex(8)  # the name of its records
        self._running: dict[int, tuple[float, ResponseLifecycle]] = {}  # in the order of their start
        self._hour = ActivityHour(self._begin())
        self._closed_hours: list[ActivityHour] = []  # that have ended and are not stored yet
        self._changed = False  # whether the hour has changed since it was stored
        self._shown = False  # whether the store has a record of what this process does now
        self._started = False
        self._publishing: asyncio.Task[None] | None = None

    # Observing.

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        """Note a response that runs from now on."""
        self._running[id(lifecycle)] = self._clock(), lifecycle
        self._publish()

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        """Count a response that has ended."""
        self._running.pop(id(lifecycle), None)
        if _is_refused(lifecycle):
            return  # it is counted by what answers the request: see `refused`
        now = self._clock()
        counts = self._current().of(now, lifecycle.key, str(lifecycle.response.get("model") or ""))
        counts.requests += 1
        counts.failed += lifecycle.status == "failed"
        counts.total.add(lifecycle.seconds)
        if (seconds := lifecycle.seconds_to_first) is not None:
            counts.first_token.add(seconds)
        self._change()

    def refused(self, refusal: Refusal) -> None:
        """Note a request that was refused."""
        hour = self._current()
        hour.of(refusal.at, refusal.key, "").refused += 1
        hour.refuse(refusal)
        self._change()

    def _begin(self) -> int:
        return int(self._clock()) // HOUR * HOUR

    def _current(self) -> ActivityHour:
        if (start := self._begin()) != self._hour.start:
            if self._changed:
                self._closed_hours = [*self._closed_hours, self._hour][-HOURS:]
            self._hour = ActivityHour(start)
        return self._hour

    # Reading.

    async def hours(self, number: int) -> list[ActivityHour]:
        """Return what happened in the last hours, up to `HOURS`, in each process; raises `StoreUnavailable`."""
        current = self._current()
        begins = [current.start - HOUR * back for back in range(min(number, HOURS))]
        buckets = await asyncio.gather(*(self._store.all(_bucket(begin)) for begin in begins))
        own = {hour.start: hour for hour in (*self._closed_hours, current)}  # newer than what is stored of them
        records = [hour.record() for start, hour in own.items() if start in begins]
        records += [
            record
            for begin, bucket in zip(begins, buckets, strict=True)
            for name, record in bucket.items()
            if _begins(record, begin) and not (name == self._process and begin in own)
        ]
        return await asyncio.to_thread(lambda: [*map(ActivityHour.read, records)])

    async def now(self) -> Now:
        """Return what this process does, and what the others of its store do, as far as that is available."""
        own = self._state()
        try:
            records = await self._store.all(_NOW)
        except StoreUnavailable:
            return Now([own], whole=False)
        states = [orjson.loads(record) for name, record in records.items() if name != self._process]
        return Now([own, *(state for state in states if state["at"] > self._clock() - _STALE)], whole=True)

    def _state(self) -> JSONObject:
        running = [*self._running.values()][-_LISTED:]
        return {
            "at": self._clock(),
            "backends": self._backends(),
            "running": [_described(began, lifecycle) for began, lifecycle in running],
        }

    # Writing.

    def start(self) -> None:
        """Write to the store from now on; to be called in the event loop."""
        self._started = True
        if self._running or self._changed:
            self._publish()

    async def aclose(self) -> None:
        """Store what happened, and that this process does nothing any more."""
        self._started = False
        await end(self._publishing)
        self._running.clear()
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(PUBLISHING_TIMEOUT):
                await self._write()

    def _change(self) -> None:
        self._changed = True
        self._publish()

    def _publish(self) -> None:
        if self._started and self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(self._write_periodically())

    async def _write_periodically(self) -> None:
        """Write while there is something to write."""
        try:
            while self._running or self._changed or self._shown:
                await asyncio.sleep(PUBLISHING)
                with contextlib.suppress(StoreUnavailable, TimeoutError):  # an outage is logged by the store
                    async with asyncio.timeout(PUBLISHING_TIMEOUT):
                        await self._write()
        except Exception:
            logger.exception("activity not stored")
        finally:
            self._publishing = None

    async def _write(self) -> None:
        if self._running:
            self._shown = True
            await self._store.put(_NOW, self._process, dumps(self._state()))
        elif self._shown:
            await self._store.delete(_NOW, self._process)
            self._shown = False
        while self._closed_hours:
            await self._write_hour(self._closed_hours[0])
            del self._closed_hours[0]
        if self._changed:
            self._changed = False
            try:
                await self._write_hour(self._hour)
            except BaseException:
                self._changed = True
                raise

    async def _write_hour(self, hour: ActivityHour) -> None:
        """Store an hour; the first time, delete what its bucket has of the day before."""
        bucket = _bucket(hour.start)
        if hour.fresh:
            for name, record in (await self._store.all(bucket)).items():
                if not _begins(record, hour.start):
                    await self._store.delete(bucket, name)
            hour.fresh = False
        await self._store.put(bucket, self._process, hour.record())


def _bucket(begin: int) -> str:
    """Return the bucket of an hour of the day; its owner is no caller's."""
    return f"server:hour-{begin // HOUR % HOURS:02d}"


def _begins(record: bytes, begin: int) -> bool:
    """Return whether a record is that of the hour that begins then, and not of the same one of another day."""
    return record.startswith(b'{"start":%d,' % begin)


def _described(began: float, lifecycle: ResponseLifecycle) -> JSONObject:
    response = lifecycle.response
    return {
        "id": response["id"],
        "owner": lifecycle.owner,
        "key": lifecycle.key,
        "model": response["model"],
        "backend": lifecycle.backend or None,
        "delivery": lifecycle.delivery,
        "began": began,
        "first_token_seconds": lifecycle.seconds_to_first,
    }


def _is_refused(lifecycle: ResponseLifecycle) -> bool:
    """Return whether the request is answered with a 4xx, and not with a response."""
    failure = lifecycle.failure
    if failure is None or failure.status >= 500 or isinstance(failure, RefusedRequest):
        return False
    return lifecycle.delivery != "background" and lifecycle.response["status"] not in TERMINAL
