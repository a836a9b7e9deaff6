"""
File store in PostgreSQL (13 or later), shared by any number of replicas.

Tables are created on first use, in the first schema of the user's `search_path`. Embeddings need the extension `vector`
(pgvector).
"""

from __future__ import annotations

from app.storage import Outage
from app.storage.object_storage import ObjectStorage
from app.storage.postgres import PostgresTables, read_postgres_url
from app.storage.tables import Connection
from app.tools.files import FilesUnavailable
from app.tools.files.postgres.schema import POSTGRES_NAMES, migrate_files, storable
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

    def __init__(self, url: str, storage: ObjectStorage | None = None) -> None:
        address = read_postgres_url(url, timeout=30.0)
        outage = Outage(f"the file store in PostgreSQL at {address.name}", FilesUnavailable, FilesUnavailable)
        tables = PostgresTables(address, POSTGRES_NAMES, prepare=self._migrate, outage=outage, storable=storable)
        super().__init__(tables, storage)
        self.vector_stores = PostgresVectorStores(tables)

    @classmethod
    def from_url(cls, url: str, storage: ObjectStorage | None = None) -> PostgresFileStore:
        """Connects on first use. Raises `ValueError`."""
        return cls(url, storage)

    async def _delete(self, condition: str, *values: object) -> int:
        # Triggers mark the content as removed.
        return len(await self._tables.execute(f"DELETE FROM antiphon_files WHERE {condition} RETURNING 1", *values))

    async def _migrate(self, connection: Connection) -> None:
        self.vector_stores.has_vectors = False  # the tables may have been dropped
        await migrate_files(connection)
