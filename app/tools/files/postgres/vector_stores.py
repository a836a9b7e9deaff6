from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.storage.tables import Rows
from app.tools.files.postgres.database import PostgresDatabase
from app.tools.files.postgres.index import PostgresIndex
from app.tools.files.tables import FileTables
from app.tools.files.vector_stores.records import Job, Query, TextChunk
from app.tools.files.vector_stores.sql import HELD, QUEUES, FoundChunk, SQLVectorStores

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

    def __init__(self, database: PostgresDatabase, tables: FileTables) -> None:
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
