"""Vector stores in SQLite: their records are in the database of the files, their chunks in one index file per store."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from app.tools.files import FilesUnavailable, Page
from app.tools.files.sqlite.database import Database, listed, query
from app.tools.files.sqlite.index import Index, Match, delete_index, last_change
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

T = TypeVar("T")
logger = logging.getLogger(__name__)

_STORE_COLUMNS = "id, owner, name, description, metadata, expires_days, created_at, last_active_at"
_STATUSES = ("in_progress", "completed", "failed", "cancelled")
_COUNTS = ", ".join(f"coalesce(sum(status = '{status}'), 0)" for status in _STATUSES)
_STORE = f"""
SELECT stores.id, owner, name, description, metadata, expires_days, stores.created_at, last_active_at,
    {_COUNTS.replace("status", "store_files.status")}, coalesce(sum(usage_bytes), 0)
FROM stores LEFT JOIN store_files ON store_files.store = stores.id
"""
_STORE_FILE = """
SELECT id, store, (SELECT filename FROM files WHERE files.id = store_files.id), created_at, status, error_code,
    error_message, usage_bytes, attributes, max_tokens, overlap, row
FROM store_files
"""


class SQLiteVectorStores:
    """The `VectorStoreRecords` of a `SQLiteFileStore`."""

    def __init__(self, db: Database, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock
        self._folder = db.path.with_name(f"{db.path.name}.indexes")
        self._threads = ThreadPoolExecutor(4, "antiphon-index")
        self._cleaned: dict[Path, int] = {}  # time of the last change of each index, when it was cleaned

    async def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> None:
        """Insert a new store with its first files, which are queued for indexing."""
        values = (
            store.id,
            store.owner,
            store.name,
            store.description,
            encode_fields(store.metadata),
            store.expires_days,
            store.created_at,
            store.last_active_at,
        )
        statement = f"INSERT INTO stores ({_STORE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

        def work(db: apsw.Connection) -> None:
            db.execute(statement, values)
            self._add(db, store, files, None)

        await self._db.write(work)

    async def get(self, owner: str, store_id: str) -> VectorStore | None:
        """Return a store, or None."""
        statement = f"{_STORE} WHERE stores.id = ? AND owner = ? GROUP BY stores.row"
        rows = await self._db.read(lambda db: query(db, statement, (store_id, owner)))
        return store_of(rows[0]) if rows else None

    async def stores(self, owner: str, page: Page) -> tuple[list[VectorStore], bool]:
        def work(db: apsw.Connection) -> tuple[list[tuple[object, ...]], bool]:
            ids, more = listed(db, "SELECT id FROM stores", "stores", "owner = :owner", {"owner": owner}, page)
            rows = [query(db, f"{_STORE} WHERE stores.id = ? GROUP BY stores.row", store_id)[0] for store_id in ids]
            return rows, more

        rows, more = await self._db.read(work)
        return [store_of(row) for row in rows], more

    async def update(self, owner: str, store_id: str, changes: Mapping[str, Any]) -> bool:
        values = {**changes, "id": store_id, "owner": owner}
        if "metadata" in changes:
            values["metadata"] = encode_fields(changes["metadata"])
        names = ", ".join(f"{name} = :{name}" for name in changes) or "id = id"
        statement = f"UPDATE stores SET {names} WHERE id = :id AND owner = :owner RETURNING id"
        return bool(await self._db.write(lambda db: query(db, statement, values)))

    async def delete(self, owner: str, store_id: str) -> bool:
        """Delete a store, but not its files; return whether it existed."""
        statement = "DELETE FROM stores WHERE id = ? AND owner = ? RETURNING id"
        deleted = bool(await self._db.write(lambda db: query(db, statement, (store_id, owner))))
        if deleted:
            await self._in_thread(lambda: delete_index(self._path(store_id)))
        return deleted

    async def add(self, store: VectorStore, files: Sequence[NewStoreFile], batch_id: str | None = None) -> None:
        def work(db: apsw.Connection) -> None:
            batch = None
            if batch_id is not None:
                statement = "INSERT INTO batches (id, store, created_at) VALUES (?, ?, ?) RETURNING row"
                ((batch,),) = query(db, statement, (batch_id, store.id, int(self._clock())))
            self._add(db, store, files, batch)
            db.execute("UPDATE stores SET last_active_at = ? WHERE id = ?", (int(self._clock()), store.id))

        await self._db.write(work)

    def _add(self, db: apsw.Connection, store: VectorStore, files: Sequence[NewStoreFile], batch: int | None) -> None:
        now = self._clock()
        exists = "SELECT 1 FROM files WHERE id = ? AND owner = ? AND (expires_at IS NULL OR expires_at > ?)"
        for index, file in enumerate(files):
            if not query(db, exists, (file.id, store.owner, now)):
                raise UnknownFiles(index)
            # A new row: this cancels a job that still reads the file under the old one.
            db.execute("DELETE FROM store_files WHERE store = ? AND id = ?", (store.id, file.id))
            attributes, strategy = encode_fields(file.attributes), file.strategy
            db.execute(
                "INSERT INTO store_files (store, id, batch, created_at, attributes, max_tokens, overlap)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (store.id, file.id, batch, int(now), attributes, strategy.max_tokens, strategy.overlap),
            )

    async def file(self, store: VectorStore, file_id: str) -> StoreFile | None:
        """Return a file of a store, or None."""
        entry = await self._file(store, file_id)
        return entry[0] if entry else None

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        values = {"store": store.id, "status": status, "batch": batch_id}
        where = "store = :store AND (:status IS NULL OR status = :status)"
        if batch_id is not None:
            where += " AND batch = (SELECT row FROM batches WHERE id = :batch)"
        rows, more = await self._db.read(lambda db: listed(db, _STORE_FILE, "store_files", where, values, page))
        return [store_file_of(row) for row in rows], more

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool:
        """Change a file's attributes; return whether it is in the store."""
        statement = "UPDATE store_files SET attributes = ? WHERE store = ? AND id = ? RETURNING id"
        values = (encode_fields(attributes), store.id, file_id)
        return bool(await self._db.write(lambda db: query(db, statement, values)))

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        statement = "DELETE FROM store_files WHERE store = ? AND id = ? RETURNING store, row"
        rows = await self._db.write(lambda db: query(db, statement, (store.id, file_id)))
        await self.forget(rows)
        return bool(rows)

    async def forget(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Remove the chunks of files that were removed from their stores; `rows` are (vector store id, row)."""
        for store_id, row in rows:
            await self._in_thread(partial(self._index(store_id).remove, row))

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        entry = await self._file(store, file_id)
        if entry is None or entry[0].status != "completed":
            return []
        return await self._in_thread(lambda: self._index(store.id).text(entry[1]))

    async def batch(self, store: VectorStore, batch_id: str) -> FileBatch | None:
        """Return a batch of files, or None."""
        statement = f"""
            SELECT batches.id, batches.store, batches.created_at, cancelled, {_COUNTS}
            FROM batches LEFT JOIN store_files ON batch = batches.row
            WHERE batches.id = ? AND batches.store = ? GROUP BY batches.row
        """
        rows = await self._db.read(lambda db: query(db, statement, (batch_id, store.id)))
        return file_batch_of(rows[0]) if rows else None

    async def cancel_batch(self, store: VectorStore, batch_id: str) -> bool:
        def work(db: apsw.Connection) -> bool:
            statement = "UPDATE batches SET cancelled = 1 WHERE id = ? AND store = ? RETURNING row"
            rows = query(db, statement, (batch_id, store.id))
            for row in rows:
                statement = "UPDATE store_files SET status = 'cancelled' WHERE batch = ? AND status = 'in_progress'"
                db.execute(statement, row)
            return bool(rows)

        return await self._db.write(work)

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
        hits: list[Match] = await self._in_thread(lambda: self._index(store.id).search(search_query, limit, files))
        rows = json.dumps([*{hit.file for hit in hits}])
        statement = (
            f"{_STORE_FILE} WHERE row IN (SELECT value FROM json_each(?)) AND store = ? AND status = 'completed'"
        )
        # Files that are being indexed, or were removed meanwhile, have no row here.
        entries = await self._db.read(lambda db: query(db, statement, (rows, store.id)))
        completed = {row[-1]: store_file_of(row) for row in entries}
        return [
            Candidate(f"{store.id}:{hit.id}", completed[hit.file], hit.text, hit.text_score, hit.similarity)
            for hit in hits
            if hit.file in completed
        ]

    async def _matching(self, store: VectorStore, matches: Callable[[Attributes], bool]) -> Sequence[int]:
        statement = "SELECT row, attributes FROM store_files WHERE store = ? AND status = 'completed'"
        return await self._db.read(
            lambda db: [row for row, text in query(db, statement, (store.id,)) if matches(decode_fields(text) or {})]
        )

    async def claim(self, lease: float) -> Job | None:
        now, claim = self._clock(), secrets.token_hex(8)
        statement = """
            UPDATE store_files SET claim = :claim, claimed_until = :until, attempts = attempts + 1
            WHERE row = (
                SELECT row FROM store_files WHERE status = 'in_progress' AND claimed_until <= :now ORDER BY row LIMIT 1
            )
            RETURNING row, attempts, store, id, max_tokens, overlap,
                (SELECT filename FROM files WHERE files.id = store_files.id),
                (SELECT bytes FROM files WHERE files.id = store_files.id)
        """
        values = {"claim": claim, "now": now, "until": now + lease}
        pending = "SELECT 1 FROM store_files WHERE status = 'in_progress' AND claimed_until <= ? LIMIT 1"
        if not await self._db.read(lambda db: query(db, pending, (now,))):
            return None  # without taking the write lock
        rows = await self._db.write(lambda db: query(db, statement, values))
        if not rows:
            return None
        row, attempt, store, file_id, max_tokens, overlap, filename, size = rows[0]
        return Job(row, claim, attempt, store, file_id, filename, size, ChunkingStrategy(max_tokens, overlap))

    async def renew(self, job: Job, lease: float) -> bool:
        return await self._update_claimed(job, "claimed_until = :until", until=self._clock() + lease)

    async def release(self, job: Job, delay: float = 0) -> None:
        changes = "claim = NULL, claimed_until = :until" + ("" if delay else ", attempts = attempts - 1")
        await self._update_claimed(job, changes, until=self._clock() + delay)

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
        """Remove the files of expired stores, and purge removed content from the indexes."""
        now = self._clock()
        statement = f"""
            DELETE FROM store_files WHERE store IN (
                SELECT id FROM stores WHERE expires_days IS NOT NULL AND last_active_at + expires_days * {DAY} <= ?
            )
        """
        await self._db.write(lambda db: query(db, statement, (now,)))
        nonempty = await self._db.read(
            lambda db: {store for (store,) in query(db, "SELECT DISTINCT store FROM store_files")}
        )
        await self._in_thread(lambda: self._clean(nonempty))

    def _clean(self, nonempty: set[str]) -> None:
        """Delete the indexes of stores without files, and clean those that have changed since the last time."""
        cleaned: dict[Path, int] = {}
        for path in self._folder.glob("*.db") if self._folder.exists() else ():
            if path.stem not in nonempty:
                delete_index(path)
                continue
            if (changed := last_change(path)) != self._cleaned.get(path):
                Index(path).clean()
                changed = last_change(path)
            cleaned[path] = changed
        self._cleaned = cleaned

    async def aclose(self) -> None:
        """Stop the threads, after running calls have ended."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _file(self, store: VectorStore, file_id: str) -> tuple[StoreFile, int] | None:
        statement = f"{_STORE_FILE} WHERE store = ? AND id = ?"
        rows = await self._db.read(lambda db: query(db, statement, (store.id, file_id)))
        return (store_file_of(rows[0]), rows[0][-1]) if rows else None

    async def _update_claimed(self, job: Job, changes: str, **values: Any) -> bool:
        """Update the row of a claimed file; return False, changing nothing, if the claim was lost."""
        where = "row = :row AND claim = :claim AND status = 'in_progress'"
        statement = f"UPDATE store_files SET {changes} WHERE {where} RETURNING row"
        values |= {"row": job.row, "claim": job.claim}
        return bool(await self._db.write(lambda db: query(db, statement, values)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (apsw.Error, OSError) as error:
            logger.error("an index of vectors is unavailable: %s: %s", type(error).__name__, error)
            raise FilesUnavailable from None

    def _index(self, store_id: str) -> Index:
        return Index(self._path(store_id))

    def _path(self, store_id: str) -> Path:
        return self._folder / f"{store_id}.db"
