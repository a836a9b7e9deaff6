"""The part of a `FileStore` that is the same in the tables of SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

from app.storage.tables import Steps
from app.tools.files import File, Page
from app.tools.files.batches_sql import SQLBatches
from app.tools.files.multipart_sql import ALIVE, PARTS_OF_FILE, STORED_BYTES, SQLUploads, add_file, within_limit
from app.tools.files.tables import FileTables, listed

_FILE = "SELECT id, owner, filename, purpose, bytes, created_at, expires_at FROM antiphon_files"


class SQLFileStore:
    """The files, and the uploads and batches beside them."""

    def __init__(self, tables: FileTables) -> None:
        self._tables = tables
        self.uploads = SQLUploads(tables)
        self.batches = SQLBatches(tables)

    async def add(self, file: File, limit: int | None = None) -> bool:
        def steps() -> Steps[bool]:
            if not (yield from within_limit(self._tables, file.owner, file.bytes, limit)):
                return False
            yield from add_file(file)
            return True

        return await self._tables.run(steps)

    async def stored_bytes(self, owner: str) -> int:
        return int((await self._tables.fetch(STORED_BYTES, owner))[0][0])

    async def file(self, owner: str, file_id: str) -> File | None:
        rows = await self._tables.fetch(f"{_FILE} WHERE id = $1 AND owner = $2 AND {ALIVE}", file_id, owner)
        return File(*rows[0]) if rows else None

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        where = f"owner = $1 AND {ALIVE} AND (CAST($2 AS text) IS NULL OR purpose = $2)"
        rows, more = await listed(self._tables, _FILE, "antiphon_files", where, (owner, purpose), page)
        return [File(*row) for row in rows], more

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        parts = await self._tables.fetch(PARTS_OF_FILE, file_id)
        for (content_id,) in parts or [(file_id,)]:
            async for piece in self._pieces(content_id, "antiphon_files", file_id):
                yield piece

    def part_content(self, part_id: str) -> AsyncIterator[bytes]:
        return self._pieces(part_id, "antiphon_upload_parts", part_id)

    async def _pieces(self, content_id: str, table: str, row_id: str) -> AsyncIterator[bytes]:
        """Yield the pieces of some content, as long as a table has the row that it belongs to."""
        exists = f"EXISTS (SELECT 1 FROM {table} WHERE id = $3)"
        statement = f"SELECT data FROM antiphon_pieces WHERE file = $1 AND number = $2 AND {exists}"
        for number in count():
            rows = await self._tables.fetch(statement, content_id, number, row_id)
            if not rows:
                return
            yield rows[0][0]
