"""
Vector store operations shared by the SQL databases, which implement their own claims and chunk storage.

`app.storage.tables` describes the statement syntax.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from app.core.types import JSONObject
from app.errors import NotFound
from app.storage.tables import Records, Row, Rows, Transaction, execute, execute_many, in_transaction
from app.tools.files import Page, fetch_page, file_not_found
from app.tools.files.records.uploads import ALIVE
from app.tools.files.vector_stores.records import (
    DAY,
    Attributes,
    Candidate,
    EmbeddedText,
    ErrorCode,
    FileCounts,
    Job,
    NewStoreFile,
    StoreFile,
    VectorStore,
)

_COUNTS = ", ".join(f"count(*) FILTER (WHERE entries.status = '{status}')" for status in FileCounts._fields)
_TABLE = "antiphon_vector_stores"

# Statement prefixes.
_STORES = f"""
SELECT stores.id, owner, name, description, metadata, expires_days, stores.created_at, last_active_at,
    {_COUNTS}, CAST(coalesce(sum(usage_bytes), 0) AS bigint)
FROM antiphon_vector_stores AS stores LEFT JOIN antiphon_store_files AS entries ON entries.store = stores.id
"""
_ENTRIES = """
SELECT id, store, (SELECT filename FROM antiphon_files AS files WHERE files.id = entries.id), created_at, status,
    usage_bytes, error_code, error_message, attributes, max_tokens, overlap, {row}
FROM antiphon_store_files AS entries
"""
_BATCH = f"""
SELECT batches.created_at, cancelled, {_COUNTS}
FROM antiphon_file_batches AS batches LEFT JOIN antiphon_store_files AS entries ON batch = batches.{{row}}
WHERE batches.id = $1 AND batches.store = $2 GROUP BY batches.{{row}}
"""
_INSERT_STORE = f"""
INSERT INTO {_TABLE} (id, owner, name, description, metadata, expires_days, created_at, last_active_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
_INSERT_BATCH = """
INSERT INTO antiphon_file_batches (id, store, created_at) VALUES ($1, $2, CAST({now} AS bigint)) RETURNING {row}
"""
_CANCEL_BATCH = "UPDATE antiphon_file_batches SET cancelled = true WHERE id = $1 AND store = $2 RETURNING {row}"
_INSERT_FILE = """
INSERT INTO antiphon_store_files (store, batch, id, key, attributes, max_tokens, overlap, queue, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, CAST({now} AS bigint))
"""
HELD = "{row} = $1 AND claim = $2 AND status = 'in_progress'"
_EXPIRED_FILES = 100  # per statement
_DELETE_EXPIRED = f"""
DELETE FROM antiphon_store_files WHERE {{row}} IN (
    SELECT files.{{row}} FROM antiphon_vector_stores AS stores JOIN antiphon_store_files AS files ON store = stores.id
    WHERE expires_days IS NOT NULL AND last_active_at + expires_days * {DAY} <= {{now}}
    LIMIT {_EXPIRED_FILES} FOR UPDATE OF files SKIP LOCKED
) RETURNING store, {{row}}
"""
_DELETE_TURNS = f"DELETE FROM antiphon_turns WHERE served < {{moment}} - {DAY} * {{second}}"

# The non-empty queues, each found by an index lookup. The last row is NULL.
QUEUES = """
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM antiphon_store_files WHERE status = 'in_progress'
    UNION ALL
    SELECT (
        SELECT min(more.queue) FROM antiphon_store_files AS more
        WHERE status = 'in_progress' AND more.queue > queues.queue
    ) FROM queues WHERE queue IS NOT NULL
)
"""


class FoundChunk(NamedTuple):
    """Scores are from 0 to 1, or None if not computed."""

    id: str
    file: int  # row in antiphon_store_files
    text: str
    text_score: float | None
    similarity: float | None


class VectorStoreRecords(Records, ABC):
    """
    Stores all owners' vector stores. A file is searchable once it is `completed`, with all its chunks.

    Methods for a job return False, without changes, if its claim was lost: the file was removed, cancelled or claimed
    again.
    """

    CANCEL_FILES: ClassVar[str]  # (batch): only files that are not indexed yet
    FAIL: ClassVar[str]  # (row, claim, error code, error message): returns the files with chunks to delete

    @abstractmethod
    async def _claim(self, excluded: list[str], claim: str, lease: float) -> Rows:
        """
        Claim the next file of a queue not in `excluded`, for `lease` seconds.

        Returns the fields of `Job` after `claim`.
        """

    @abstractmethod
    async def complete(self, job: Job, chunks: Iterable[EmbeddedText]) -> bool:
        """Store a file's chunks, iterated in another thread, and mark it as completed."""

    @abstractmethod
    async def _text_of(self, store_id: str, file: int) -> list[str]:
        """Return a file's chunks, in order."""

    @abstractmethod
    async def _found(
        self, store_id: str, search_query: EmbeddedText, limit: int, files: Sequence[int] | None
    ) -> Sequence[FoundChunk]:
        """Return the best `limit` chunks by keywords and the best by embedding. None searches all files."""

    @abstractmethod
    async def delete_chunks(self, entries: Sequence[Sequence[object]]) -> None:
        """Delete the chunks of removed files, given as (store id, row)."""

    async def prepare_vectors(self) -> None:
        """Create the schema for embeddings, if it is separate; raises `VectorsUnsupported`."""

    @in_transaction
    def create(self, store: VectorStore, files: Sequence[NewStoreFile] = ()) -> Transaction[None]:
        """Insert a store and queue its first files for indexing; raises `NotFound`, without changes."""
        yield from _lock_files(store, files)
        yield execute(
            _INSERT_STORE,
            *(store.id, store.owner, store.name, store.description, encode_fields(store.metadata)),
            *(store.expires_days, store.created_at, store.last_active_at),
        )
        yield from _insert_files(store, files, None)

    @in_transaction
    def add(self, store: VectorStore, files: Sequence[NewStoreFile], batch_id: str | None = None) -> Transaction[None]:
        """
        Add files, as a batch if `batch_id` is set, and queue them for indexing.

        A file already in the store is indexed again. Raises `NotFound`, without changes, if the owner does not have
        all the files.
        """
        # Locks the store, so that concurrent additions wait. A store deleted in the meantime gets no files.
        active = f"UPDATE {_TABLE} SET last_active_at = CAST({{now}} AS bigint) WHERE id = $1 RETURNING id"
        if not (yield execute(active, store.id)):
            return
        yield from _lock_files(store, files)
        batch = None
        if batch_id is not None:
            ((batch,),) = yield execute(_INSERT_BATCH, batch_id, store.id)
        # Files get new rows, which cancels jobs that still index the old rows.
        replaced = "DELETE FROM antiphon_store_files WHERE id = ANY ($1) AND store = $2"
        yield execute(replaced, [file.id for file in files], store.id)
        yield from _insert_files(store, files, batch)

    @in_transaction
    def cancel_batch(self, store: VectorStore, batch_id: str) -> Transaction[bool]:
        """Cancel a batch's files that are not indexed yet; return whether the batch exists."""
        rows = yield execute(_CANCEL_BATCH, batch_id, store.id)
        for (batch,) in rows:
            yield execute(self.CANCEL_FILES, batch)
        return bool(rows)

    async def claim(self, lease: float, excluded: Collection[str] = ()) -> Job | None:
        """
        Claim the oldest file of the owner served least recently, for `lease` seconds; None if the queues are empty.

        Owners in `excluded` are skipped.
        """
        claim = secrets.token_hex(8)
        rows = await self._claim([*excluded], claim, lease)
        return Job(claim, *rows[0]) if rows else None

    async def renew(self, job: Job, lease: float) -> bool:
        until = "claimed_until = {moment} + $3 * {second}"
        renew = f"UPDATE antiphon_store_files SET {until} WHERE {HELD} RETURNING id"
        return bool(await self._tables.execute(renew, job.row, job.claim, lease))

    async def fail(self, job: Job, code: ErrorCode, message: str) -> None:
        await self.delete_chunks(await self._tables.execute(self.FAIL, job.row, job.claim, code, message))

    async def release(self, job: Job, delay: float = 0, *, failed: bool = False) -> None:
        """The file can be claimed again after `delay` seconds. Only attempts that `failed` count."""
        release = f"""
            UPDATE antiphon_store_files
            SET claim = NULL, claimed_until = {{moment}} + $3 * {{second}}, attempts = attempts - $4 WHERE {HELD}
        """
        await self._tables.execute(release, job.row, job.claim, delay, 0 if failed else 1)

    async def get(self, owner: str, store_id: str) -> VectorStore:
        """Raises `NotFound`."""
        statement = f"{_STORES} WHERE stores.id = $1 AND owner = $2 GROUP BY stores.{{row}}"
        rows = await self._tables.fetch(statement, store_id, owner)
        if not rows:
            raise store_not_found(store_id)
        return store_of(rows[0])

    async def stores(self, owner: str | None, page: Page) -> tuple[list[VectorStore], bool]:
        """Return an owner's (None: all owners') stores, and whether more exist."""
        where, values = ("1 = 1", ()) if owner is None else ("owner = $1", (owner,))
        found, more = await fetch_page(self._tables, f"SELECT id FROM {_TABLE}", _TABLE, where, values, page)
        ids = [store_id for (store_id,) in found]
        rows = await self._tables.fetch(f"{_STORES} WHERE stores.id = ANY ($1) GROUP BY stores.{{row}}", ids)
        stores = {store[0]: store_of(store) for store in rows}
        return [stores[store_id] for store_id in ids if store_id in stores], more

    async def update(self, owner: str, store_id: str, changes: Mapping[str, Any]) -> bool:
        """Update `name`, `metadata`, `expires_days` or `last_active_at`; return whether the store exists."""
        values = [encode_fields(value) if name == "metadata" else value for name, value in changes.items()]
        assignments = ", ".join(f"{name} = ${index}" for index, name in enumerate(changes, 3)) or "id = id"
        statement = f"UPDATE {_TABLE} SET {assignments} WHERE id = $1 AND owner = $2 RETURNING id"
        return bool(await self._tables.execute(statement, store_id, owner, *values))

    async def delete(self, owner: str, store_id: str) -> bool:
        statement = f"DELETE FROM {_TABLE} WHERE id = $1 AND owner = $2 RETURNING id"
        return bool(await self._tables.execute(statement, store_id, owner))

    async def file(self, store: VectorStore, file_id: str) -> StoreFile:
        """Raises `NotFound`."""
        rows = await self._tables.fetch(f"{_ENTRIES} WHERE store = $1 AND id = $2", store.id, file_id)
        if not rows:
            raise file_not_found(file_id)
        return store_file_of(rows[0])

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        """Also return whether more files exist."""
        where = "store = $1 AND (CAST($2 AS text) IS NULL OR status = $2)"
        values: tuple[object, ...] = (store.id, status)
        if batch_id is not None:
            where += " AND batch = (SELECT {row} FROM antiphon_file_batches AS batches WHERE batches.id = $3)"
            values = (*values, batch_id)
        rows, more = await fetch_page(self._tables, _ENTRIES, "antiphon_store_files", where, values, page)
        return [store_file_of(entry) for entry in rows], more

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool:
        statement = "UPDATE antiphon_store_files SET attributes = $3 WHERE store = $1 AND id = $2 RETURNING id"
        return bool(await self._tables.execute(statement, store.id, file_id, encode_fields(attributes)))

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        """Remove a file without deleting it; return whether it was in the store."""
        statement = "DELETE FROM antiphon_store_files WHERE store = $1 AND id = $2 RETURNING store, {row}"
        removed = await self._tables.execute(statement, store.id, file_id)
        await self.delete_chunks(removed)
        return bool(removed)

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        """Return a file's chunks, in order; [] if the file is not indexed."""
        completed = "SELECT {row} FROM antiphon_store_files WHERE store = $1 AND id = $2 AND status = 'completed'"
        rows = await self._tables.fetch(completed, store.id, file_id)
        return await self._text_of(store.id, rows[0][0]) if rows else []

    async def batch(self, store: VectorStore, batch_id: str) -> tuple[int, bool, FileCounts]:
        """Return when a batch was created, whether it was cancelled, and its files' counts. Raises `NotFound`."""
        rows = await self._tables.fetch(_BATCH, batch_id, store.id)
        if not rows:
            raise NotFound(f"File batch with id '{batch_id}' not found.", param="batch_id")
        created_at, cancelled, *counts = rows[0]
        return created_at, bool(cancelled), FileCounts(*counts)

    async def search(
        self,
        store: VectorStore,
        search_query: EmbeddedText,
        limit: int,
        matches: Callable[[Attributes], bool] | None = None,
    ) -> list[Candidate]:
        """
        Return the best `limit` chunks by keywords, and the best by embedding.

        With `matches`, only files whose attributes match are searched.
        """
        files: Sequence[int] | None = None
        if matches is not None:
            statement = "SELECT {row}, attributes FROM antiphon_store_files WHERE store = $1 AND status = 'completed'"
            rows = await self._tables.fetch(statement, store.id)
            files = [number for number, text in rows if matches(decode_fields(text) or {})]
            if not files:
                return []
        found = await self._found(store.id, search_query, limit, files)
        # Files being indexed, or just removed, are not in these rows.
        statement = f"{_ENTRIES} WHERE {{row}} = ANY ($1) AND store = $2 AND status = 'completed'"
        rows = await self._tables.fetch(statement, [*{chunk.file for chunk in found}], store.id)
        completed = {entry[-1]: store_file_of(entry) for entry in rows}
        return [
            Candidate(chunk.id, completed[chunk.file], chunk.text, chunk.text_score, chunk.similarity)
            for chunk in found
            if chunk.file in completed
        ]

    async def sweep(self) -> None:
        """Delete the files of expired vector stores."""
        more = True
        while more:
            expired = await self._tables.execute(_DELETE_EXPIRED)
            await self.delete_chunks(expired)
            more = len(expired) == _EXPIRED_FILES
        await self._tables.execute(_DELETE_TURNS)


def _lock_files(store: VectorStore, files: Sequence[NewStoreFile]) -> Transaction[None]:
    """Prevent deletions until the transaction ends. Raises `NotFound` if the store's owner lacks a file."""
    existing = f"SELECT id FROM antiphon_files WHERE id = ANY ($1) AND owner = $2 AND {ALIVE} FOR KEY SHARE"
    rows = yield execute(existing, [file.id for file in files], store.owner)
    found = {file_id for (file_id,) in rows}
    for file in files:
        if file.id not in found:
            raise file_not_found(file.id, file.param)


def _insert_files(store: VectorStore, files: Sequence[NewStoreFile], batch: int | None) -> Transaction[None]:
    """Queue a store's files for indexing; `batch` is their batch's row."""
    rows: list[tuple[object, ...]] = []
    for file in files:
        sizes = file.sizes.max_chunk_size_tokens, file.sizes.chunk_overlap_tokens
        rows.append((store.id, batch, file.id, file.key, encode_fields(file.attributes), *sizes, store.owner))
    yield execute_many(_INSERT_FILE, rows)


def store_not_found(store_id: str) -> NotFound:
    return NotFound(f"Vector store with id '{store_id}' not found.", param="vector_store_id")


def encode_fields(value: Mapping[str, object] | None) -> str | None:
    return None if value is None else json.dumps(dict(value))


def decode_fields(value: str | None) -> JSONObject | None:
    return None if value is None else json.loads(value)


def store_of(row: Row) -> VectorStore:
    """Columns: the store's own, its file counts by status, and its size."""
    store_id, owner, name, description, metadata, days, created_at, last_active_at, *counts, usage = row
    fields, file_counts = decode_fields(metadata), FileCounts(*counts)
    return VectorStore(store_id, owner, name, description, fields, days, created_at, last_active_at, file_counts, usage)


def store_file_of(row: Row) -> StoreFile:
    """The last column, the row number, is ignored."""
    *fields, code, message, attributes, max_tokens, overlap, _ = row
    error = (code, message) if code else None
    fields += error, decode_fields(attributes), max_tokens, overlap
    return StoreFile(*fields)
