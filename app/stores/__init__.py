"""
Who remembers.

A store keeps *buckets of records*. A record is bytes with a name; a bucket is all the records of one chain of one
caller. It is read in one round trip and expires as a whole, `ttl` seconds after its last use, so a chain in use does
not expire under its user. What a record means is not a store's concern: see `app.core.history.turns`.

A bucket's name begins with its owner: `owner:chain`. Of the records that are put with an entry, which is a short
description of them, a store lists the entries of one owner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

# By the scheme of the store's URL. A scheme that is not here is refused; an import path may be given instead.
# Each class has `from_url(url, *, ttl)`: it does no I/O, and raises ValueError for a URL that cannot be meant.
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
    """Records of one bucket that are to be stored and deleted."""

    bucket: str
    put: Mapping[str, bytes]  # by name
    delete: Collection[str] = ()  # other names; where there is no such record, nothing is to be done
    given: str | None = None  # a record that has to be in the bucket, or the change is not to be made
    # Of those records in `put` that are to be listed: see `Store.recent`.
    entries: Mapping[str, bytes] = MappingProxyType({})


class Store(Protocol):
    """
    Buckets of records; every method may raise `StoreUnavailable`, and works again once the trouble is over.

    A write that returned is there for every reader, of this process or another, and survives this process
    (in as far as the store outlives it at all). A write is done or not done, never half: also if its caller is
    cancelled. An expired bucket is gone, whether or not anything has swept it yet. A bucket without records does not
    exist, and the entry of a deleted record is not listed.
    """

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Keep a record, replacing the one of that name, and renew the bucket."""
        ...

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        """
        Store a record if the bucket has none of that name, and return whether it was stored; renews the bucket.

        Of several calls at the same time, in whichever process, one returns True.
        """
        ...

    async def apply(self, *changes: Change) -> bool:
        """
        Make changes, each to another bucket of one chain, all at once, and renew the buckets.

        Where a `given` record is missing, none of them is made, and False is returned. So nothing is added to what
        another request, in whichever process, deletes at the same time. Buckets are of one chain if their names are
        the same up to the second colon (`owner:chain`, `owner:chain:conversation`).
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
        """Forget one record; tell whether it was there. The bucket is not renewed."""
        ...

    async def drop(self, bucket: str) -> bool:
        """Forget a bucket with all its records; tell whether it was there."""
        ...

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """
        Return the entries of an owner's records, those that were put first last, at most `limit` of them.

        A record that replaces another keeps its place. With `after`, the name of a record, only the entries behind its
        own are returned; None if it is not listed. No bucket is renewed. At least the newest `LISTED` are listed.
        """
        ...

    async def purge(self) -> None:
        """
        Remove for good what has expired, and what is left of what was deleted, where the store does not do so itself.

        It is called at the start and every few seconds, in each process, also where the store is not used.
        """
        ...

    async def check(self) -> None:
        """Return if the store can be used now, for writing too, at the cost of one round trip at most."""
        ...

    async def aclose(self) -> None:
        """Give back connections, threads and files; the store is not used afterwards. Closing twice is fine."""
        ...


# How many records of an owner a store lists at least, as long as they are there.
LISTED = 1000


def owner_of(bucket: str) -> str:
    """Return whose bucket it is."""
    return bucket.partition(":")[0]


async def apply_with(store: Store, change: Change, more: Sequence[Change]) -> bool:
    """Make a change, with more at once where these can be made; tell whether the change itself was made."""
    return await store.apply(change, *more) or (bool(more) and await store.apply(change))
