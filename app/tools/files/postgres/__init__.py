"""
File store in PostgreSQL (13 or later), shared by any number of replicas.

Tables are created on first use, in the first schema of the user's `search_path`. Embeddings need the extension `vector`
(pgvector).
"""

from __future__ import annotations

from app.storage.object_storage import ObjectStorage
from app.storage.postgres import PostgresTables
from app.storage.tables import single
from app.tools.files import ABANDONED_AFTER, VectorsUnsupported
from app.tools.files.files_sql import SQLFileStore
from app.tools.files.multipart_sql import ALIVE
from app.tools.files.postgres.database import PostgresDatabase, storable
from app.tools.files.postgres.pieces import PostgresPieces, delete_removed
from app.tools.files.postgres.schema import POSTGRES_NAMES, NoVectorsError
from app.tools.files.postgres.vector_stores import PostgresVectorStores

SWEPT_ROWS = 100

# Small batches, without locked rows, so that other calls do not wait for long.
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


class PostgresFileStore(SQLFileStore):
    """Expiry and claims use the database's clock."""

    def __init__(self, database: PostgresDatabase, storage: ObjectStorage | None = None) -> None:
        tables = PostgresTables(database, POSTGRES_NAMES, storable)
        super().__init__(tables, PostgresPieces(database, tables), storage)
        self._db = database
        self.vector_stores = PostgresVectorStores(database, self._tables)

    @classmethod
    def from_url(cls, url: str, storage: ObjectStorage | None = None) -> PostgresFileStore:
        """Connects on first use. Raises `ValueError`."""
        return cls(PostgresDatabase(url), storage)

    async def delete(self, owner: str, file_id: str) -> bool:
        statement = f"DELETE FROM antiphon_files WHERE id = $1 AND owner = $2 AND {ALIVE} RETURNING 1"
        return bool(await self._tables.run(lambda: single(statement, file_id, owner)))

    async def sweep(self) -> None:
        while len(await self._db.fetch(_ABANDONED, ABANDONED_AFTER)) == SWEPT_ROWS:
            pass
        while len(await self._db.fetch(_EXPIRED)) == SWEPT_ROWS:
            pass
        await self.vector_stores.sweep()
        await self.uploads.sweep()
        await delete_removed(self._db)
        await self._sweep_objects()

    async def prepare_vectors(self) -> None:
        try:
            await self._db.prepare_vectors()
        except NoVectorsError as error:
            raise VectorsUnsupported(str(error)) from None

    async def check(self) -> None:
        await self._db.check()
        await self._objects.check()

    async def aclose(self) -> None:
        await self._db.aclose()
