"""
Current and recent activity, in all processes that share a store.

    activity = Activity(store, backends=router.state)   # an observer of all responses
    activity.refused(refusal)
    await activity.hours(24)                             # counts, durations and refusals
    await activity.now()                                 # running responses and backend load

Each process counts in memory and stores small records: one per hour, deleted a day later, and its current state while
active. Records never contain request or response content.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from app.core.bounded_json import dumps
from app.core.types import JSONObject
from app.core.types.request import TERMINAL
from app.errors import BackendError, StoreUnavailable
from app.observability.lifecycle import Observer, ResponseLifecycle
from app.runtime.tasks import end
from app.stores import Store

logger = logging.getLogger(__name__)

HOURS = 24  # stored hours
PUBLISHING = 2.0  # seconds between records
PUBLISHING_TIMEOUT = 5.0  # seconds
_STALE = 15.0  # seconds without a record until a process counts as gone
_LISTED = 200  # running responses per process: the most recent
_NOW, _HOURS = "server:now", "server:hours"  # cannot collide with an owner's id


class Activity(Observer):
    def __init__(
        self,
        store: Store,
        *,
        backends: Callable[[], list[JSONObject]] = lambda: [],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`backends` returns this process's backend states; `clock` the Unix time."""
        self._store = store
        self._backends = backends
        self._clock = clock
        self._process = secrets.token_hex(8)
        self._running: dict[int, tuple[float, ResponseLifecycle]] = {}  # by lifecycle id, in start order
        self._hours: dict[int, ActivityHour] = {}  # the current hour, and unstored earlier hours
        self._shown = False  # whether the store has this process's state
        self._started = False
        self._publishing: asyncio.Task[None] | None = None

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        self._running[id(lifecycle)] = self._clock(), lifecycle
        if self._publishing is None:
            self._publish()

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        self._running.pop(id(lifecycle), None)
        if _is_refused(lifecycle):
            return  # counted by `refused`
        now = int(self._clock())
        counts = self._current(now).of(now, lifecycle.key, str(lifecycle.response.get("model") or ""))
        counts.requests += 1
        counts.failed += lifecycle.status == "failed"
        counts.total.add(lifecycle.seconds)
        if (seconds := lifecycle.seconds_to_first) is not None:
            counts.first_token.add(seconds)
        if self._publishing is None:
            self._publish()

    def running(self) -> list[ResponseLifecycle]:
        """This process's responses in progress."""
        return [lifecycle for _, lifecycle in self._running.values()]

    def refused(self, refusal: Refusal) -> None:
        hour = self._current(int(self._clock()))
        hour.of(int(refusal.at), refusal.key, "").refused += 1
        hour.refuse(refusal)
        if self._publishing is None:
            self._publish()

    def _current(self, now: int) -> ActivityHour:
        start = now // HOUR * HOUR
        if (hour := self._hours.get(start)) is None:
            hours = {past: each for past, each in self._hours.items() if each.changed and past > start - HOURS * HOUR}
            hour = ActivityHour(start)
            self._hours = {**hours, start: hour}
        return hour

    async def hours(self, number: int) -> list[ActivityHour]:
        """An object per process and hour, for at most `HOURS` hours; raises `StoreUnavailable`."""
        last = self._current(int(self._clock())).start
        records = await self._store.all(_HOURS)
        records |= {self._name(hour): hour.record() for hour in self._hours.values()}  # newer than the stored records
        found = [record for name, record in records.items() if _start(name) > last - number * HOUR]
        return await asyncio.to_thread(lambda: [*map(ActivityHour.read, found)])

    async def now(self) -> tuple[list[JSONObject], bool]:
        """
        Each process's state (`running` and `backends`), this process's first, and whether all are included.

        During a store outage, only this process's state is known.
        """
        own = self._state()
        try:
            records = await self._store.all(_NOW)
        except StoreUnavailable:
            return [own], False
        states = [orjson.loads(record) for name, record in records.items() if name != self._process]
        return [own, *(state for state in states if state["at"] > self._clock() - _STALE)], True

    def _state(self) -> JSONObject:
        running = [*self._running.values()][-_LISTED:]
        return {
            "at": self._clock(),
            "backends": self._backends(),
            "running": [_described(began, lifecycle) for began, lifecycle in running],
        }

    def start(self) -> None:
        """Start writing to the store; needs the event loop."""
        self._started = True
        if self._publishing is None and self._works():
            self._publish()

    async def aclose(self) -> None:
        """Store the counts; delete this process's current state."""
        self._started = False
        await end(self._publishing)
        self._running.clear()
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(PUBLISHING_TIMEOUT):
                await self._write()

    def _works(self) -> bool:
        return bool(self._running) or any(hour.changed for hour in self._hours.values())

    def _publish(self) -> None:
        if self._started:
            self._publishing = asyncio.get_running_loop().create_task(self._write_periodically())

    async def _write_periodically(self) -> None:
        """Write until nothing has changed."""
        try:
            while self._works() or self._shown:
                await asyncio.sleep(PUBLISHING)
                with contextlib.suppress(StoreUnavailable, TimeoutError):  # the store logs its outages
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
        """Store an hour; the first time, delete records from the day before."""
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
    """Whether the caller received a 4xx error instead of a response."""
    failure = lifecycle.failure
    if failure is None or failure.status >= 500 or (isinstance(failure, BackendError) and failure.response):
        return False
    return lifecycle.delivery != "background" and lifecycle.response["status"] not in TERMINAL


_SHORTEST = 0.001  # seconds
_GROWTH = 2**0.25  # ratio between bucket limits: quantiles are at most 10 % off
_CLASSES = 100  # the last bucket starts at nine hours
# Upper limits of all buckets but the last.
_LIMITS = [_SHORTEST * _GROWTH ** (number + 0.5) for number in range(_CLASSES - 1)]


class Durations:
    """A histogram with a fixed number of buckets, merged across processes and hours."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        """`counts` comes from `pairs`."""
        self._counts = defaultdict(int, counts)

    def add(self, seconds: float) -> None:
        self._counts[bisect(_LIMITS, seconds)] += 1

    def include(self, others: Durations) -> None:
        for number, count in others._counts.items():
            self._counts[number] += count

    def quantile(self, share: float) -> float | None:
        """The quantile in seconds; None without durations."""
        left = math.ceil(share * sum(self._counts.values()))
        for number in sorted(self._counts):
            left -= self._counts[number]
            if left <= 0:
                return float(f"{_SHORTEST * _GROWTH**number:.3g}")
        return None

    def pairs(self) -> list[tuple[int, int]]:
        """The non-empty buckets as (number, count)."""
        return sorted(self._counts.items())


HOUR = 3600
SLOT = 300  # seconds
OTHER = "other"
_MAX_KEYS, _MODELS_OF_KEY = 200, 20  # per hour; further names, which callers can invent, become `other`
_MAX_COUNTS = 2000  # per hour; further names become `other`
_MAX_OWNERS, _REFUSALS_OF_OWNER = 50, 20  # a caller cannot evict other callers' refusals


class Refusal(NamedTuple):
    """A rejected request, without its content."""

    at: float  # Unix time
    owner: str
    key: str  # the key's name
    endpoint: str  # for example `POST /v1/responses`
    status: int
    type: str
    code: str | None
    param: str | None  # only for `POST /v1/responses`
    request_id: str


@dataclass(slots=True)
class RequestCounts:
    requests: int = 0  # sent to a model
    failed: int = 0  # included in `requests`
    refused: int = 0  # not included in `requests`
    first_token: Durations = field(default_factory=Durations)
    total: Durations = field(default_factory=Durations)

    def include(self, other: RequestCounts) -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.refused += other.refused
        self.first_token.include(other.first_token)
        self.total.include(other.total)


class ActivityHour:
    """A process's counts in an hour, by slot, key and model, and its last refusals."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.fresh = True  # whether it was never stored
        self.changed = False  # whether it differs from the stored record
        self.counts: dict[tuple[int, str, str], RequestCounts] = {}
        self._models: dict[str, set[str]] = {}  # model names by key
        self._refusals: dict[str, deque[Refusal]] = {}  # by owner, least recently refused first

    def of(self, now: int, key: str, model: str) -> RequestCounts:
        """Mutable counts at a Unix time in this hour."""
        self.changed = True
        slot = now // SLOT * SLOT
        if (counts := self.counts.get((slot, key, model))) is not None:
            return counts
        full = len(self.counts) >= _MAX_COUNTS
        if full or (key not in self._models and len(self._models) >= _MAX_KEYS):
            key = OTHER
        models = self._models.setdefault(key, set())
        if full or (model not in models and len(models) >= _MODELS_OF_KEY):
            model = OTHER
        models.add(model)
        return self.counts.setdefault((slot, key, model), RequestCounts())

    def refuse(self, refusal: Refusal) -> None:
        """Beyond the limits, the oldest is evicted."""
        of_owner = self._refusals.pop(refusal.owner, None) or deque(maxlen=_REFUSALS_OF_OWNER)
        of_owner.append(refusal)
        self._refusals[refusal.owner] = of_owner
        if len(self._refusals) > _MAX_OWNERS:
            del self._refusals[next(iter(self._refusals))]

    @property
    def refusals(self) -> Iterator[Refusal]:
        return (refusal for of_owner in self._refusals.values() for refusal in of_owner)

    def record(self) -> bytes:
        counts = [
            [*name, each.requests, each.failed, each.refused, each.first_token.pairs(), each.total.pairs()]
            for name, each in self.counts.items()
        ]
        return dumps({"start": self.start, "counts": counts, "refusals": [[*each] for each in self.refusals]})

    @classmethod
    def read(cls, record: bytes) -> ActivityHour:
        fields: JSONObject = orjson.loads(record)
        hour = cls(fields["start"])
        for slot, key, model, requests, failed, refused, first, total in fields["counts"]:
            hour.counts[slot, key, model] = RequestCounts(requests, failed, refused, Durations(first), Durations(total))
        for refusal in fields["refusals"]:
            hour.refuse(Refusal(*refusal))
        return hour
