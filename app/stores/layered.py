from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from app.errors import StoreUnavailable
from app.stores import Change, Store


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

    async def has_stored(self, partition: str, names: Collection[str]) -> bool:
        """Whether all named records are stored; renews the partition."""
        return (await self.store.names(partition)).issuperset(names)

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
