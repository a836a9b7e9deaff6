"""
Partitions of records, read in one round trip and expiring as a whole.

A record is named bytes; a partition, named `owner:chain`, holds an owner's records from a single chain. It expires
`ttl` seconds after its last use. The large, rarely read images of its records are in a separate partition
(`images_partition`), which every use of the partition also renews. A record can have an entry, a short description for
the owner's list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

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

    async def put(self, partition: str, name: str, record: bytes) -> None: ...

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        """
        Store a record unless its name exists; return whether it was stored.

        Exactly one of several concurrent calls, in any processes, returns True.
        """
        ...

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes atomically, each to a different partition in the chain; return whether they were made.

        None is made if a required record is missing, for example because another request deletes the conversation.
        Partitions of a chain have equal names up to the second colon (`owner:chain`, `owner:chain:conversation`).
        """
        ...

    async def get(self, partition: str, name: str) -> bytes | None: ...

    async def all(self, partition: str) -> dict[str, bytes]:
        """Records by name, in any order."""
        ...

    async def names(self, partition: str) -> set[str]: ...

    async def delete(self, partition: str, name: str) -> bool:
        """Return False if the record did not exist. Does not renew the partition."""
        ...

    async def delete_partition(self, partition: str) -> bool:
        """Return False if the partition did not exist."""
        ...

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """
        At most `limit` entries, newest first; at least the newest `LISTED` records are listed.

        A replaced record keeps its position. `after` is a record's name: only later entries are returned; None if it is
        not listed. Deleted records are not listed. Renews no partition.
        """
        ...

    async def delete_expired(self) -> None:
        """
        Erase expired and deleted records, unless the store does it itself. Called at startup and regularly, in every
        process.
        """
        ...

    async def check(self) -> None:
        """Checks reads and writes with at most one round trip; raises `StoreUnavailable`."""
        ...

    async def aclose(self) -> None:
        """Repeated calls are allowed."""
        ...


@runtime_checkable
class MeasuringStore(Protocol):
    async def stored_bytes(self, owner: str) -> int:
        """
        An owner's records' approximate size, for quotas; renews no partition.

        A store can omit partitions last written before the process's first call.
        """
        ...


# per owner, at least
LISTED = 1000


def images_partition(partition: str) -> str:
    return f"{partition}:images"


def owner_of(partition: str) -> str:
    return partition.partition(":")[0]


async def apply_with(store: Store, changes: Sequence[Change], more: Sequence[Change]) -> bool:
    """Make `changes`, with `more` if both are possible; return whether `changes` were made."""
    return await store.apply(*changes, *more) or (bool(more) and await store.apply(*changes))
