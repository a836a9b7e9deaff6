"""
The file store in PostgreSQL (13 or later): shared by any number of replicas.

    postgresql://[user[:password]@]host[:5432][,host:port]/database

The query may have the options of a store of responses: see `app.stores.postgres`. The tables are created on first use,
all named `antiphon_...`, in the first schema of the user's `search_path`; a store of responses may be in the same
database. Embeddings need the extension `vector` (pgvector). Requires the extras `files` and `postgres`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

from app.storage.migration import Connection
from app.tools.files import ABANDONED_AFTER, File, Page, VectorsUnsupported
from app.tools.files.batches_sql import SQLBatches
from app.tools.files.multipart_sql import PARTS_OF_FILE, STORED_BYTES, SQLUploads
from app.tools.files.postgres.database import PostgresDatabase
from app.tools.files.postgres.schema import NoVectorsError
from app.tools.files.postgres.tables import PostgresTables
from app.tools.files.postgres.vector_stores import PostgresVectorStores
from app.tools.files.tables import Statement, Steps

SWEPT_ROWS = 100  # expired rows that one statement deletes
SWEPT_PIECES = 64  # of content
SWEPT_CHUNKS = 500

ALIVE = "(expires_at IS NULL OR expires_at > extract(epoch FROM clock_timestamp()))"
_FILE = "SELECT id, owner, filename, purpose, bytes, created_at, expires_at FROM antiphon_files"
_WRITE = """
WITH upload AS (
    INSERT INTO antiphon_uploads VALUES ($1, clock_timestamp())
    ON CONFLICT (file) DO UPDATE SET touched = excluded.touched
)
INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3)
"""
_ADD = """
WITH upload AS (DELETE FROM antiphon_uploads WHERE file = $1)
INSERT INTO antiphon_files (id, owner, filename, purpose, bytes, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_PIECE = "SELECT data FROM antiphon_pieces WHERE file = $1 AND number = $2 AND EXISTS (SELECT FROM {} WHERE id = $3)"
_DISCARD = """
WITH upload AS (DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file)
INSERT INTO antiphon_removed (content) SELECT file FROM upload
"""
# A few at a time, and no locked rows, so that other calls do not wait for long.
_ABANDONED = f"""
WITH upload AS (
    DELETE FROM antiphon_uploads WHERE file IN (
        SELECT file FROM antiphon_uploads WHERE touched <= clock_timestamp() - make_interval(secs => $1)
        LIMIT {SWEPT_ROWS} FOR UPDATE SKIP LOCKED
    ) RETURNING file
)
INSERT INTO antiphon_removed (content) SELECT file FROM upload RETURNING 1
"""
_EXPIRED = f"""
DELETE FROM antiphon_files WHERE number IN (
    SELECT number FROM antiphon_files WHERE expires_at <= extract(epoch FROM clock_timestamp())
    LIMIT {SWEPT_ROWS} FOR UPDATE SKIP LOCKED
) RETURNING 1
"""
_REMOVED = f"""
SELECT number, content, chunks FROM antiphon_removed ORDER BY number LIMIT {SWEPT_ROWS} FOR UPDATE SKIP LOCKED
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


class PostgresFileStore:
    """A `FileStore` in PostgreSQL. Times of expiry and of claims are by the clock of the database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._db = database
        self._tables = PostgresTables(database)
        self.uploads = SQLUploads(self._tables)
        self.batches = SQLBatches(self._tables)
        self.vector_stores = PostgresVectorStores(database, self._tables)

    @classmethod
    def from_url(cls, url: str) -> PostgresFileStore:
        """Create the store for a `postgresql://` URL; the first use connects. Raises `ValueError`."""
        return cls(PostgresDatabase(url))

    async def write(self, file_id: str, number: int, data: bytes) -> None:
        await self._db.fetch(_WRITE, file_id, number, data)

    async def add(self, file: File, limit: int | None = None) -> bool:
        values = (file.id, file.owner, file.filename, file.purpose, file.bytes, file.created_at, file.expires_at)

        def steps() -> Steps[bool]:
            if limit is not None:
                yield from self._tables.lock_owner(file.owner)
                ((stored,),) = yield Statement(STORED_BYTES, (file.owner,))
                if stored + file.bytes > limit:
                    return False
            yield Statement(_ADD, values)
            return True

        return await self._tables.run(steps)

    async def stored_bytes(self, owner: str) -> int:
        return int((await self._tables.fetch(STORED_BYTES, owner))[0][0])

    async def discard(self, file_id: str) -> None:
        await self._db.fetch(_DISCARD, file_id)
        await self._erase()

    async def file(self, owner: str, file_id: str) -> File | None:
        rows = await self._db.fetch(f"{_FILE} WHERE id = $1 AND owner = $2 AND {ALIVE}", file_id, owner)
        return File(*rows[0]) if rows else None

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        where = f"owner = $1 AND {ALIVE} AND ($2::text IS NULL OR purpose = $2)"
        rows, more = await self._db.listed(_FILE, "antiphon_files", where, (owner, purpose), page)
        return [File(*row) for row in rows], more

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        parts = await self._tables.fetch(PARTS_OF_FILE, file_id)
        for (content_id,) in parts or [(file_id,)]:
            async for piece in self._pieces(content_id, "antiphon_files", file_id):
                yield piece

    def part_content(self, part_id: str) -> AsyncIterator[bytes]:
        return self._pieces(part_id, "antiphon_upload_parts", part_id)

    async def _pieces(self, content_id: str, table: str, row_id: str) -> AsyncIterator[bytes]:
        for number in count():
            rows = await self._db.fetch(_PIECE.format(table), content_id, number, row_id)
            if not rows:
                return
            yield rows[0][0]

    async def delete(self, owner: str, file_id: str) -> bool:
        statement = f"DELETE FROM antiphon_files WHERE id = $1 AND owner = $2 AND {ALIVE} RETURNING 1"
        return bool(await self._db.fetch(statement, file_id, owner))

    async def sweep(self) -> None:
        """Delete expired files and abandoned uploads, and the content and chunks of all that was deleted."""
        while len(await self._db.fetch(_ABANDONED, ABANDONED_AFTER)) == SWEPT_ROWS:
            pass
        while len(await self._db.fetch(_EXPIRED)) == SWEPT_ROWS:
            pass
        await self.vector_stores.sweep()
        await self.uploads.sweep()
        await self._erase()

    async def _erase(self) -> None:
        while await self._db.transaction(_erase_some):
            pass

    async def prepare_vectors(self) -> None:
        """Create what embeddings need; raises `VectorsUnsupported` if the extension `vector` cannot be used."""
        try:
            await self._db.prepare_vectors()
        except NoVectorsError as error:
            raise VectorsUnsupported(str(error)) from None

    async def check(self) -> None:
        await self._db.check()

    async def aclose(self) -> None:
        await self._db.aclose()


async def _erase_some(connection: Connection) -> bool:
    """Erase some of what was removed, and return whether there may be more."""
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
