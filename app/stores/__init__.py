"""
The store protocol.

A store contains *buckets of records*. A record is bytes with a name; a bucket holds an owner's records from a single
chain. A bucket is read in one round trip and expires as a whole, `ttl` seconds after its last use, so a chain in use
never expires. Stores do not interpret records: see `app.core.history.turns`.

A bucket's name starts with its owner: `owner:chain`. Its records' images, which are large and less often read, are in a
separate bucket (`images_bucket`); every use of a bucket also renews its images' bucket. A record can have an entry, a
short description; a store lists an owner's entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

# By URL scheme. Other schemes are rejected; an import path can be used instead. Each class has `from_url(url, *, ttl)`,
# which does no I/O and raises ValueError for an invalid URL.
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
    """Records to store in and delete from a bucket."""

    bucket: str
    put: Mapping[str, bytes]  # by name
    delete: Collection[str] = ()  # other names; missing records are ignored
    requires: str | None = None  # a record that must exist in the bucket, otherwise the change is not made
    # Entries for records in `put` to list: see `Store.recent`.
    entries: Mapping[str, bytes] = MappingProxyType({})


class Store(Protocol):
    """
    Buckets of records. Every method can raise `StoreUnavailable`, and works again after the outage.

    A completed write is visible to every reader in all processes, and survives this process if the store is persistent.
    Writes are atomic, even if their caller is cancelled. Expired buckets (purged or not) and buckets without records
    count as missing. Entries of deleted records are not listed.
    """

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Store or replace a record, and renew the bucket."""
        ...

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        """
        Store a record unless its name exists in the bucket; return whether it was stored. Renews the bucket.

        Exactly one of several concurrent calls, in any processes, returns True.
        """
        ...

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes atomically, each to a different bucket in the chain, and renew the buckets.

        Without a change's required record, make no changes and return False: nothing is added to a conversation that
        another request deletes concurrently. Buckets of the same chain have equal names up to the second colon
        (`owner:chain`, `owner:chain:conversation`, `owner:chain:images`).
        """
        ...

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return a record, and renew the bucket."""
        ...

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return a bucket's records by name, in any order ({} if missing), and renew the bucket."""
        ...

    async def names(self, bucket: str) -> set[str]:
        """Return the names of a bucket's records, and renew the bucket: `all` without the records."""
        ...

    async def delete(self, bucket: str, name: str) -> bool:
        """Delete a record; return False if it did not exist. Does not renew the bucket."""
        ...

    async def drop(self, bucket: str) -> bool:
        """Delete a bucket with all records; return False if it did not exist."""
        ...

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """
        Return at most `limit` entries for an owner's records, newest first.

        A replaced record keeps its position. With `after`, a record's name, only later entries are returned; None if
        that record is not listed. Renews no bucket. At least the newest `LISTED` records are listed.
        """
        ...

    async def purge(self) -> None:
        """
        Erase expired and deleted records, unless the store does it automatically.

        Called at startup and every few seconds, in every process, even if the store is idle.
        """
        ...

    async def check(self) -> None:
        """Check with at most one round trip that the store can be read and written; raises `StoreUnavailable`."""
        ...

    async def aclose(self) -> None:
        """Release connections, threads and files; the store is then unusable. Repeated calls are allowed."""
        ...


@runtime_checkable
class MeasuringStore(Protocol):
    """A store that can measure an owner's records, for quotas: see `app.responses.quota`."""

    async def stored_bytes(self, owner: str) -> int:
        """
        Return the approximate size of an owner's records, without expired and deleted records.

        Renews no bucket. A store can omit buckets last written before the process's first call.
        """
        ...


# The minimum number of existing records that a store lists per owner.
LISTED = 1000


def images_bucket(bucket: str) -> str:
    """Return the bucket for images of a bucket's records."""
    return f"{bucket}:images"


def owner_of(bucket: str) -> str:
    return bucket.partition(":")[0]


async def apply_with(store: Store, changes: Sequence[Change], more: Sequence[Change]) -> bool:
    """Make `changes`, together with `more` if both are possible; return whether `changes` were made."""
    return await store.apply(*changes, *more) or (bool(more) and await store.apply(*changes))
