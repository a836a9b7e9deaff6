"""Vector stores in SQLite: records in the file database, chunks in an index file per store."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from app.storage.migration import UnpreparedError
from app.storage.sqlite import Database, in_sqlite, query
from app.storage.tables import Rows, Statement, Steps
from app.tools.files import FilesUnavailable
from app.tools.files.sqlite.index import Index, delete_index
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

T = TypeVar("T")
logger = logging.getLogger(__name__)

SQLITE_NAMES = {
    "antiphon_vector_stores": "stores",
    "antiphon_file_batches": "batches",
    "{row}": "row",
    "{identity}": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "bytea": "BLOB",
    "{moment}": "{now}",
}
_ONE_OF = "IN (SELECT value FROM json_each($1))"
_NEXT = f"""
{in_sqlite(QUEUES, SQLITE_NAMES)}, oldest AS (
    SELECT queue, (
        SELECT row FROM store_files AS files
        WHERE status = 'in_progress' AND files.queue = queues.queue AND claimed_until <= $2
        ORDER BY row LIMIT 1
    ) AS row
    FROM queues WHERE NOT queue {_ONE_OF}
)
SELECT row FROM oldest LEFT JOIN turns USING (queue)
WHERE row IS NOT NULL ORDER BY coalesce(served, 0), row LIMIT 1
"""
_CLAIM = f"""
UPDATE store_files SET claim = $3, claimed_until = $4, attempts = attempts + 1 WHERE row = ({_NEXT})
RETURNING row, attempts, queue, key, store, id, max_tokens, overlap,
    (SELECT filename FROM files WHERE files.id = store_files.id),
    (SELECT bytes FROM files WHERE files.id = store_files.id)
"""
_INSERT_FILE = """
INSERT INTO antiphon_store_files (store, batch, id, key, attributes, max_tokens, overlap, queue, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, CAST({now} AS bigint))
"""
_DIALECT = SQLDialect(
    one_of=_ONE_OF,
    as_list=json.dumps,
    until="{now} + $3",
    cancel_files="UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress'",
)


class SQLiteVectorStores(SQLVectorStores):
    def __init__(self, db: Database, tables: FileTables, clock: Callable[[], float]) -> None:
        super().__init__(tables, _DIALECT)
        self._db = db
        self._clock = clock
        self._folder = db.path.with_name(f"{db.path.name}.indexes")
        self._threads = ThreadPoolExecutor(4, "antiphon-index")

    async def delete(self, owner: str, store_id: str) -> bool:
        deleted = await super().delete(owner, store_id)
        if deleted:
            await self._in_thread(lambda: delete_index(self._path(store_id)))
        return deleted

    def _insert_files(self, store: VectorStore, files: Sequence[NewStoreFile], batch: int | None) -> Steps[None]:
        for file in files:
            attributes, strategy = encode_fields(file.attributes), file.strategy
            values = (store.id, batch, file.id, file.key, attributes, strategy.max_tokens, strategy.overlap)
            yield Statement(_INSERT_FILE, (*values, store.owner))

    async def delete_chunks(self, entries: Rows) -> None:
        for store_id, row in entries:
            await self._in_thread(partial(self._index(store_id).remove, row))

    async def _text_of(self, store_id: str, file: int) -> list[str]:
        return await self._in_thread(lambda: self._index(store_id).text(file))

    async def _found(
        self, store_id: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        return await self._in_thread(lambda: self._index(store_id).search(search_query, limit, files))

    async def claim(self, lease: float, excluded: Collection[str] = ()) -> Job | None:
        now, claim = self._clock(), secrets.token_hex(8)
        waiting = ([*excluded], now)
        if not await self._tables.fetch(_NEXT, *waiting):
            return None  # without the write lock

        def steps() -> Steps[Rows]:
            rows = yield Statement(_CLAIM, (*waiting, claim, now + lease))
            for row in rows:
                yield Statement("INSERT OR REPLACE INTO antiphon_turns VALUES ($1, $2)", (row[2], now))
            return rows

        rows = await self._tables.run(steps)
        return job_of(rows[0], claim) if rows else None

    async def complete(self, job: Job, chunks: Iterable[TextChunk], model: str = "") -> bool:
        statement = "SELECT row FROM store_files WHERE store = ?"
        alive = {row for (row,) in await self._db.read(lambda db: query(db, statement, (job.store_id,)))}
        if job.row not in alive:
            return False
        index = self._index(job.store_id)
        size = await self._in_thread(lambda: index.replace(job.row, chunks, model, alive))
        changes = "status = 'completed', claim = NULL, usage_bytes = :size"
        completed = await self._update_claimed(job, changes, size=size)
        if not completed:
            await self._in_thread(lambda: index.remove(job.row))
        return completed

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        changes = "status = 'failed', claim = NULL, error_code = :code, error_message = :message"
        if await self._update_claimed(job, changes, code=code, message=message):
            await self._in_thread(lambda: self._index(job.store_id).remove(job.row))  # left by an attempt that died

    async def sweep(self) -> None:
        """Delete expired stores' files, and deleted stores' indexes."""
        now = self._clock()
        statement = f"""
            DELETE FROM store_files WHERE store IN (
                SELECT id FROM stores WHERE expires_days IS NOT NULL AND last_active_at + expires_days * {DAY} <= ?
            ) RETURNING store, row
        """
        await self.delete_chunks(await self._db.write(lambda db: query(db, statement, (now,))))
        await self._db.write(lambda db: query(db, "DELETE FROM turns WHERE served <= ?", (now - DAY,)))
        # The indexes are listed before the stores are read: a store missing afterwards was deleted, permanently. An
        # empty store's index is retained, since files can be added at any time, and other processes may have it open.
        indexes = await self._in_thread(lambda: [*self._folder.glob("*.db")])
        stores = await self._db.read(lambda db: {store for (store,) in query(db, "SELECT id FROM stores")})
        for path in indexes:
            if path.stem not in stores:
                await self._in_thread(partial(delete_index, path))

    async def aclose(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def _update_claimed(self, job: Job, changes: str, **values: object) -> bool:
        where = "row = :row AND claim = :claim AND status = 'in_progress'"
        statement = f"UPDATE store_files SET {changes} WHERE {where} RETURNING row"
        values |= {"row": job.row, "claim": job.claim}
        return bool(await self._db.write(lambda db: query(db, statement, values)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (apsw.Error, OSError, UnpreparedError) as error:
            logger.error("vector index unavailable", extra={"error": type(error).__name__, "reason": str(error)})
            raise FilesUnavailable from None

    def _index(self, store_id: str) -> Index:
        return Index(self._path(store_id))

    def _path(self, store_id: str) -> Path:
        return self._folder / f"{store_id}.db"
