"""
A store with images in object storage, and references in their records.

Only images partitions are affected. If the object storage is unavailable, the store keeps the image itself. An image is
deleted with its record: deletions are forwarded at once, and `delete_expired` finds images with expired records.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson

from app.errors import APIError, StoreUnavailable
from app.stores import Change, ServerStore, Store, owner_of

if TYPE_CHECKING:
    from app.tools.files.records.attachments import Attachments

logger = logging.getLogger(__name__)

FIRST_CHECK = 3600  # seconds after writing an image; by then its record is stored, or never
NEXT_CHECK = 86_400  # seconds
_IMAGES = ":images"
_REFERENCE = "antiphon:object"  # a reference's only field: an attachment id
_SERVER, _ID = "server:objects", "id"  # the lasting record with the store's id
_PREFIX = orjson.dumps({_REFERENCE: ""})[:-2]


def with_image_objects(store: ServerStore, storage: object) -> Store:
    """Object storage is used if a tool provides it, and if its references survive this process."""
    if storage is None or not store.persistent:
        return store
    from app.tools.files.records.attachments import Attachments  # slow import, only if used

    return ImageObjectStore(store, storage) if isinstance(storage, Attachments) else store


class ImageObjectStore(Store):
    def __init__(self, store: ServerStore, storage: Attachments) -> None:
        self._store = store
        self._storage = storage
        self._lasting = store.lasting()
        self._id: str | None = None

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        return await self._store.add(partition, name, record)  # never images

    async def apply(self, *changes: Change) -> bool:
        written: list[str] = []
        stored = [await self._written(change, written) for change in changes]
        if not await self._store.apply(*stored):
            with suppress(APIError):
                await self._storage.remove(written)
            return False
        for change in changes:
            await self._delete(change.partition, {*change.put, *change.delete}, written)
        return True

    async def get(self, partition: str, name: str) -> bytes | None:
        return await self._read(partition, await self._store.get(partition, name))

    async def all(self, partition: str) -> dict[str, bytes]:
        records = await self._store.all(partition)
        if not partition.endswith(_IMAGES):
            return records
        images = {name: await self._read(partition, record) for name, record in records.items()}
        return {name: image for name, image in images.items() if image is not None}

    async def names(self, partition: str) -> set[str]:
        return await self._store.names(partition)

    async def delete(self, partition: str, name: str) -> bool:
        deleted = await self._store.delete(partition, name)
        await self._delete(partition, [name])
        return deleted

    async def delete_partition(self, partition: str) -> bool:
        dropped = await self._store.delete_partition(partition)
        await self._delete(partition)
        return dropped

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        return await self._store.recent(owner, limit=limit, after=after)

    async def delete_expired(self) -> None:
        await self._store.delete_expired()
        checker = await self._checker()
        with suppress(APIError):
            while due := await self._storage.due(checker):
                for image in due:
                    if await self._store.exists(image.place, image.name):
                        await self._storage.postpone(image.id, NEXT_CHECK)
                    else:
                        await self._storage.remove([image.id])

    async def check(self) -> None:
        await self._store.check()

    async def aclose(self) -> None:
        await self._store.aclose()

    async def stored_bytes(self, owner: str) -> int:
        stored = await self._store.stored_bytes(owner)
        try:
            return stored + await self._storage.checked_bytes(owner)
        except APIError:
            raise StoreUnavailable from None

    async def _checker(self) -> str:
        """This store's id, which distinguishes its images from other stores' in the same object storage."""
        if self._id is None:
            await self._lasting.add(_SERVER, _ID, secrets.token_hex(12).encode())
            self._id = (await self._lasting.get(_SERVER, _ID) or b"").decode()
        return self._id

    async def _written(self, change: Change, written: list[str]) -> Change:
        """Write a change's images, with their ids in `written`; return the change with references."""
        partition = change.partition
        if not partition.endswith(_IMAGES) or not change.put:
            return change
        put: dict[str, bytes] = {}
        for name, record in change.put.items():
            try:
                image_id = await self._storage.add_checked(
                    owner_of(partition), partition, name, record, await self._checker(), FIRST_CHECK
                )
            except APIError:
                logger.warning("image stored with its response", extra={"reason": "object storage unavailable"})
                put[name] = record
            else:
                written.append(image_id)
                put[name] = orjson.dumps({_REFERENCE: image_id})
        return change._replace(put=put)

    async def _read(self, partition: str, record: bytes | None) -> bytes | None:
        if record is None or not partition.endswith(_IMAGES) or not record.startswith(_PREFIX):
            return record
        reference = orjson.loads(record)
        try:
            return await self._storage.read(owner_of(partition), partition, str(reference[_REFERENCE]))
        except APIError:
            raise StoreUnavailable from None

    async def _delete(self, partition: str, names: Collection[str] | None = None, keep: Collection[str] = ()) -> None:
        if partition.endswith(_IMAGES) and (names is None or names):
            with suppress(APIError):  # a check deletes them later
                await self._storage.delete(owner_of(partition), partition, names, keep)
