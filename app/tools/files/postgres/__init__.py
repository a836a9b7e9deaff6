"""
File store in PostgreSQL (13 or later), shared by any number of replicas.

Tables are created on first use, in the first schema of the user's `search_path`. Embeddings need the extension `vector`
(pgvector).
"""

from __future__ import annotations

from app.storage.object_storage import ObjectStorage
from app.storage.postgres import PostgresTables
from app.tools.files.postgres.schema import POSTGRES_NAMES, PostgresDatabase, storable
from app.tools.files.postgres.vector_stores import PostgresVectorStores
from app.tools.files.records import FileStore
from app.tools.files.records.contents import SWEPT_CHUNKS


class PostgresFileStore(FileStore):
    """Expiry and claims use the database's clock."""

    WRITE_PIECE = """
    WITH upload AS (
        INSERT INTO antiphon_uploads VALUES ($1, {moment}) ON CONFLICT (file) DO UPDATE SET touched = excluded.touched
    )
    INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3)
    """
    DELETE_CHUNKS = f"""
    DELETE FROM antiphon_chunks WHERE (file, number) IN (
        SELECT file, number FROM antiphon_chunks
        WHERE file = ANY (ARRAY (SELECT chunks FROM antiphon_removed WHERE number = ANY ($1))) LIMIT {SWEPT_CHUNKS}
    ) RETURNING 1
    """

    vector_stores: PostgresVectorStores

    def __init__(self, database: PostgresDatabase, storage: ObjectStorage | None = None) -> None:
        super().__init__(PostgresTables(database, POSTGRES_NAMES, storable), storage)
        self._db = database
        self.vector_stores = PostgresVectorStores(database, self._tables)

    @classmethod
    def from_url(cls, url: str, storage: ObjectStorage | None = None) -> PostgresFileStore:
        """Connects on first use. Raises `ValueError`."""
        return cls(PostgresDatabase(url), storage)

    async def _delete(self, condition: str, *values: object) -> int:
        # Triggers mark the content as removed.
        return len(await self._tables.execute(f"DELETE FROM antiphon_files WHERE {condition} RETURNING 1", *values))

    async def prepare_vectors(self) -> None:
        await self._db.prepare_vectors()

    async def check(self) -> None:
        await self._db.check()
        await self._objects.check()

    async def aclose(self) -> None:
        await self._db.aclose()
