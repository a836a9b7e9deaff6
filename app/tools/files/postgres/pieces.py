from __future__ import annotations

from app.storage.migration import Connection
from app.tools.files.contents.pieces import Pieces
from app.tools.files.postgres.database import PostgresDatabase
from app.tools.files.tables import FileTables

_ERASED_ROWS = 100  # `antiphon_removed` rows per transaction
SWEPT_PIECES = 64  # per transaction
SWEPT_CHUNKS = 500

_WRITE = """
WITH upload AS (
    INSERT INTO antiphon_uploads VALUES ($1, clock_timestamp())
    ON CONFLICT (file) DO UPDATE SET touched = excluded.touched
)
INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3)
"""
_DISCARD = """
WITH upload AS (DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file)
INSERT INTO antiphon_removed (content) SELECT file FROM upload
"""
_REMOVED = f"""
SELECT number, content, chunks FROM antiphon_removed ORDER BY number LIMIT {_ERASED_ROWS} FOR UPDATE SKIP LOCKED
"""
_ERASE_PIECES = f"""
DELETE FROM antiphon_pieces WHERE (file, number) IN (
    SELECT file, number FROM antiphon_pieces WHERE file = ANY ($1) LIMIT {SWEPT_PIECES}
) RETURNING 1
"""
_ERASE_CHUNKS = f"""
DELETE FROM antiphon_chunks WHERE (file, number) IN (
    SELECT file, number FROM antiphon_chunks WHERE file = ANY ($1) LIMIT {SWEPT_CHUNKS}
) RETURNING 1
"""


class PostgresPieces(Pieces):
    def __init__(self, database: PostgresDatabase, tables: FileTables) -> None:
        super().__init__(tables)
        self._db = database

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        await self._db.fetch(_WRITE, content_id, number, data)

    async def discard(self, content_id: str) -> None:
        await self._db.fetch(_DISCARD, content_id)
        await delete_removed(self._db)


async def delete_removed(db: PostgresDatabase) -> None:
    while await db.transaction(_delete_some):
        pass


async def _delete_some(connection: Connection) -> bool:
    removed = await connection.fetch(_REMOVED)
    if not removed:
        return False
    contents = [content for _, content, _ in removed if content is not None]
    chunks = [file for _, _, file in removed if file is not None]
    pieces = await connection.fetch(_ERASE_PIECES, contents)
    erased = await connection.fetch(_ERASE_CHUNKS, chunks)
    if len(pieces) < SWEPT_PIECES and len(erased) < SWEPT_CHUNKS:
        numbers = [number for number, _, _ in removed]
        await connection.execute("DELETE FROM antiphon_removed WHERE number = ANY ($1)", numbers)
    return True
