"""
Content of files and upload parts, by id: as pieces in the database, or in object storage.

A row claims each content: in `antiphon_uploads` during the upload, then in `antiphon_files` or `antiphon_upload_parts`.
The claim is written before the content and deleted before it, so a sweep finds abandoned content.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import count
from types import TracebackType
from typing import Literal, Self

from app.errors import InvalidRequest
from app.storage import Outage
from app.storage.object_storage import ObjectStorage, ObjectWriter
from app.storage.tables import Records, Rows, Tables, Transaction, execute, execute_many, in_transaction
from app.tools.files import ABANDONED_AFTER, PIECE, FilesUnavailable


def claim_content(content_id: str, kind: Literal["file", "part", "attachment"]) -> Transaction[None]:
    """Move the claim from the upload to a row added in the same transaction; raises `FilesUnavailable`."""
    if not (yield execute("DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file", content_id)):
        raise FilesUnavailable  # swept as abandoned
    yield execute(f"UPDATE antiphon_objects SET {kind} = $1 WHERE content = $1", content_id)


_REMOVED = 100  # rows per transaction
SWEPT_PIECES = 64  # per transaction
SWEPT_CHUNKS = 500  # per transaction

_LIST_REMOVED = f"""
SELECT {{row}}, content FROM antiphon_removed ORDER BY {{row}} LIMIT {_REMOVED} FOR UPDATE SKIP LOCKED
"""
_DELETE_PIECES = f"""
DELETE FROM antiphon_pieces WHERE (file, number) IN (
    SELECT file, number FROM antiphon_pieces WHERE file = ANY ($1) LIMIT {SWEPT_PIECES}
) RETURNING 1
"""
_DELETE_ABANDONED = f"""
DELETE FROM antiphon_uploads WHERE file IN (
    SELECT file FROM antiphon_uploads WHERE touched <= {{moment}} - $1 * {{second}}
    LIMIT {_REMOVED} FOR UPDATE SKIP LOCKED
) RETURNING file
"""


class Pieces(Records):
    """
    Content in the database: a row per piece, about 1 MiB each.

    Deleted content is first listed in `antiphon_removed`, then deleted in small transactions, so that other writes do
    not wait for long.
    """

    def __init__(self, tables: Tables, write: str, delete_chunks: str | None) -> None:
        """See the constants in `FileStore`."""
        super().__init__(tables)
        self._write, self._delete_chunks = write, delete_chunks

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        await self._tables.execute(self._write, content_id, number, data)

    async def finish(self, content_id: str) -> None:
        """All pieces are already stored."""

    async def discard(self, content_id: str) -> None:
        await self._remove("DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file", content_id)
        await self.delete_removed()

    async def read(self, content_id: str, table: str, row_id: str) -> AsyncIterator[bytes]:
        """Yield pieces while a row in the table exists."""
        exists = f"EXISTS (SELECT 1 FROM {table} WHERE id = $1)"
        statement = f"SELECT data FROM antiphon_pieces WHERE file = $2 AND number = $3 AND {exists}"
        for number in count():
            rows = await self._tables.fetch(statement, row_id, content_id, number)
            if not rows:
                return
            yield rows[0][0]

    async def delete_abandoned(self) -> None:
        """Mark abandoned uploads as removed."""
        while await self._remove(_DELETE_ABANDONED, ABANDONED_AFTER) == _REMOVED:
            pass

    async def delete_removed(self) -> None:
        while await self._delete_some():
            pass

    @in_transaction
    def _remove(self, delete: str, *values: object) -> Transaction[int]:
        """Mark contents as removed; `delete` returns their ids. Return their number."""
        deleted: Rows = yield execute(delete, *values)
        yield execute_many("INSERT INTO antiphon_removed (content) VALUES ($1)", [(*row,) for row in deleted])
        return len(deleted)

    @in_transaction
    def _delete_some(self) -> Transaction[bool]:
        """Return False if nothing remains."""
        removed = yield execute(_LIST_REMOVED)
        if not removed:
            return False
        pieces = yield execute(_DELETE_PIECES, [content for _, content in removed if content is not None])
        rows = [row for row, _ in removed]
        chunks = (yield execute(self._delete_chunks, rows)) if self._delete_chunks else ()
        if len(pieces) < SWEPT_PIECES and len(chunks) < SWEPT_CHUNKS:
            yield execute("DELETE FROM antiphon_removed WHERE {row} = ANY ($1)", rows)
        return True


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


class ObjectContents(Records):
    """
    Content in object storage: an object per file, upload part or attachment.

    The table `antiphon_objects` lists every object, from before its first byte until after its deletion, so the bucket
    is never listed. A sweep deletes unclaimed objects. If `storage` is None, existing objects are unavailable.
    """

    def __init__(self, tables: Tables, storage: ObjectStorage | None) -> None:
        super().__init__(tables)
        self._storage = storage
        self._writers: dict[str, ObjectWriter] = {}
        self._unset = Outage("the object storage of files", FilesUnavailable)

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        if not number:
            await self._begin(content_id)
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

    async def read(self, content_id: str, table: str, row_id: str) -> AsyncIterator[bytes]:
        exists = f"SELECT 1 FROM {table} WHERE id = $1"
        storage, start, size = self._required(), 0, 1
        while start < size and await self._tables.fetch(exists, row_id):
            found = await storage.read(content_id, start, _READ)
            if found is None:
                if await self._tables.fetch(exists, row_id):
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

    @in_transaction
    def _begin(self, content_id: str) -> Transaction[None]:
        yield execute("INSERT INTO antiphon_objects (content) VALUES ($1)", content_id)
        yield execute(_CLAIM, content_id)

    async def _touch(self, content_id: str) -> None:
        """Renew the claim; raises `FilesUnavailable` if a sweep deleted it as abandoned."""
        if not await self._tables.execute(_TOUCH, content_id):
            raise FilesUnavailable

    async def _delete_objects(self, content_ids: Sequence[str]) -> None:
        """Delete objects, then their rows. If the storage fails, the next sweep retries."""
        await self._required().delete(content_ids)
        await self._tables.execute("DELETE FROM antiphon_objects WHERE content = ANY ($1)", [*content_ids])

    def _required(self) -> ObjectStorage:
        if self._storage is None:
            raise self._unset.begins("files are in object storage, and `content_url` is not set")
        return self._storage


class ContentWriter:
    """
    Writes content in pieces of `PIECE` bytes, and deletes it on exit unless `committed`.

    `limits` are sizes in bytes, each with the error raised above it.
    """

    def __init__(
        self, contents: Pieces | ObjectContents, content_id: str, limits: Sequence[tuple[int, InvalidRequest]] = ()
    ) -> None:
        self._contents, self._limits = contents, limits
        self._buffer = bytearray()
        self._pieces = 0
        self.id = content_id
        self.committed = False
        self.bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.committed and self._pieces:
            with contextlib.suppress(Exception):  # the next sweep deletes the rest
                await self._contents.discard(self.id)

    async def write(self, data: bytes) -> None:
        """Raises `InvalidRequest` above a limit."""
        self.bytes += len(data)
        for limit, error in self._limits:
            if self.bytes > limit:
                raise error
        self._buffer += data
        while len(self._buffer) >= PIECE:
            piece = bytes(self._buffer[:PIECE])
            del self._buffer[:PIECE]
            await self._write(piece)

    async def flush(self) -> None:
        """Write the last, partial piece, and complete the content, before it is added."""
        if self._buffer or not self._pieces:
            await self._write(bytes(self._buffer))
            self._buffer.clear()
        await self._contents.finish(self.id)

    async def _write(self, piece: bytes) -> None:
        number, self._pieces = self._pieces, self._pieces + 1
        await self._contents.write(self.id, number, piece)
