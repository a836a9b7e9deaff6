"""
The stores' protocols: records, event logs of background runs, counters for limits, and the usage ledger.

Partitions of records are read in one round trip, and expire as a whole. A record is named bytes; a partition, named
`owner:chain`, holds an owner's records from a single chain. It expires `ttl` seconds after its last use. The large,
rarely read images of its records are in a separate partition (`images_partition`), which every use of the partition
also renews. A record can have an entry, a short description for the owner's list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from app.errors import StoreUnavailable

# By URL scheme, or an import path. `from_url(url, *, ttl)` does no I/O, and raises ValueError for an invalid URL.
STORES = {
    "memory": "app.stores.memory:MemoryStore",
    "sqlite": "app.stores.sqlite:SQLiteStore",
    "redis": "app.stores.redis:RedisStore",
    "rediss": "app.stores.redis:RedisStore",
    "redis+cluster": "app.stores.redis:RedisStore",
    "rediss+cluster": "app.stores.redis:RedisStore",
    "postgresql": "app.stores.postgres:PostgresStore",
    "postgres": "app.stores.postgres:PostgresStore",
}

LISTED = 1000  # per owner, at least
SLOT_LEASE = 30.0  # seconds until a dead process's slots are free again
BATCH_TTL = 86_400  # seconds for which a store remembers added usage batches, at least


class Change(NamedTuple):
    partition: str
    put: Mapping[str, bytes]  # by name
    delete: Collection[str] = ()  # missing records are ignored
    requires: str | None = None  # a record that must exist, otherwise the change is not made
    # For records in `put` to list.
    entries: Mapping[str, bytes] = MappingProxyType({})


class Store(Protocol):
    """
    Every method can raise `StoreUnavailable`, and works again after the outage. Methods with a partition renew it.

    A completed write is visible to readers in all processes, and survives this process if the store is persistent.
    Writes are atomic, even if their caller is cancelled. Expired partitions (deleted or not) and partitions without
    records count as missing.
    """

    async def put(self, partition: str, name: str, record: bytes) -> None:
        await self.apply(Change(partition, {name: record}))

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        """
        Store a record unless its name exists; return whether it was stored.

        Exactly one of several concurrent calls, in any processes, returns True.
        """

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes atomically, each to a different partition in the chain; return whether they were made.

        None is made if a required record is missing, for example because another request deletes the conversation.
        Partitions of a chain have equal names up to the second colon (`owner:chain`, `owner:chain:conversation`).
        """

    async def get(self, partition: str, name: str) -> bytes | None: ...

    async def all(self, partition: str) -> dict[str, bytes]:
        """Records by name, in any order."""

    async def names(self, partition: str) -> set[str]: ...

    async def delete(self, partition: str, name: str) -> bool:
        """Return False if the record did not exist. Does not renew the partition."""

    async def delete_partition(self, partition: str) -> bool:
        """Return False if the partition did not exist."""

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """
        At most `limit` entries, newest first; at least the newest `LISTED` records are listed.

        A replaced record keeps its position. `after` is a record's name: only later entries are returned; None if it is
        not listed. Deleted records are not listed. Renews no partition.
        """

    async def stored_bytes(self, owner: str) -> int:
        """
        An owner's records' approximate size, for quotas; renews no partition.

        A store can omit partitions last written before the process's first call.
        """

    async def delete_expired(self) -> None:
        """
        Erase expired and deleted records, unless the store does it itself. Called at startup and regularly, in every
        process.
        """

    async def check(self) -> None:
        """Checks reads and writes with at most one round trip; raises `StoreUnavailable`."""

    async def aclose(self) -> None:
        """Repeated calls are allowed."""


def images_partition(partition: str) -> str:
    return f"{partition}:images"


def owner_of(partition: str) -> str:
    return partition.partition(":")[0]


async def apply_with(store: Store, changes: Sequence[Change], more: Sequence[Change]) -> bool:
    """Make `changes`, with `more` if both are possible; return whether `changes` were made."""
    return await store.apply(*changes, *more) or (bool(more) and await store.apply(*changes))


class LayeredStore:
    """
    A caller's readable records: in `store`, and in `memory` if it exists.

    A WebSocket connection has a memory layer for responses with `store: false`; over HTTP, these are not stored.
    """

    def __init__(self, memory: Store | None, store: Store) -> None:
        self.memory = memory
        self.store = store

    async def all(self, partition: str) -> dict[str, bytes]:
        records = await self.store.all(partition)
        return records if self.memory is None else {**records, **await self.memory.all(partition)}

    async def all_in_memory(self, partition: str) -> dict[str, bytes]:
        return {} if self.memory is None else await self.memory.all(partition)

    async def get(self, partition: str, name: str) -> bytes | None:
        record = None if self.memory is None else await self.memory.get(partition, name)
        return await self.store.get(partition, name) if record is None else record

    async def apply_in_memory(self, *changes: Change) -> None:
        """Memory can evict the partitions at any time."""
        if self.memory is not None:
            with suppress(StoreUnavailable):
                await self.memory.apply(*changes)

    async def delete_in_memory(self, partition: str, name: str) -> None:
        if self.memory is not None:
            await self.memory.delete(partition, name)


class RunKey(NamedTuple):
    """A background run: its chain's partition and its response's id."""

    partition: str
    id: str


class EventSegment(NamedTuple):
    """Events emitted together; `first` and `last` are sequence numbers."""

    first: int
    last: int
    data: bytes
    ends: bool = False  # with the terminal event


# Held, held with a request to cancel the run, or lost to another worker.
LeaseState: TypeAlias = Literal["held", "cancelled", "lost"]

# `orphaned`: not ended, and its lease has expired.
RunState: TypeAlias = Literal["running", "orphaned", "ended", "absent"]


class EventLog(Protocol):
    """
    Events and workers of background runs. Every method can raise `StoreUnavailable`.

    One worker at a time holds a run's lease, and only its segments are stored. The lease expires `lease` seconds after
    its last renewal; then another worker can claim it. A log is deleted `ttl` seconds after its last use. A worker's
    name is unique to a process.
    """

    async def begin(self, run: RunKey, worker: str) -> None:
        """The worker holds the lease."""

    async def append(self, run: RunKey, worker: str, segment: EventSegment) -> LeaseState:
        """
        Append a segment, and renew the lease.

        A segment is ignored if the worker has lost the lease, or if its first event does not follow the last stored
        event, so a call with an unknown result can be repeated.
        """

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]: ...

    async def claim(self, run: RunKey, worker: str) -> bool:
        """Claim an orphaned or absent run; return whether the worker now holds its lease."""

    async def cancel(self, run: RunKey) -> None:
        """The worker's next call returns `cancelled`."""

    async def state(self, run: RunKey) -> RunState: ...

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        """
        Segments (possibly not all) with events after sequence number `after`, oldest first.

        Waits up to `wait` seconds for a segment.
        """

    async def orphans(self) -> list[RunKey]:
        """Runs (possibly not all) that can be orphaned."""

    async def delete(self, run: RunKey) -> None:
        """A running run's worker loses the lease."""

    async def aclose(self) -> None:
        """The store is closed afterwards."""


class TokenCharge(NamedTuple):
    bucket: str
    capacity: int  # tokens; a bucket refills within a minute
    amount: int  # to consume; the bucket can become negative
    needs: int = 0  # tokens that must be in the bucket, otherwise nothing is consumed from any bucket


class TokenResult(NamedTuple):
    granted: bool
    missing: Sequence[float]  # tokens per bucket until it is full


class Counters(Protocol):
    """
    Token buckets and slots, for a process or for all processes that share a store.

    Every method can raise `StoreUnavailable`.

    Buckets refill steadily. A slot is held until its release, or the end of its lease.
    """

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        """Consume tokens from all given buckets, or from none. A new bucket is full."""

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        """Acquire a slot in a pool of `limit` for `SLOT_LEASE` seconds; return False if none is free."""

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Renew slots (pool, holder) for another `SLOT_LEASE` seconds; return slots that were not held."""

    async def release(self, pool: str, holder: str) -> None: ...

    async def aclose(self) -> None:
        """Repeated calls are allowed."""


class UsageRow(NamedTuple):
    """A key's daily usage of a model at a backend, or an addition to it."""

    day: str  # in UTC, for example `2026-11-22`
    key: str
    model: str
    backend: str
    requests: int
    input_tokens: int
    cached_tokens: int  # part of the input
    output_tokens: int
    reasoning_tokens: int  # part of the output
    cost: int  # in nanos: see `app.core.prices`


class Spending(NamedTuple):
    tokens_per_day: int = 0
    money_per_day: int = 0  # in nanos
    tokens_per_month: int = 0
    money_per_month: int = 0


class UsageLedger(Protocol):
    """For a process or for all processes that share a store. Can raise `StoreUnavailable`."""

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """
        Add to the rows with the same day, key, model and backend, atomically.

        A `batch` is added only once, so a call with an unknown result can be repeated.
        """

    async def spending(self, key: str, day: str) -> Spending: ...

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        """Rows for these days, for a key or all keys, in any order."""

    async def delete_before(self, before: str) -> None:
        """Delete rows before a day, unless the store does it itself."""


@runtime_checkable
class ServerStore(Store, Protocol):
    """The store in the settings. Apart from `exists`, its methods do no I/O before first use of their result."""

    persistent: bool = True  # whether records survive this process

    async def exists(self, partition: str, name: str) -> bool:
        """Does not renew the partition."""

    def log(self, *, ttl: float, lease: float) -> EventLog:
        """`ttl` and `lease` are in seconds."""

    def counters(self) -> Counters | None:
        """The caller closes them separately. None if processes do not share counters."""
        return None

    def usage(self, *, days: int) -> UsageLedger:
        """The ledger retains rows for `days` days."""

    def lasting(self) -> Store:
        """The same store, with partitions that do not expire."""


def add_row(rows: dict[tuple[str, ...], UsageRow], name: tuple[str, ...], row: UsageRow) -> None:
    """The first row's names are kept."""
    if first := rows.get(name):
        row = UsageRow(*first[:4], *(a + b for a, b in zip(first[4:], row[4:], strict=True)))
    rows[name] = row
