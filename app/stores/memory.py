"""
A store in this process's memory.

    memory://?max_bytes=536870912&max_records=100000

At a limit, the least recently used partitions are evicted as a whole, because part of a chain is useless.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from app.errors import StoreUnavailable
from app.runtime.tasks import wait_for_event
from app.storage import count, read_options
from app.stores import (
    Change,
    EventSegment,
    LeaseState,
    RunKey,
    RunState,
    ServerStore,
    Spending,
    TokenCharge,
    TokenResult,
    UsageRow,
    add_row,
    images_partition,
    owner_of,
)
from app.stores.keys import FOREVER

MAX_RECORDS = 100_000
MAX_BYTES = 512 * 1024 * 1024

# Bytes per record: name, object headers, dict entries.
_RECORD_OVERHEAD = 512


@dataclass(slots=True)
class _Partition:
    expires: float = 0
    records: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, bytes] = field(default_factory=dict)  # for listed records
    size: int = 0  # bytes, including overhead

    def growth(self, change: Change) -> tuple[int, int]:
        """Records and bytes that a change would add."""
        before = [self.records[name] for name in {*change.put, *change.delete} if name in self.records]
        records = len(change.put) - len(before)
        listed = {*change.entries, *change.delete}
        entries = sum(map(len, change.entries.values())) - sum(len(self.entries.get(name, b"")) for name in listed)
        put = sum(map(len, change.put.values())) - sum(map(len, before))
        return records, put + entries + records * _RECORD_OVERHEAD


class MemoryStore(ServerStore):
    """Least recently used partitions first."""

    persistent = False

    def __init__(
        self,
        *,
        ttl: float,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl = ttl
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._clock = clock
        # Every use renews a partition and moves it to the end, so this is also the expiry order.
        self._partitions: OrderedDict[str, _Partition] = OrderedDict()
        # Partition and name, by owner, oldest first.
        self._listed: dict[str, dict[tuple[str, str], None]] = {}
        self._logs: list[MemoryLog] = []
        self._usage = MemoryUsage()
        self._lasting: MemoryStore | None = None
        self.records = 0
        self.bytes = 0  # including overhead

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float] = time.monotonic) -> MemoryStore:
        parts = urlsplit(url)
        if parts.netloc or parts.path not in ("", "/"):
            raise ValueError(
                "A memory store must have neither host nor path: write memory:// or memory://?max_bytes=..."
            )
        return cls(ttl=ttl, clock=clock, **read_options(parts.query, {"max_records": count, "max_bytes": count}))

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        used = self._use(partition)
        return (used is None or name not in used.records) and await self.apply(Change(partition, {name: record}))

    async def apply(self, *changes: Change) -> bool:
        """
        See `Store.apply`.

        Raises `StoreUnavailable`, without changes, if the partitions alone would exceed a limit: then neither other
        chains nor this chain's records are evicted.
        """
        now = self._clock()
        for change in changes:
            self._expire_some(now)
            self._renew(images_partition(change.partition), now)
        partitions = [self._current(change.partition, now) or _Partition() for change in changes]
        for partition, change in zip(partitions, changes, strict=True):
            if change.requires is not None and change.requires not in partition.records:
                return False
        growth = [partition.growth(change) for partition, change in zip(partitions, changes, strict=True)]
        total_records = total_bytes = 0
        for partition, (records, size) in zip(partitions, growth, strict=True):
            total_records += len(partition.records) + records
            total_bytes += partition.size + size
        if total_records > self._max_records or total_bytes > self._max_bytes:
            raise StoreUnavailable(
                "The conversation is larger than the response store allows. Start a new one, or send `store: false`."
            )
        for partition, change, (records, size) in zip(partitions, changes, growth, strict=True):
            self._change(partition, change, records, size)
            partition.expires = now + self._ttl
            self._partitions[change.partition] = partition
            self._partitions.move_to_end(change.partition)
            if not partition.records:
                self._delete_partition(change.partition)
        while self.bytes > self._max_bytes or self.records > self._max_records:
            self._delete_partition(next(iter(self._partitions)))  # never the changed partitions: they are last, and fit
        return True

    async def get(self, partition: str, name: str) -> bytes | None:
        current = self._use(partition)
        return current.records.get(name) if current else None

    async def all(self, partition: str) -> dict[str, bytes]:
        current = self._use(partition)
        return dict(current.records) if current else {}

    async def exists(self, partition: str, name: str) -> bool:
        current = self._find(partition)
        return current is not None and name in current.records

    async def names(self, partition: str) -> set[str]:
        current = self._use(partition)
        return set(current.records) if current else set()

    async def delete(self, partition: str, name: str) -> bool:
        current = self._find(partition)
        if current is None or name not in current.records:
            return False
        change = Change(partition, {}, [name])
        self._change(current, change, *current.growth(change))
        if not current.records:
            del self._partitions[partition]
        return True

    async def delete_partition(self, partition: str) -> bool:
        if self._find(partition) is None:
            return False
        self._delete_partition(partition)
        return True

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        now = self._clock()
        entries = (
            (name, self._partitions[partition].entries[name])
            for partition, name in reversed(self._listed.get(owner, {}))
            if self._partitions[partition].expires > now
        )
        if after is not None and not any(name == after for name, _ in entries):  # advances the generator past `after`
            return None
        return [entry for _, entry in islice(entries, limit)]

    async def stored_bytes(self, owner: str) -> int:
        now, prefix = self._clock(), f"{owner}:"
        return sum(
            partition.size
            for name, partition in self._partitions.items()
            if name.startswith(prefix) and partition.expires > now
        )

    async def delete_expired(self) -> None:
        now = self._clock()
        while self._partitions and next(iter(self._partitions.values())).expires <= now:
            self._delete_partition(next(iter(self._partitions)))
        for log in self._logs:
            log.delete_expired()

    async def check(self) -> None: ...

    def log(self, *, ttl: float, lease: float) -> MemoryLog:
        self._logs.append(MemoryLog(ttl=ttl, lease=lease, clock=self._clock))
        return self._logs[-1]

    def usage(self, *, days: int) -> MemoryUsage:
        return self._usage

    def lasting(self) -> MemoryStore:
        """Its partitions neither expire nor compete with others for memory."""
        if self._lasting is None:
            self._lasting = MemoryStore(ttl=FOREVER, clock=self._clock)
        return self._lasting

    async def aclose(self) -> None:
        self._partitions.clear()
        self._listed.clear()
        self.records = self.bytes = 0

    def _find(self, partition: str) -> _Partition | None:
        now = self._clock()
        self._expire_some(now)
        return self._current(partition, now)

    def _use(self, partition: str) -> _Partition | None:
        now = self._clock()
        self._expire_some(now)
        current = self._renew(partition, now)
        if current is not None:
            self._renew(images_partition(partition), now)
        return current

    def _renew(self, partition: str, now: float) -> _Partition | None:
        """Renew a partition without its images."""
        current = self._current(partition, now)
        if current is not None:
            current.expires = now + self._ttl
            self._partitions.move_to_end(partition)
        return current

    def _expire_some(self, now: float) -> None:
        """Delete up to two expired partitions. Each call adds at most one, so they never accumulate."""
        for _ in range(2):
            oldest = next(iter(self._partitions), None)
            if oldest is None or self._current(oldest, now) is not None:
                return

    def _current(self, partition: str, now: float) -> _Partition | None:
        """Expired partitions are deleted."""
        current = self._partitions.get(partition)
        if current is None or current.expires > now:
            return current
        self._delete_partition(partition)
        return None

    def _change(self, partition: _Partition, change: Change, records: int, size: int) -> None:
        """Apply a change that adds `records` and `size` bytes."""
        for name in change.delete:
            partition.records.pop(name, None)
            partition.entries.pop(name, None)
        partition.records.update(change.put)
        partition.entries.update(change.entries)
        partition.size += size
        self.records += records
        self.bytes += size
        self._list(change)

    def _delete_partition(self, partition: str) -> None:
        current = self._partitions.pop(partition)
        self.records -= len(current.records)
        self.bytes -= current.size
        self._list(Change(partition, {}, list(current.entries)))

    def _list(self, change: Change) -> None:
        owner = owner_of(change.partition)
        listed = self._listed.setdefault(owner, {})
        for name in change.delete:
            listed.pop((change.partition, name), None)
        for name in change.entries:
            listed[change.partition, name] = None
        if not listed:
            del self._listed[owner]


MAX_LOG_BYTES = 256 * 1024 * 1024

# Bytes per segment.
_SEGMENT_OVERHEAD = 200


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
        if not log.segments or log.segments[-1].last < segment.first:
            log.segments.append(segment)
            log.size += len(segment.data) + _SEGMENT_OVERHEAD
            self._bytes += len(segment.data) + _SEGMENT_OVERHEAD
            _wake(log)
        self._renew(run, log)
        if self._bytes > self._max_bytes:
            for ended in [run for run, log in self._logs.items() if log.ended]:
                self._delete(ended)
                if self._bytes <= self._max_bytes:
                    break
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

    def _delete(self, run: RunKey) -> None:
        log = self._logs.pop(run)
        self._bytes -= log.size
        _wake(log)


def _wake(log: _Log) -> None:
    log.grown.set()
    log.grown = asyncio.Event()


_MINUTE = 60.0


class MemoryCounters:
    _MAX_BUCKETS = 10_000  # above this, full buckets are dropped

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when each bucket will be full again
        self._pools: defaultdict[str, set[str]] = defaultdict(set)

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        now = self._clock()
        keys = [f"{owner}:{charge.bucket}" for charge in charges]
        missing = [
            max(0.0, self._full.get(key, now) - now) * charge.capacity / _MINUTE
            for key, charge in zip(keys, charges, strict=True)
        ]
        if any(
            charge.needs and lacking + charge.needs > charge.capacity
            for charge, lacking in zip(charges, missing, strict=True)
        ):
            return TokenResult(False, missing)
        missing = [lacking + charge.amount for charge, lacking in zip(charges, missing, strict=True)]
        if len(self._full) > self._MAX_BUCKETS:
            self._full = {key: full for key, full in self._full.items() if full > now}
        for key, charge, lacking in zip(keys, charges, missing, strict=True):
            self._full[key] = now + lacking * _MINUTE / charge.capacity
        return TokenResult(True, missing)

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        if len(self._pools[pool]) >= limit:
            return False
        self._pools[pool].add(holder)
        return True

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """In a single process, held slots need no renewal."""
        return [(pool, holder) for pool, holder in slots if holder not in self._pools.get(pool, ())]

    async def release(self, pool: str, holder: str) -> None:
        self._pools[pool].discard(holder)
        if not self._pools[pool]:
            del self._pools[pool]

    async def aclose(self) -> None: ...


class MemoryUsage:
    """Rows, and each key's daily and monthly totals, for budgets."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], UsageRow] = {}
        self._tokens: Counter[tuple[str, str]] = Counter()  # by key, and by day or month
        self._cost: Counter[tuple[str, str]] = Counter()
        self._batches: deque[str] = deque(maxlen=100)  # the last batches, because repetitions follow soon

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        if batch in self._batches:
            return
        self._batches.append(batch)
        for row in rows:
            add_row(self._rows, row[:4], row)
        self._count(rows)

    async def spending(self, key: str, day: str) -> Spending:
        today, month = (key, day), (key, day[:7])
        return Spending(self._tokens[today], self._cost[today], self._tokens[month], self._cost[month])

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        return [row for row in self._rows.values() if first <= row.day <= last and key in (None, row.key)]

    async def delete_before(self, before: str) -> None:
        self._rows = {name: row for name, row in self._rows.items() if row.day >= before}
        self._tokens.clear()
        self._cost.clear()
        self._count(self._rows.values())

    def _count(self, rows: Iterable[UsageRow]) -> None:
        for row in rows:
            for period in (row.day, row.day[:7]):
                self._tokens[row.key, period] += row.input_tokens + row.output_tokens
                self._cost[row.key, period] += row.cost
