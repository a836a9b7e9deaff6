"""Vector stores in PostgreSQL: their records, and the queue of files to index."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.storage.migration import Connection
from app.tools.files import Page
from app.tools.files.postgres.database import PostgresDatabase, storable
from app.tools.files.postgres.index import PostgresIndex
from app.tools.files.vector_stores.records import (
    DAY,
    Attributes,
    Candidate,
    ChunkingStrategy,
    ErrorCode,
    FileBatch,
    Job,
    NewStoreFile,
    Query,
    StoreFile,
    TextChunk,
    UnknownFiles,
    VectorStore,
)
from app.tools.files.vector_stores.rows import decode_fields, encode_fields, file_batch_of, store_file_of, store_of

SWEPT_FILES = 100  # of expired vector stores, that one statement removes

_STATUSES = ("in_progress", "completed", "failed", "cancelled")
_COUNTS = ", ".join(f"count(*) FILTER (WHERE files.status = '{status}')" for status in _STATUSES)
_STORE = f"""
SELECT stores.id, owner, name, description, metadata, expires_days, stores.created_at, last_active_at,
    {_COUNTS}, coalesce(sum(usage_bytes), 0)::bigint
FROM antiphon_vector_stores AS stores LEFT JOIN antiphon_store_files AS files ON files.store = stores.id
"""
_STORE_FILE = """
SELECT id, store, (SELECT filename FROM antiphon_files AS files WHERE files.id = antiphon_store_files.id), created_at,
    status, error_code, error_message, usage_bytes, attributes, max_tokens, overlap, number
FROM antiphon_store_files
"""
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
INSERT INTO antiphon_store_files (store, id, batch, created_at, attributes, max_tokens, overlap)
SELECT $1, id, $2, {_NOW}, attributes, max_tokens, overlap
FROM unnest($3::text[], $4::text[], $5::integer[], $6::integer[]) AS added (id, attributes, max_tokens, overlap)
"""
_BATCH = f"""
SELECT batches.id, batches.store, batches.created_at, cancelled, {_COUNTS}
FROM antiphon_file_batches AS batches LEFT JOIN antiphon_store_files AS files ON batch = batches.number
WHERE batches.id = $1 AND batches.store = $2 GROUP BY batches.number
"""
_CANCEL = "UPDATE antiphon_file_batches SET cancelled = true WHERE id = $1 AND store = $2 RETURNING number"
_CANCEL_FILES = """
WITH cancelled AS (
    UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress' RETURNING number
)
INSERT INTO antiphon_removed (chunks) SELECT number FROM cancelled
"""
_CLAIM = """
UPDATE antiphon_store_files
SET claim = $1, claimed_until = clock_timestamp() + make_interval(secs => $2), attempts = attempts + 1
WHERE number = (
    SELECT number FROM antiphon_store_files WHERE status = 'in_progress' AND claimed_until <= clock_timestamp()
    ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING number, attempts, store, id, max_tokens, overlap,
    (SELECT filename FROM antiphon_files AS files WHERE files.id = antiphon_store_files.id),
    (SELECT bytes FROM antiphon_files AS files WHERE files.id = antiphon_store_files.id)
"""
_HELD = "number = $1 AND claim = $2 AND status = 'in_progress'"
_UNTIL = "claimed_until = clock_timestamp() + make_interval(secs => $3)"
_RENEW = f"UPDATE antiphon_store_files SET {_UNTIL} WHERE {_HELD} RETURNING 1"
_RELEASE = f"""
UPDATE antiphon_store_files SET claim = NULL, {_UNTIL}, attempts = attempts - CASE WHEN $3 > 0 THEN 0 ELSE 1 END
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
_CHANGEABLE = ("name", "metadata", "expires_days", "last_active_at")


class PostgresVectorStores:
    """The `VectorStoreRecords` of a `PostgresFileStore`."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._db = database
        self._index = PostgresIndex(database)

    async def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        """Insert a new store with its first files, which are queued for indexing."""
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

    async def get(self, owner: str, store_id: str) -> VectorStore | None:
        """Return a store, or None."""
        statement = f"{_STORE} WHERE stores.id = $1 AND owner = $2 GROUP BY stores.number"
        rows = await self._db.fetch(statement, store_id, owner)
        return store_of(rows[0]) if rows else None

    async def stores(self, owner: str, page: Page) -> tuple[list[VectorStore], bool]:
        select = "SELECT id FROM antiphon_vector_stores"
        ids, more = await self._db.listed(select, "antiphon_vector_stores", "owner = $1", (owner,), page)
        statement = f"{_STORE} WHERE stores.id = ANY ($1) GROUP BY stores.number"
        stores = {row[0]: store_of(row) for row in await self._db.fetch(statement, [store_id for (store_id,) in ids])}
        return [stores[store_id] for (store_id,) in ids if store_id in stores], more

    async def update(self, owner: str, store_id: str, changes: Mapping[str, Any]) -> bool:
        values = dict(changes)
        if "metadata" in values:
            values["metadata"] = encode_fields(values["metadata"])
        names = [name for name in _CHANGEABLE if name in values]
        assignments = ", ".join(f"{name} = ${index}" for index, name in enumerate(names, 3)) or "id = id"
        statement = f"UPDATE antiphon_vector_stores SET {assignments} WHERE id = $1 AND owner = $2 RETURNING 1"
        return bool(await self._db.fetch(statement, store_id, owner, *(values[name] for name in names)))

    async def delete(self, owner: str, store_id: str) -> bool:
        """Delete a store, but not its files; return whether it existed."""
        statement = "DELETE FROM antiphon_vector_stores WHERE id = $1 AND owner = $2 RETURNING 1"
        return bool(await self._db.fetch(statement, store_id, owner))

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

    async def file(self, store: VectorStore, file_id: str) -> StoreFile | None:
        """Return a file of a store, or None."""
        rows = await self._db.fetch(f"{_STORE_FILE} WHERE store = $1 AND id = $2", store.id, file_id)
        return store_file_of(rows[0]) if rows else None

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        where = "store = $1 AND ($2::text IS NULL OR status = $2)"
        values: tuple[object, ...] = (store.id, status)
        if batch_id is not None:
            where += " AND batch = (SELECT number FROM antiphon_file_batches AS batches WHERE batches.id = $3)"
            values += (batch_id,)
        rows, more = await self._db.listed(_STORE_FILE, "antiphon_store_files", where, values, page)
        return [store_file_of(row) for row in rows], more

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool:
        """Change a file's attributes; return whether it is in the store."""
        statement = "UPDATE antiphon_store_files SET attributes = $3 WHERE store = $1 AND id = $2 RETURNING 1"
        return bool(await self._db.fetch(statement, store.id, file_id, encode_fields(attributes)))

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        statement = "DELETE FROM antiphon_store_files WHERE store = $1 AND id = $2 RETURNING 1"
        return bool(await self._db.fetch(statement, store.id, file_id))

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        statement = "SELECT number FROM antiphon_store_files WHERE store = $1 AND id = $2 AND status = 'completed'"
        rows = await self._db.fetch(statement, store.id, file_id)
        return await self._index.text(rows[0][0]) if rows else []

    async def batch(self, store: VectorStore, batch_id: str) -> FileBatch | None:
        """Return a batch of files, or None."""
        rows = await self._db.fetch(_BATCH, batch_id, store.id)
        return file_batch_of(rows[0]) if rows else None

    async def cancel_batch(self, store: VectorStore, batch_id: str) -> bool:
        async def work(connection: Connection) -> bool:
            number = await connection.fetchval(_CANCEL, storable(batch_id), store.id)
            if number is not None:
                await connection.execute(_CANCEL_FILES, number)
            return number is not None

        return await self._db.transaction(work)

    async def search(
        self,
        store: VectorStore,
        search_query: Query,
        limit: int,
        matches: Callable[[Attributes], bool] | None = None,
    ) -> list[Candidate]:
        files = None if matches is None else await self._matching(store, matches)
        if files is not None and not files:
            return []
        found = await self._index.search(store.id, search_query, limit, files)
        numbers = [*{chunk.key.file for chunk in found}]
        statement = f"{_STORE_FILE} WHERE number = ANY ($1) AND store = $2 AND status = 'completed'"
        # Files that were removed meanwhile have no row here.
        completed = {row[-1]: store_file_of(row) for row in await self._db.fetch(statement, numbers, store.id)}
        return [
            Candidate(f"{key.file}:{key.number}", completed[key.file], text, text_score, similarity)
            for key, text, text_score, similarity in found
            if key.file in completed
        ]

    async def _matching(self, store: VectorStore, matches: Callable[[Attributes], bool]) -> Sequence[int]:
        statement = "SELECT number, attributes FROM antiphon_store_files WHERE store = $1 AND status = 'completed'"
        rows = await self._db.fetch(statement, store.id)
        return [number for number, text in rows if matches(decode_fields(text) or {})]

    async def claim(self, lease: float) -> Job | None:
        claim = secrets.token_hex(8)
        rows = await self._db.fetch(_CLAIM, claim, lease)
        if not rows:
            return None
        number, attempt, store, file_id, max_tokens, overlap, filename, size = rows[0]
        return Job(number, claim, attempt, store, file_id, filename, size, ChunkingStrategy(max_tokens, overlap))

    async def renew(self, job: Job, lease: float) -> bool:
        return bool(await self._db.fetch(_RENEW, job.row, job.claim, lease))

    async def release(self, job: Job, delay: float = 0) -> None:
        await self._db.fetch(_RELEASE, job.row, job.claim, delay)

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


async def _first_missing(connection: Connection, store: VectorStore, files: Sequence[NewStoreFile]) -> int | None:
    """Return the position of the first file that the store's owner does not have; None if there is none."""
    wanted = [str(storable(file.id)) for file in files]
    existing = {file_id for (file_id,) in await connection.fetch(_EXISTING, wanted, store.owner)}
    return next((index for index, file_id in enumerate(wanted) if file_id not in existing), None)


async def _insert_files(
    connection: Connection, store: VectorStore, files: Sequence[NewStoreFile], batch: int | None
) -> None:
    """Insert new rows; deleting the old ones cancels jobs that still read the files under them."""
    ids = [file.id for file in files]
    await connection.execute("DELETE FROM antiphon_store_files WHERE store = $1 AND id = ANY ($2)", store.id, ids)
    strategies = [file.strategy.max_tokens for file in files], [file.strategy.overlap for file in files]
    await connection.execute(
        _INSERT_FILES, store.id, batch, ids, [encode_fields(file.attributes) for file in files], *strategies
    )
