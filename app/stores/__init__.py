"""
The protocol of stores.

A store has *buckets of records*. A record is bytes with a name; a bucket has the records of one chain of one owner. It
is read in one round trip and expires as a whole, `ttl` seconds after its last use, so that a chain in use never
expires. Stores do not read records: see `app.core.history.turns`.

A bucket's name starts with its owner: `owner:chain`. The images of its records, which are large and read less often,
are in a bucket beside it (`images_bucket`); every use of a bucket renews that of its images, too. A record may be
stored with an entry, a short description; a store lists the entries of an owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

# By the scheme of the store's URL. Other schemes are refused; an import path may be used instead.
# Each class has `from_url(url, *, ttl)`: it does no I/O, and raises ValueError for an invalid URL.
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
    """Records of one bucket to store and to delete."""

    bucket: str
    put: Mapping[str, bytes]  # by name
    delete: Collection[str] = ()  # other names; those that do not exist are ignored
    requires: str | None = None  # a record that must be in the bucket, or the change is not made
    # Of the records in `put` that are to be listed: see `Store.recent`.
    entries: Mapping[str, bytes] = MappingProxyType({})


class Store(Protocol):
    """
    Buckets of records; every method may raise `StoreUnavailable`, and works again once the outage is over.

    A completed write is visible to every reader, in this process or another, and survives this process if the store
    does. Writes are atomic, also if their caller is cancelled. An expired bucket does not exist, even if it is not
    purged yet. A bucket without records does not exist, and the entry of a deleted record is not listed.
    """

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Store a record, replacing the one of that name, and renew the bucket."""
        ...

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        """
        Store a record if the bucket has none of that name, and return whether it was stored; renews the bucket.

        Of several concurrent calls, in any processes, exactly one returns True.
        """
        ...

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes atomically, each to another bucket of one chain, and renew the buckets.

        If the record that a change requires is missing, make none of them and return False. Thus nothing is added to a
        conversation that another request deletes at the same time. Buckets belong to one chain if their names are equal
        up to the second colon (`owner:chain`, `owner:chain:conversation`, `owner:chain:images`).
        """
        ...

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew the bucket."""
        ...

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return every record of a bucket by name, in any order, {} if there is none, and renew the bucket."""
        ...

    async def names(self, bucket: str) -> set[str]:
        """Return the names of a bucket's records, and renew the bucket: `all` without the records."""
        ...

    async def delete(self, bucket: str, name: str) -> bool:
        """Delete one record; return False if there was none. The bucket is not renewed."""
        ...

    async def drop(self, bucket: str) -> bool:
        """Delete a bucket with all its records; return False if there was none."""
        ...

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """
        Return at most `limit` entries of an owner's records, newest first.

        A record that replaces another keeps its position. With `after`, the name of a record, only the entries after
        its own are returned; None if it is not listed. No bucket is renewed. At least the newest `LISTED` are listed.
        """
        ...

    async def purge(self) -> None:
        """
        Erase expired and deleted records, unless the store does so itself.

        Called at startup and every few seconds, in each process, even if the store is not in use.
        """
        ...

    async def check(self) -> None:
        """Return if the store can be read and written now, with one round trip at most; raises `StoreUnavailable`."""
        ...

    async def aclose(self) -> None:
        """Release connections, threads and files; the store cannot be used afterwards. Closing twice is allowed."""
        ...


@runtime_checkable
class MeasuringStore(Protocol):
    """A store that can measure an owner's records, for quotas: see `app.responses.quota`."""

    async def stored_bytes(self, owner: str) -> int:
        """
        Return about how many bytes an owner's records take; expired and deleted ones do not count.

        No bucket is renewed. A store may count only buckets that were written after the process's first call.
        """
        ...


# The number of an owner's existing records that a store lists at least.
LISTED = 1000


def images_bucket(bucket: str) -> str:
    """Return the bucket of the images that belong to the records of a bucket."""
    return f"{bucket}:images"


def owner_of(bucket: str) -> str:
    """Return the owner of a bucket."""
    return bucket.partition(":")[0]


async def apply_with(store: Store, changes: Sequence[Change], more: Sequence[Change]) -> bool:
    """Make changes, together with `more` if all can be made; return whether the changes themselves were made."""
    return await store.apply(*changes, *more) or (bool(more) and await store.apply(*changes))
