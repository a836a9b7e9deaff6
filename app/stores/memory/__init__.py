"""
A store in this process's memory: nothing to install, nothing left after a restart, nothing shared between workers.

    memory://?max_bytes=536870912&max_records=100000

It is bounded twice, by records and by bytes. Where a record would exceed a bound, the buckets that were not used for
the longest time are forgotten, whole: half a chain is of no use to anyone.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from app.errors import StoreUnavailable
from app.stores import Change, owner_of
from app.stores.memory.event_log import MemoryLog
from app.stores.memory.usage import MemoryUsage
from app.stores.url_options import count, read_options

MAX_RECORDS = 100_000
MAX_BYTES = 512 * 1024 * 1024

# What Python needs to keep one record beside its bytes: name, object headers, its place in the dicts.
_OVERHEAD = 512


@dataclass(slots=True)
class _Bucket:
    expires: float = 0
    records: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, bytes] = field(default_factory=dict)  # of the records that are listed
    size: int = 0  # bytes, with the overhead

    def growth(self, change: Change) -> tuple[int, int]:
        """Return by how many records and bytes the bucket is larger after a change."""
        before = [self.records[name] for name in {*change.put, *change.delete} if name in self.records]
        records = len(change.put) - len(before)
        listed = {*change.entries, *change.delete}
        entries = sum(map(len, change.entries.values())) - sum(len(self.entries.get(name, b"")) for name in listed)
        put = sum(map(len, change.put.values())) - sum(map(len, before))
        return records, put + entries + records * _OVERHEAD

    def apply(self, change: Change, growth: int) -> None:
        """Make a change, by which the bucket grows by so many bytes."""
        for name in change.delete:
            self.records.pop(name, None)
            self.entries.pop(name, None)
        self.records.update(change.put)
        self.entries.update(change.entries)
        self.size += growth


class MemoryStore:
    """Buckets in a dict, the least recently used first."""

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
        # Every use renews by the same time and moves to the end, so this is also the order in which they expire.
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        # Bucket and name of each record that is listed, by owner, the first put first.
        self._listed: dict[str, dict[tuple[str, str], None]] = {}
        self._logs: list[MemoryLog] = []
        self._usage = MemoryUsage()
        self.records = 0
        self.bytes = 0  # as counted for the bound, with the overhead

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        ttl: float,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> MemoryStore:
        """Make the store of a `memory://` URL, whose options `max_records` and `max_bytes` win over the arguments."""
        parts = urlsplit(url)
        if parts.netloc or parts.path not in ("", "/"):
            raise ValueError("A memory store has neither host nor path: write memory:// or memory://?max_bytes=...")
        bounds = {"max_records": max_records, "max_bytes": max_bytes}
        bounds |= read_options(parts.query, {"max_records": count, "max_bytes": count})
        return cls(ttl=ttl, clock=clock, **bounds)

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Keep a record, and renew its bucket."""
        await self.apply(Change(bucket, {name: record}))

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        """Store a record if there is none of that name; return whether it was stored."""
        used = self._use(bucket)
        return (used is None or name not in used.records) and await self.apply(Change(bucket, {name: record}))

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes at once, and renew their buckets; make none, and return False, where a given record is missing.

        Buckets that would exceed a bound all alone are refused, and stay as they were: nobody else's chain is given up
        for them, and none of their own records, without which the rest of the chain makes no sense.
        """
        for change in changes:
            self._sweep(change.bucket)
        buckets = [self._buckets.get(change.bucket) or _Bucket() for change in changes]
        for bucket, change in zip(buckets, changes, strict=True):
            if change.given is not None and change.given not in bucket.records:
                return False
        growth = [bucket.growth(change) for bucket, change in zip(buckets, changes, strict=True)]
        if (
            sum(len(bucket.records) for bucket in buckets) + sum(records for records, _ in growth) > self._max_records
            or sum(bucket.size for bucket in buckets) + sum(size for _, size in growth) > self._max_bytes
        ):
            raise StoreUnavailable(
                "The conversation is larger than the response store may be. Start a new one, or send `store: false`."
            )
        for bucket, change, (records, size) in zip(buckets, changes, growth, strict=True):
            bucket.apply(change, size)
            self._list(change)
            self.records += records
            self.bytes += size
            bucket.expires = self._clock() + self._ttl
            self._buckets[change.bucket] = bucket
            self._buckets.move_to_end(change.bucket)
            if not bucket.records:
                self._forget(change.bucket)
        while self.bytes > self._max_bytes or self.records > self._max_records:
            self._forget(next(iter(self._buckets)))  # never those that were changed: they are the last, and fit alone
        return True

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew its bucket."""
        kept = self._use(bucket)
        return kept.records.get(name) if kept else None

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return a bucket's records by name, and renew it."""
        kept = self._use(bucket)
        return dict(kept.records) if kept else {}

    async def names(self, bucket: str) -> set[str]:
        """Return the names of a bucket's records, and renew it."""
        kept = self._use(bucket)
        return set(kept.records) if kept else set()

    async def delete(self, bucket: str, name: str) -> bool:
        """Forget one record; tell whether it was there."""
        kept = self._find(bucket)
        if kept is None or name not in kept.records:
            return False
        change = Change(bucket, {}, [name])
        records, size = kept.growth(change)
        kept.apply(change, size)
        self._list(change)
        self.records += records
        self.bytes += size
        if not kept.records:
            del self._buckets[bucket]
        return True

    async def drop(self, bucket: str) -> bool:
        """Forget a bucket; tell whether it was there."""
        if self._find(bucket) is None:
            return False
        self._forget(bucket)
        return True

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """Return the entries of an owner's records, the newest first."""
        now = self._clock()
        there = (
            (name, self._buckets[bucket].entries[name])
            for bucket, name in reversed(self._listed.get(owner, {}))
            if self._buckets[bucket].expires > now
        )
        if after is not None and not any(name == after for name, _ in there):  # leaves off behind it
            return None
        return [entry for _, entry in islice(there, limit)]

    async def purge(self) -> None:
        """Forget what has expired."""
        now = self._clock()
        while self._buckets and next(iter(self._buckets.values())).expires <= now:
            self._forget(next(iter(self._buckets)))
        for log in self._logs:
            log.purge()

    async def check(self) -> None:
        """Memory is always there."""

    def log(self, *, ttl: float, lease: float) -> MemoryLog:
        """Return an event log in memory."""
        self._logs.append(MemoryLog(ttl=ttl, lease=lease, clock=self._clock))
        return self._logs[-1]

    def usage(self, *, days: int) -> MemoryUsage:
        """Return the usage of keys, which is this store's as long as the process lives."""
        return self._usage

    async def aclose(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._listed.clear()
        self.records = self.bytes = 0

    def _find(self, bucket: str) -> _Bucket | None:
        """Return a bucket that is there and has not expired."""
        self._sweep(bucket)
        return self._buckets.get(bucket)

    def _use(self, bucket: str) -> _Bucket | None:
        """Return a bucket that is there, renewed."""
        kept = self._find(bucket)
        if kept is not None:
            kept.expires = self._clock() + self._ttl
            self._buckets.move_to_end(bucket)
        return kept

    def _sweep(self, bucket: str) -> None:
        """Forget this bucket if it has expired, and two more: a call adds one at most, so the expired never pile up."""
        now = self._clock()
        self._expire(bucket, now)
        for _ in range(2):
            if self._buckets:
                self._expire(next(iter(self._buckets)), now)

    def _expire(self, bucket: str, now: float) -> None:
        kept = self._buckets.get(bucket)
        if kept is not None and kept.expires <= now:
            self._forget(bucket)

    def _forget(self, bucket: str) -> None:
        kept = self._buckets.pop(bucket)
        self.records -= len(kept.records)
        self.bytes -= kept.size
        self._list(Change(bucket, {}, list(kept.entries)))

    def _list(self, change: Change) -> None:
        """Note which records are listed after a change."""
        owner = owner_of(change.bucket)
        listed = self._listed.setdefault(owner, {})
        for name in change.delete:
            listed.pop((change.bucket, name), None)
        for name in change.entries:
            listed[change.bucket, name] = None
        if not listed:
            del self._listed[owner]
