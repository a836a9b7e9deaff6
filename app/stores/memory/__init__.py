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
from urllib.parse import urlsplit

from app.errors import StoreUnavailable
from app.stores import count, read_options
from app.stores.memory.event_log import MemoryLog

MAX_RECORDS = 100_000
MAX_BYTES = 512 * 1024 * 1024

# What Python needs to keep one record beside its bytes: name, object headers, its place in the dicts.
_OVERHEAD = 512


@dataclass(slots=True)
class _Bucket:
    expires: float
    records: dict[str, bytes] = field(default_factory=dict)
    size: int = 0  # bytes, with the overhead


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
        """
        Keep a record, and renew its bucket.

        A bucket that would exceed a bound all alone is refused, and stays as it was: nobody else's chain is given up
        for it, and none of its own records, without which the rest of the chain makes no sense.
        """
        kept = self._use(bucket) or _Bucket(self._clock() + self._ttl)
        before = kept.records.get(name)
        more = int(before is None)
        grown = len(record) + _OVERHEAD if before is None else len(record) - len(before)
        if kept.size + grown > self._max_bytes or len(kept.records) + more > self._max_records:
            raise StoreUnavailable(
                "The conversation is larger than the response store may be. Start a new one, or send `store: false`."
            )
        self._buckets[bucket] = kept
        kept.records[name] = record
        kept.size += grown
        self.bytes += grown
        self.records += more
        while self.bytes > self._max_bytes or self.records > self._max_records:
            self._forget(next(iter(self._buckets)))  # never this one: it is the last, and fits alone

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew its bucket."""
        kept = self._use(bucket)
        return kept.records.get(name) if kept else None

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return a bucket's records by name, and renew it."""
        kept = self._use(bucket)
        return dict(kept.records) if kept else {}

    async def delete(self, bucket: str, name: str) -> bool:
        """Forget one record; tell whether it was there."""
        self._sweep(bucket)
        kept = self._buckets.get(bucket)
        record = kept.records.pop(name, None) if kept else None
        if kept is None or record is None:
            return False
        kept.size -= len(record) + _OVERHEAD
        self.bytes -= len(record) + _OVERHEAD
        self.records -= 1
        if not kept.records:
            del self._buckets[bucket]
        return True

    async def check(self) -> None:
        """Memory is always there."""

    def log(self, *, ttl: float, lease: float) -> MemoryLog:
        """Return an event log in memory."""
        return MemoryLog(ttl=ttl, lease=lease, clock=self._clock)

    async def aclose(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self.records = self.bytes = 0

    def _use(self, bucket: str) -> _Bucket | None:
        """Return a bucket that is there, renewed."""
        self._sweep(bucket)
        kept = self._buckets.get(bucket)
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
