"""
File store in PostgreSQL (13 or later), shared by any number of replicas.

Tables are created on first use, in the first schema of the user's `search_path`. Embeddings need the extension `vector`
(pgvector).
"""

from __future__ import annotations

from app.storage.object_storage import ObjectStorage
from app.storage.postgres import PostgresTables
from app.tools.files import VectorsUnsupported
from app.tools.files.files_sql import SQLFileStore
from app.tools.files.postgres.database import PostgresDatabase, storable
from app.tools.files.postgres.pieces import PostgresPieces
from app.tools.files.postgres.schema import POSTGRES_NAMES, NoVectorsError
from app.tools.files.postgres.vector_stores import PostgresVectorStores


class PostgresFileStore(SQLFileStore):
    """Expiry and claims use the database's clock."""

    vector_stores: PostgresVectorStores

    def __init__(self, database: PostgresDatabase, storage: ObjectStorage | None = None) -> None:
        tables = PostgresTables(database, POSTGRES_NAMES, storable)
        super().__init__(tables, PostgresPieces(tables), storage)
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
        try:
            await self._db.prepare_vectors()
        except NoVectorsError as error:
            raise VectorsUnsupported(str(error)) from None

    async def check(self) -> None:
        await self._db.check()
        await self._objects.check()

    async def aclose(self) -> None:
        await self._db.aclose()
