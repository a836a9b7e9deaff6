"""
A store in this process's memory.

    memory://?max_bytes=536870912&max_records=100000

At a limit, the least recently used partitions are evicted as a whole, because part of a chain is useless.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from app.errors import StoreUnavailable
from app.storage.url_options import count, read_options
from app.stores import Change, images_partition, owner_of
from app.stores.keys import FOREVER
from app.stores.memory.event_log import MemoryLog
from app.stores.memory.usage import MemoryUsage

MAX_RECORDS = 100_000
MAX_BYTES = 512 * 1024 * 1024

# Bytes per record: name, object headers, dict entries.
_OVERHEAD = 512


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
        return records, put + entries + records * _OVERHEAD

    def apply(self, change: Change, growth: int) -> None:
        for name in change.delete:
            self.records.pop(name, None)
            self.entries.pop(name, None)
        self.records.update(change.put)
        self.entries.update(change.entries)
        self.size += growth


class MemoryStore:
    """Least recently used partitions first."""

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

    async def put(self, partition: str, name: str, record: bytes) -> None:
        await self.apply(Change(partition, {name: record}))

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
            partition.apply(change, size)
            self._list(change)
            self.records += records
            self.bytes += size
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

    async def names(self, partition: str) -> set[str]:
        current = self._use(partition)
        return set(current.records) if current else set()

    async def delete(self, partition: str, name: str) -> bool:
        current = self._find(partition)
        if current is None or name not in current.records:
            return False
        change = Change(partition, {}, [name])
        records, size = current.growth(change)
        current.apply(change, size)
        self._list(change)
        self.records += records
        self.bytes += size
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
