from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence

from app.storage.tables import Statement, Steps
from app.tools.files.postgres.database import PostgresDatabase, storable
from app.tools.files.postgres.index import PostgresIndex
from app.tools.files.tables import FileTables
from app.tools.files.vector_stores.records import (
    DAY,
    ErrorCode,
    Job,
    NewStoreFile,
    Query,
    TextChunk,
    VectorStore,
)
from app.tools.files.vector_stores.rows import encode_fields
from app.tools.files.vector_stores.sql import QUEUES, FoundChunk, SQLDialect, SQLVectorStores, job_of

SWEPT_FILES = 100  # per statement

_INSERT_FILES = """
INSERT INTO antiphon_store_files (store, batch, queue, created_at, id, key, attributes, max_tokens, overlap)
SELECT $1, $2, $3, CAST({now} AS bigint), id, key, attributes, max_tokens, overlap
FROM unnest($4::text[], $5::text[], $6::text[], $7::integer[], $8::integer[])
    AS added (id, key, attributes, max_tokens, overlap)
"""
_CANCEL_FILES = """
WITH cancelled AS (
    UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress' RETURNING number
)
INSERT INTO antiphon_removed (chunks) SELECT number FROM cancelled
"""
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
_HELD = "number = $1 AND claim = $2 AND status = 'in_progress'"
_COMPLETE = f"""
UPDATE antiphon_store_files
SET status = 'completed', claim = NULL, chunks = $3, words = $4, usage_bytes = $5, embeddings = $6
WHERE {_HELD} RETURNING 1
"""
_FAIL = f"""
WITH failed AS (
    UPDATE antiphon_store_files SET status = 'failed', claim = NULL, error_code = $3, error_message = $4
    WHERE {_HELD} RETURNING number
)
INSERT INTO antiphon_removed (chunks) SELECT number FROM failed
"""
_EXPIRED = f"""
DELETE FROM antiphon_store_files WHERE number IN (
    SELECT files.number FROM antiphon_vector_stores AS stores JOIN antiphon_store_files AS files ON store = stores.id
    WHERE expires_days IS NOT NULL AND last_active_at + expires_days * {DAY} <= extract(epoch FROM clock_timestamp())
    LIMIT {SWEPT_FILES} FOR UPDATE OF files SKIP LOCKED
) RETURNING 1
"""
_OLD_TURNS = "DELETE FROM antiphon_turns WHERE served < clock_timestamp() - interval '1 day'"


_DIALECT = SQLDialect(
    one_of="= ANY ($1)",
    as_list=lambda values: [*map(storable, values)],
    until="clock_timestamp() + make_interval(secs => $3)",
    cancel_files=_CANCEL_FILES,
)


class PostgresVectorStores(SQLVectorStores):
    def __init__(self, database: PostgresDatabase, tables: FileTables) -> None:
        super().__init__(tables, _DIALECT)
        self._db = database
        self._index = PostgresIndex(database)

    async def delete_chunks(self, entries: Sequence[Sequence[object]]) -> None:
        """Triggers record removals, and the file store's `sweep` deletes the chunks."""

    async def _text_of(self, store_id: str, file: int) -> list[str]:
        return await self._index.text(file)

    async def _found(
        self, store_id: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        return await self._index.search(store_id, search_query, limit, files)

    def _insert_files(self, store: VectorStore, files: Sequence[NewStoreFile], batch: int | None) -> Steps[None]:
        ids, keys = [file.id for file in files], [file.key for file in files]
        strategies = [file.strategy.max_tokens for file in files], [file.strategy.overlap for file in files]
        attributes = [encode_fields(file.attributes) for file in files]
        yield Statement(_INSERT_FILES, (store.id, batch, store.owner, ids, keys, attributes, *strategies))

    async def claim(self, lease: float, excluded: Collection[str] = ()) -> Job | None:
        claim = secrets.token_hex(8)
        rows = await self._db.fetch(_CLAIM, [*excluded], claim, lease)
        return job_of(rows[0], claim) if rows else None

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        stored = await self._index.insert(job, chunks, model)
        if stored is None:
            return False
        values = (stored.chunks, stored.words, stored.bytes, stored.embeddings)
        return bool(await self._db.fetch(_COMPLETE, job.row, job.claim, *values))

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        await self._db.fetch(_FAIL, job.row, job.claim, code, message)

    async def sweep(self) -> None:
        while len(await self._db.fetch(_EXPIRED)) == SWEPT_FILES:
            pass
        await self._db.fetch(_OLD_TURNS)
