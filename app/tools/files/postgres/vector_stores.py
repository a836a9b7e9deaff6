"""Vector stores in PostgreSQL: their records, and the queue of files to index."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence

from app.storage.migration import Connection
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
    UnknownFiles,
    VectorStore,
)
from app.tools.files.vector_stores.rows import encode_fields
from app.tools.files.vector_stores.sql import QUEUES, FoundChunk, ListParameter, SQLVectorStores, job_of

SWEPT_FILES = 100  # of expired vector stores, that one statement removes

_NOW = "extract(epoch FROM clock_timestamp())::bigint"
_INSERT_STORE = """
INSERT INTO antiphon_vector_stores
    (id, owner, name, description, metadata, expires_days, created_at, last_active_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
_INSERT_BATCH = f"""
INSERT INTO antiphon_file_batches (id, store, created_at) VALUES ($1, $2, {_NOW}) RETURNING number
"""
# Locked, so that none is deleted before the transaction ends.
_EXISTING = """
SELECT id FROM antiphon_files WHERE id = ANY ($1) AND owner = $2
AND (expires_at IS NULL OR expires_at > extract(epoch FROM clock_timestamp())) FOR KEY SHARE
"""
_INSERT_FILES = f"""
INSERT INTO antiphon_store_files (store, batch, queue, created_at, id, key, attributes, max_tokens, overlap)
SELECT $1, $2, $3, {_NOW}, id, key, attributes, max_tokens, overlap
FROM unnest($4::text[], $5::text[], $6::text[], $7::integer[], $8::integer[])
    AS added (id, key, attributes, max_tokens, overlap)
"""
_CANCEL = "UPDATE antiphon_file_batches SET cancelled = true WHERE id = $1 AND store = $2 RETURNING number"
_CANCEL_FILES = """
WITH cancelled AS (
    UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress' RETURNING number
)
INSERT INTO antiphon_removed (chunks) SELECT number FROM cancelled
"""
# Of several, since other processes may be claiming the first ones. In an array, so that they are found by their primary
# key, whatever the planner knows of the table.
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
_UNTIL = "claimed_until = clock_timestamp() + make_interval(secs => $3)"
_RENEW = f"UPDATE antiphon_store_files SET {_UNTIL} WHERE {_HELD} RETURNING 1"
_RELEASE = f"""
UPDATE antiphon_store_files SET claim = NULL, {_UNTIL}, attempts = attempts - $4
WHERE {_HELD}
"""
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


class PostgresVectorStores(SQLVectorStores):
    """The `VectorStoreRecords` of a `PostgresFileStore`."""

    def __init__(self, database: PostgresDatabase, tables: FileTables) -> None:
        super().__init__(tables, ListParameter("= ANY ($1)", list))
        self._db = database
        self._index = PostgresIndex(database)

    async def forget(self, entries: Sequence[Sequence[object]]) -> None:
        """Do nothing: the database records what it removes, and `sweep` of the file store erases it."""

    async def _text_of(self, store_id: str, file: int) -> list[str]:
        return await self._index.text(file)

    async def _found(
        self, store_id: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        return await self._index.search(store_id, search_query, limit, files)

    async def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        values = (
            store.id,
            store.owner,
            storable(store.name),
            storable(store.description),
            encode_fields(store.metadata),
            store.expires_days,
            store.created_at,
            store.last_active_at,
        )

        async def work(connection: Connection) -> int | None:
            if (missing := await _first_missing(connection, store, files)) is None:
                await connection.execute(_INSERT_STORE, *values)
                await _insert_files(connection, store, files, None)
            return missing

        if (missing := await self._db.transaction(work)) is not None:
            raise UnknownFiles(missing)

    async def add(self, store: VectorStore, files: Sequence[NewStoreFile], batch_id: str | None = None) -> None:
        async def work(connection: Connection) -> int | None:
            # Others who add files to this store wait, and a store that was deleted meanwhile gets none.
            active = f"UPDATE antiphon_vector_stores SET last_active_at = {_NOW} WHERE id = $1 RETURNING 1"
            if not await connection.fetch(active, store.id):
                return None
            if (missing := await _first_missing(connection, store, files)) is not None:
                return missing
            batch = None if batch_id is None else await connection.fetchval(_INSERT_BATCH, batch_id, store.id)
            await _insert_files(connection, store, files, batch)
            return None

        if (missing := await self._db.transaction(work)) is not None:
            raise UnknownFiles(missing)

    async def cancel_batch(self, store: VectorStore, batch_id: str) -> bool:
        async def work(connection: Connection) -> bool:
            number = await connection.fetchval(_CANCEL, storable(batch_id), store.id)
            if number is not None:
                await connection.execute(_CANCEL_FILES, number)
            return number is not None

        return await self._db.transaction(work)

    async def claim(self, lease: float, excluded: Collection[str] = ()) -> Job | None:
        claim = secrets.token_hex(8)
        rows = await self._db.fetch(_CLAIM, [*excluded], claim, lease)
        return job_of(rows[0], claim) if rows else None

    async def renew(self, job: Job, lease: float) -> bool:
        return bool(await self._db.fetch(_RENEW, job.row, job.claim, lease))

    async def release(self, job: Job, delay: float = 0, *, failed: bool = False) -> None:
        await self._db.fetch(_RELEASE, job.row, job.claim, delay, 0 if failed else 1)

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        stored = await self._index.insert(job, chunks, model)
        if stored is None:
            return False
        values = (stored.chunks, stored.words, stored.bytes, stored.embeddings)
        return bool(await self._db.fetch(_COMPLETE, job.row, job.claim, *values))

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        await self._db.fetch(_FAIL, job.row, job.claim, code, message)

    async def sweep(self) -> None:
        """Remove the files of expired stores."""
        while len(await self._db.fetch(_EXPIRED)) == SWEPT_FILES:
            pass
        await self._db.fetch(_OLD_TURNS)


async def _first_missing(connection: Connection, store: VectorStore, files: Sequence[NewStoreFile]) -> int | None:
    """Return the position of the first file that the store's owner does not have; None if there is none."""
    wanted = [str(storable(file.id)) for file in files]
    existing = {file_id for (file_id,) in await connection.fetch(_EXISTING, wanted, store.owner)}
    return next((index for index, file_id in enumerate(wanted) if file_id not in existing), None)


async def _insert_files(
    connection: Connection, store: VectorStore, files: Sequence[NewStoreFile], batch: int | None
) -> None:
    """Insert new rows; deleting the old ones cancels jobs that still read the files under them."""
    ids, keys = [file.id for file in files], [file.key for file in files]
    await connection.execute("DELETE FROM antiphon_store_files WHERE store = $1 AND id = ANY ($2)", store.id, ids)
    strategies = [file.strategy.max_tokens for file in files], [file.strategy.overlap for file in files]
    attributes = [encode_fields(file.attributes) for file in files]
    await connection.execute(_INSERT_FILES, store.id, batch, store.owner, ids, keys, attributes, *strategies)
