"""
What happens now, and what happened in the last hours, in all processes of a store.

    activity = Activity(store, backends=router.state)   # an observer of all responses
    activity.refused(refusal)
    await activity.hours(24)                             # counts, durations and refusals
    await activity.now()                                 # running responses, and loads of backends

Each process counts in memory, and puts records of bounded size into the store: one for each hour, which is deleted a
day later, and one for what it does now while it works. No record has content of a request or of a response.
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
from app.observability.lifecycle import Observer, ResponseLifecycle
from app.runtime.tasks import end
from app.stores import Store

logger = logging.getLogger(__name__)

HOURS = 24  # that are kept
PUBLISHING = 2.0  # seconds between two records of a process that works
PUBLISHING_TIMEOUT = 5.0  # seconds
_STALE = 15.0  # seconds after which a process that has written nothing does not work any more
_LISTED = 200  # running responses of a process, those that began last
_NOW, _HOURS = "server:now", "server:hours"  # no owner of a caller has these names


@dataclass(frozen=True, slots=True)
class Now:
    """What the processes of a store do now."""

    states: Sequence[JSONObject]  # of each process: `running` and `backends`
    whole: bool  # whether the store could tell of the other processes


class Activity(Observer):
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
        self._hours: dict[int, ActivityHour] = {}  # the current one, and those before it that are not stored yet
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
        self._publish()

    def refused(self, refusal: Refusal) -> None:
        """Note a request that was refused."""
        hour = self._current()
        hour.of(refusal.at, refusal.key, "").refused += 1
        hour.refuse(refusal)
        self._publish()

    def _current(self) -> ActivityHour:
        start = int(self._clock()) // HOUR * HOUR
        if (hour := self._hours.get(start)) is None:
            hours = {past: each for past, each in self._hours.items() if each.changed and past > start - HOURS * HOUR}
            hour = ActivityHour(start)
            self._hours = {**hours, start: hour}
        return hour

    # Reading.

    async def hours(self, number: int) -> list[ActivityHour]:
        """Return what happened in the last hours, up to `HOURS`, in each process; raises `StoreUnavailable`."""
        last = self._current().start
        records = await self._store.all(_HOURS)
        records |= {self._name(hour): hour.record() for hour in self._hours.values()}  # newer than what is stored
        found = [record for name, record in records.items() if _start(name) > last - number * HOUR]
        return await asyncio.to_thread(lambda: [*map(ActivityHour.read, found)])

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
        if self._works():
            self._publish()

    async def aclose(self) -> None:
        """Store what happened, and that this process does nothing any more."""
        self._started = False
        await end(self._publishing)
        self._running.clear()
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(PUBLISHING_TIMEOUT):
                await self._write()

    def _works(self) -> bool:
        return bool(self._running) or any(hour.changed for hour in self._hours.values())

    def _publish(self) -> None:
        if self._started and self._publishing is None:
            self._publishing = asyncio.get_running_loop().create_task(self._write_periodically())

    async def _write_periodically(self) -> None:
        """Write while there is something to write."""
        try:
            while self._works() or self._shown:
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
        for hour in [*self._hours.values()]:
            if hour.changed:
                await self._write_hour(hour)

    async def _write_hour(self, hour: ActivityHour) -> None:
        """Store an hour; the first time, delete the records of the day before."""
        if hour.fresh:
            for name in await self._store.names(_HOURS):
                if _start(name) <= hour.start - HOURS * HOUR:
                    await self._store.delete(_HOURS, name)
            hour.fresh = False
        hour.changed = False
        try:
            await self._store.put(_HOURS, self._name(hour), hour.record())
        except BaseException:
            hour.changed = True
            raise

    def _name(self, hour: ActivityHour) -> str:
        return f"{hour.start}-{self._process}"


def _start(name: str) -> int:
    """Return the start of the hour that a record of this name is of."""
    return int(name.partition("-")[0])


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
