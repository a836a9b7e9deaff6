"""
Content in object storage: an object per file, upload part or attachment.

The table `antiphon_objects` lists every object, from before its first byte until after its deletion, so the bucket is
never listed. A sweep deletes unclaimed objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from app.storage import Outage
from app.storage.object_storage import ObjectStorage, ObjectWriter
from app.storage.tables import Transaction, execute
from app.tools.files import FilesUnavailable
from app.tools.files.contents import Owner
from app.tools.files.tables import FileTables

# The object is claimed by the row `file` or `part`, until that row is deleted.
OBJECT_TABLES = """
CREATE TABLE antiphon_objects (
    content text PRIMARY KEY,
    file text REFERENCES antiphon_files (id) ON DELETE SET NULL,
    part text REFERENCES antiphon_upload_parts (id) ON DELETE SET NULL
);
CREATE INDEX antiphon_objects_by_file ON antiphon_objects (file) WHERE file IS NOT NULL;
CREATE INDEX antiphon_objects_by_part ON antiphon_objects (part) WHERE part IS NOT NULL;
CREATE INDEX antiphon_objects_unclaimed ON antiphon_objects (content) WHERE file IS NULL AND part IS NULL;
"""
_READ = 4 * 1024 * 1024  # bytes per request; between requests, a slow client holds no connection
_ERASED = 100  # per batch

_CLAIM = """
INSERT INTO antiphon_uploads (file, touched) VALUES ($1, {moment})
ON CONFLICT (file) DO UPDATE SET touched = excluded.touched
"""
_TOUCH = "UPDATE antiphon_uploads SET touched = {moment} WHERE file = $1 RETURNING file"
_UNCLAIMED = f"""
SELECT content FROM antiphon_objects
WHERE file IS NULL AND part IS NULL AND attachment IS NULL
AND NOT EXISTS (SELECT 1 FROM antiphon_uploads WHERE antiphon_uploads.file = content)
LIMIT {_ERASED}
"""


class ObjectContents:
    """If `storage` is None, existing objects are unavailable."""

    def __init__(self, tables: FileTables, storage: ObjectStorage | None) -> None:
        self._tables, self._storage = tables, storage
        self._writers: dict[str, ObjectWriter] = {}
        self._unset = Outage("the object storage of files", FilesUnavailable, FilesUnavailable)

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        if not number:
            await self._tables.run(lambda: _begin(content_id))
            self._writers[content_id] = self._required().writer(content_id)
        else:
            await self._touch(content_id)
        await self._writers[content_id].write(data)

    async def finish(self, content_id: str) -> None:
        await self._touch(content_id)
        await self._writers[content_id].close()
        del self._writers[content_id]

    async def discard(self, content_id: str) -> None:
        claim = "DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file"
        try:
            if writer := self._writers.pop(content_id, None):
                await writer.abort()
        finally:
            if await self._tables.execute(claim, content_id):
                await self._delete_objects([content_id])

    async def has(self, content_id: str) -> bool:
        return bool(await self._tables.fetch("SELECT 1 FROM antiphon_objects WHERE content = $1", content_id))

    async def read(self, content_id: str, owner: Owner) -> AsyncIterator[bytes]:
        storage, start, size = self._required(), 0, 1
        while start < size and await self._exists(owner):
            found = await storage.read(content_id, start, _READ)
            if found is None:
                if await self._exists(owner):
                    raise storage.unavailable(f"the object {content_id} does not exist")
                return
            data, size = found
            yield data
            start += len(data)

    async def sweep(self) -> None:
        while self._storage and (rows := await self._tables.fetch(_UNCLAIMED)):
            await self._delete_objects([content_id for (content_id,) in rows])

    async def check(self) -> None:
        """Check that existing objects have a storage. `ObjectStorage.check` checks the storage itself."""
        if not self._storage and await self._tables.fetch("SELECT 1 FROM antiphon_objects LIMIT 1"):
            self._required()

    async def _touch(self, content_id: str) -> None:
        """Renew the claim; raises `FilesUnavailable` if a sweep deleted it as abandoned."""
        if not await self._tables.execute(_TOUCH, content_id):
            raise FilesUnavailable

    async def _exists(self, owner: Owner) -> bool:
        return bool((await self._tables.fetch(f"SELECT {owner.exists}", owner.id))[0][0])

    async def _delete_objects(self, content_ids: Sequence[str]) -> None:
        """Delete objects, then their rows. If the storage fails, the next sweep retries."""
        await self._required().delete(content_ids)
        await self._tables.execute("DELETE FROM antiphon_objects WHERE content = ANY ($1)", [*content_ids])

    def _required(self) -> ObjectStorage:
        if self._storage is None:
            raise self._unset.begins("files are in object storage, and `content_url` is not set")
        return self._storage


def _begin(content_id: str) -> Transaction[None]:
    yield execute("INSERT INTO antiphon_objects (content) VALUES ($1)", content_id)
    yield execute(_CLAIM, content_id)
