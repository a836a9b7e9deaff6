"""
The file store in PostgreSQL (13 or later): shared by any number of replicas.

    postgresql://[user[:password]@]host[:5432][,host:port]/database

The query may have the options of a store of responses: see `app.stores.postgres`. The tables are created on first use,
all named `antiphon_...`, in the first schema of the user's `search_path`; a store of responses may be in the same
database. Embeddings need the extension `vector` (pgvector). Requires the extras `files` and `postgres`.
"""

from __future__ import annotations

from app.storage.migration import Connection
from app.storage.postgres import PostgresTables
from app.storage.tables import single
from app.tools.files import ABANDONED_AFTER, VectorsUnsupported
from app.tools.files.files_sql import SQLFileStore
from app.tools.files.multipart_sql import ALIVE
from app.tools.files.postgres.database import PostgresDatabase, storable
from app.tools.files.postgres.schema import POSTGRES_WORDS, NoVectorsError
from app.tools.files.postgres.vector_stores import PostgresVectorStores

SWEPT_ROWS = 100  # expired rows that one statement deletes
SWEPT_PIECES = 64  # of content
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


class PostgresFileStore(SQLFileStore):
    """A `FileStore` in PostgreSQL. Times of expiry and of claims are by the clock of the database."""

    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(PostgresTables(database, POSTGRES_WORDS, storable))
        self._db = database
        self.vector_stores = PostgresVectorStores(database, self._tables)

    @classmethod
    def from_url(cls, url: str) -> PostgresFileStore:
        """Create the store for a `postgresql://` URL; the first use connects. Raises `ValueError`."""
        return cls(PostgresDatabase(url))

    async def write(self, file_id: str, number: int, data: bytes) -> None:
        await self._db.fetch(_WRITE, file_id, number, data)

    async def discard(self, file_id: str) -> None:
        await self._db.fetch(_DISCARD, file_id)
        await self._erase()

    async def delete(self, owner: str, file_id: str) -> bool:
        statement = f"DELETE FROM antiphon_files WHERE id = $1 AND owner = $2 AND {ALIVE} RETURNING 1"
        return bool(await self._tables.run(lambda: single(statement, file_id, owner)))

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
