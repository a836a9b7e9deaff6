from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from app.runtime.tasks import wait_for_event
from app.stores.event_log import EventSegment, LeaseState, RunKey, RunState

MAX_LOG_BYTES = 256 * 1024 * 1024

# Bytes per segment.
_OVERHEAD = 200


@dataclass(slots=True)
class _Log:
    worker: str
    leased: float  # end of the lease
    expires: float
    cancelled: bool = False
    segments: list[EventSegment] = field(default_factory=list)
    size: int = 0  # bytes, including overhead
    grown: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced at each change

    @property
    def ended(self) -> bool:
        return bool(self.segments) and self.segments[-1].ends

    def claim(self) -> LeaseState:
        return "cancelled" if self.cancelled else "held"


class MemoryLog:
    """Logs in order of last use; at the limit, ended runs' logs are deleted, never running ones."""

    def __init__(
        self, *, ttl: float, lease: float, max_bytes: int = MAX_LOG_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl = ttl
        self._lease = lease
        self._max_bytes = max_bytes
        self._clock = clock
        self._logs: OrderedDict[RunKey, _Log] = OrderedDict()
        self._bytes = 0

    async def begin(self, run: RunKey, worker: str) -> None:
        self._logs[run] = _Log(worker, 0, 0)
        self._renew(run, self._logs[run])

    async def append(self, run: RunKey, worker: str, segment: EventSegment) -> LeaseState:
        log = self._held(run, worker)
        if log is None:
            return "lost"
        if log.ended:
            return log.claim()
        added = not log.segments or log.segments[-1].last < segment.first
        if added:
            log.segments.append(segment)
            log.size += len(segment.data) + _OVERHEAD
            self._bytes += len(segment.data) + _OVERHEAD
        self._renew(run, log)
        if added:
            _wake(log)
            self._evict()
        return log.claim()

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        claims: dict[RunKey, LeaseState] = {}
        for run in runs:
            log = self._held(run, worker)
            claims[run] = log.claim() if log else "lost"
            if log and not log.ended:
                self._renew(run, log)
        return claims

    async def claim(self, run: RunKey, worker: str) -> bool:
        log = self._find(run)
        if log is None:
            await self.begin(run, worker)
            return True
        if log.ended or self._clock() < log.leased:
            return False
        log.worker = worker
        self._renew(run, log)
        return True

    async def cancel(self, run: RunKey) -> None:
        if log := self._find(run):
            log.cancelled = True

    async def state(self, run: RunKey) -> RunState:
        log = self._find(run)
        if log is None:
            return "absent"
        if log.ended:
            return "ended"
        return "running" if self._clock() < log.leased else "orphaned"

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        log = self._find(run)
        if log is None:
            return []
        if wait and not log.ended and (not log.segments or log.segments[-1].last <= after):
            await wait_for_event(log.grown, wait)
        return log.segments[bisect_right(log.segments, after, key=lambda segment: segment.last) :]

    async def orphans(self) -> list[RunKey]:
        return [run for run in [*self._logs] if await self.state(run) == "orphaned"]

    async def delete(self, run: RunKey) -> None:
        if run in self._logs:
            self._delete(run)

    async def aclose(self) -> None:
        for run in [*self._logs]:
            self._delete(run)

    def _find(self, run: RunKey) -> _Log | None:
        log = self._logs.get(run)
        if log is not None and log.expires <= self._clock():
            self._delete(run)
            return None
        return log

    def _held(self, run: RunKey, worker: str) -> _Log | None:
        log = self._find(run)
        return log if log and log.worker == worker else None

    def _renew(self, run: RunKey, log: _Log) -> None:
        now = self._clock()
        log.leased = now + self._lease
        log.expires = now + (self._ttl if log.ended else max(self._ttl, self._lease))
        self._logs.move_to_end(run)

    def delete_expired(self) -> None:
        now = self._clock()
        for run in [run for run, log in self._logs.items() if log.expires <= now]:
            self._delete(run)

    def _evict(self) -> None:
        if self._bytes > self._max_bytes:
            for run in [run for run, log in self._logs.items() if log.ended]:
                self._delete(run)
                if self._bytes <= self._max_bytes:
                    break

    def _delete(self, run: RunKey) -> None:
        log = self._logs.pop(run)
        self._bytes -= log.size
        _wake(log)


def _wake(log: _Log) -> None:
    log.grown.set()
    log.grown = asyncio.Event()
