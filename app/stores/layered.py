"""A store below a layer of memory, which has the records that are not to be stored."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from app.errors import StoreUnavailable
from app.stores import Store


class LayeredStore:
    """
    The records that one caller may continue from: those of `store`, and those of `memory`, if there is one.

    A connection has a memory of its own for responses that are not to be stored. A request without a connection has
    none, and then such responses are not kept at all.
    """

    def __init__(self, memory: Store | None, store: Store) -> None:
        self.memory = memory
        self.store = store

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return every record of a bucket, of both layers, and renew the bucket; raises `StoreUnavailable`."""
        records = await self.store.all(bucket)
        return records if self.memory is None else {**records, **await self.memory.all(bucket)}

    async def all_in_memory(self, bucket: str) -> dict[str, bytes]:
        """Return the records of a bucket that are not stored."""
        return {} if self.memory is None else await self.memory.all(bucket)

    async def has_stored(self, bucket: str, names: Collection[str]) -> bool:
        """Tell whether the store has all records of those names in a bucket now, and renew the bucket."""
        return (await self.store.names(bucket)).issuperset(names)

    async def remember(self, bucket: str, name: str, record: bytes) -> None:
        """Put a record into the memory; it may be evicted at any time, and is at once if it is too large."""
        if self.memory is not None:
            with suppress(StoreUnavailable):
                await self.memory.put(bucket, name, record)

    async def forget(self, bucket: str, name: str) -> None:
        """Evict a record from the memory; one that is stored stays."""
        if self.memory is not None:
            await self.memory.delete(bucket, name)
