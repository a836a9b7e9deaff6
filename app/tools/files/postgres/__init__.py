"""
File store in PostgreSQL (13 or later), shared by any number of replicas.

Tables are created on first use, in the first schema of the user's `search_path`. Embeddings need the extension `vector`
(pgvector).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.storage.object_storage import ObjectStorage
from app.storage.postgres import PostgresTables
from app.storage.tables import Rows, Tables, Transaction, execute
from app.tools.files import VectorsUnsupported
from app.tools.files.contents import Pieces
from app.tools.files.files_sql import SQLFileStore
from app.tools.files.postgres.index import PostgresIndex
from app.tools.files.postgres.schema import POSTGRES_NAMES, NoVectorsError, PostgresDatabase, storable
from app.tools.files.vector_stores.records import Job, Query, TextChunk
from app.tools.files.vector_stores.sql import HELD, QUEUES, FoundChunk, SQLVectorStores


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


SWEPT_CHUNKS = 500  # per transaction

_DELETE_CHUNKS = f"""
DELETE FROM antiphon_chunks WHERE (file, number) IN (
    SELECT file, number FROM antiphon_chunks
    WHERE file = ANY (ARRAY (SELECT chunks FROM antiphon_removed WHERE number = ANY ($1))) LIMIT {SWEPT_CHUNKS}
) RETURNING 1
"""


class PostgresPieces(Pieces):
    WRITE = """
    WITH upload AS (
        INSERT INTO antiphon_uploads VALUES ($1, {moment}) ON CONFLICT (file) DO UPDATE SET touched = excluded.touched
    )
    INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3)
    """

    def _delete_chunks(self, rows: Sequence[int]) -> Transaction[bool]:
        return len((yield execute(_DELETE_CHUNKS, rows))) < SWEPT_CHUNKS


# Several candidates, since other processes may be claiming the first ones. In an array, so that the planner uses the
# primary key regardless of its statistics.
_NEXT = f"""
SELECT number FROM antiphon_store_files AS entries
WHERE number = ANY (ARRAY (
    {QUEUES}
    SELECT oldest.number FROM queues LEFT JOIN antiphon_turns USING (queue)
    CROSS JOIN LATERAL (
        SELECT number FROM antiphon_store_files AS waiting
        WHERE status = 'in_progress' AND waiting.queue = queues.queue AND claimed_until <= clock_timestamp()
        ORDER BY number LIMIT 20
    ) AS oldest
    WHERE NOT queue = ANY ($1) ORDER BY served NULLS FIRST, oldest.number LIMIT 40
)) AND status = 'in_progress' AND claimed_until <= clock_timestamp()
ORDER BY (SELECT served FROM antiphon_turns AS turns WHERE turns.queue = entries.queue) NULLS FIRST, number
LIMIT 1 FOR UPDATE SKIP LOCKED
"""
_CLAIM = f"""
WITH claimed AS (
    UPDATE antiphon_store_files
    SET claim = $2, claimed_until = clock_timestamp() + make_interval(secs => $3), attempts = attempts + 1
    WHERE number = ({_NEXT})
    RETURNING number, attempts, queue, key, store, id, max_tokens, overlap
), turn AS (
    INSERT INTO antiphon_turns SELECT queue, clock_timestamp() FROM claimed
    ON CONFLICT (queue) DO UPDATE SET served = excluded.served
)
SELECT claimed.*, filename, bytes FROM claimed JOIN antiphon_files USING (id)
"""
_COMPLETE = f"""
UPDATE antiphon_store_files
SET status = 'completed', claim = NULL, chunks = $3, words = $4, usage_bytes = $5, embeddings = $6
WHERE {HELD} RETURNING 1
"""


class PostgresVectorStores(SQLVectorStores):
    CANCEL_FILES = """
    WITH cancelled AS (
        UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress'
        RETURNING number
    )
    INSERT INTO antiphon_removed (chunks) SELECT number FROM cancelled
    """
    FAIL = f"""
    WITH failed AS (
        UPDATE antiphon_store_files SET status = 'failed', claim = NULL, error_code = $3, error_message = $4
        WHERE {HELD} RETURNING number
    )
    INSERT INTO antiphon_removed (chunks) SELECT number FROM failed
    """

    def __init__(self, database: PostgresDatabase, tables: Tables) -> None:
        super().__init__(tables)
        self._index = PostgresIndex(database)

    async def delete_chunks(self, entries: Sequence[Sequence[object]]) -> None:
        """Triggers record removals, and the file store's `sweep` deletes the chunks."""

    async def _text_of(self, store_id: str, file: int) -> list[str]:
        return await self._index.text(file)

    async def _found(
        self, store_id: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        return await self._index.search(store_id, search_query, limit, files)

    async def _claim(self, excluded: list[str], claim: str, lease: float) -> Rows:
        return await self._tables.execute(_CLAIM, excluded, claim, lease)

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        stored = await self._index.insert(job, chunks, model)
        if stored is None:
            return False
        values = (stored.chunks, stored.words, stored.bytes, stored.embeddings)
        return bool(await self._tables.execute(_COMPLETE, job.row, job.claim, *values))
