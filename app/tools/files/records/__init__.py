from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import ClassVar

from app.storage.object_storage import ObjectStorage
from app.storage.tables import Records, Tables, Transaction, in_transaction
from app.tools.files import File, Page, fetch_page
from app.tools.files.records.attachments import Attachments
from app.tools.files.records.contents import ObjectContents, Pieces
from app.tools.files.records.uploads import (
    ALIVE,
    PARTS_OF_FILE,
    STORED_BYTES,
    UploadRecords,
    add_file,
    storage_full,
    within_limit,
)
from app.tools.files.vector_stores.sql import VectorStoreRecords

_EXPIRED_FILES = 100  # per transaction
_EXPIRED = f"""
{{row}} IN (
    SELECT {{row}} FROM antiphon_files WHERE expires_at <= {{now}} LIMIT {_EXPIRED_FILES} FOR UPDATE SKIP LOCKED
)
"""
_FILE = "SELECT id, owner, filename, purpose, bytes, created_at, expires_at FROM antiphon_files"


class FileStore(Records, ABC):
    """
    All owners' files. Expired files are not found.

    Content is written and read in pieces of about `PIECE` bytes, so a whole file is never in memory. Reading content
    does not check the owner.
    """

    WRITE_PIECE: ClassVar[str]  # (content id, number, piece): also renews the claim
    DELETE_CHUNKS: ClassVar[str | None] = None  # (rows in antiphon_removed): up to `SWEPT_CHUNKS` of their chunks
    vector_stores: VectorStoreRecords

    def __init__(self, tables: Tables, storage: ObjectStorage | None) -> None:
        """New `contents` are written to `storage` if configured, otherwise to the database."""
        super().__init__(tables)
        self.tables = tables
        self._pieces = Pieces(tables, self.WRITE_PIECE, self.DELETE_CHUNKS)
        self._objects = ObjectContents(tables, storage)
        self.contents: Pieces | ObjectContents = self._objects if storage else self._pieces
        self.uploads = UploadRecords(tables)
        self.attachments = Attachments(tables, self._objects) if storage else None

    @abstractmethod
    async def _delete(self, condition: str, *values: object) -> int:
        """Delete files, and mark their content as removed; return their number."""

    async def check(self) -> None:
        """Check that the store is writable, and that existing objects have a storage."""
        await self._tables.check()
        await self._objects.check()

    async def aclose(self) -> None:
        await self._tables.aclose()

    @in_transaction
    def add(self, file: File, limit: int | None = None) -> Transaction[None]:
        """Make a written file visible. Raises `InvalidRequest` if the owner's files would exceed `limit` bytes."""
        if not (yield from within_limit(self._tables, file.owner, file.bytes, limit)):
            raise storage_full(limit, "file")
        yield from add_file(file)

    async def stored_bytes(self, owner: str) -> int:
        """Includes pending uploads."""
        return int((await self._tables.fetch(STORED_BYTES, owner))[0][0])

    async def file(self, owner: str, file_id: str) -> File | None:
        rows = await self._tables.fetch(f"{_FILE} WHERE id = $1 AND owner = $2 AND {ALIVE}", file_id, owner)
        return File(*rows[0]) if rows else None

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        """Also return whether more files exist."""
        where = f"owner = $1 AND {ALIVE} AND (CAST($2 AS text) IS NULL OR purpose = $2)"
        rows, more = await fetch_page(self._tables, _FILE, "antiphon_files", where, (owner, purpose), page)
        return [File(*row) for row in rows], more

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        parts = await self._tables.fetch(PARTS_OF_FILE, file_id)
        for (content_id,) in parts or [(file_id,)]:
            async for piece in self._read(content_id, "antiphon_files", file_id):
                yield piece

    def part_content(self, part_id: str) -> AsyncIterator[bytes]:
        return self._read(part_id, "antiphon_upload_parts", part_id)

    async def delete(self, owner: str, file_id: str) -> bool:
        """Delete a file, also from vector stores; return whether it existed."""
        return bool(await self._delete(f"id = $1 AND owner = $2 AND {ALIVE}", file_id, owner))

    async def sweep(self) -> None:
        """Delete expired files and abandoned uploads."""
        await self._pieces.delete_abandoned()
        while await self._delete(_EXPIRED) == _EXPIRED_FILES:
            pass
        await self.vector_stores.sweep()
        await self.uploads.sweep()
        await self._pieces.delete_removed()
        if self.attachments:
            await self.attachments.sweep()
        await self._objects.sweep()

    async def _read(self, content_id: str, table: str, row_id: str) -> AsyncIterator[bytes]:
        contents = self._objects if await self._objects.has(content_id) else self._pieces
        async for piece in contents.read(content_id, table, row_id):
            yield piece
