"""
The operations on vector stores that are the same in all SQL databases, where only words of the statements differ.

Parameters of statements are `$1`, `$2`, ... What needs transactions, locks or the time is each database's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from app.tools.files import Page
from app.tools.files.tables import FileTables, Row, Rows, single
from app.tools.files.vector_stores.records import (
    Attributes,
    Candidate,
    ChunkingStrategy,
    FileBatch,
    Job,
    Query,
    StoreFile,
    VectorStore,
)
from app.tools.files.vector_stores.rows import decode_fields, encode_fields, file_batch_of, store_file_of, store_of

_STATUSES = ("in_progress", "completed", "failed", "cancelled")
_COUNTS = ", ".join(f"count(*) FILTER (WHERE entries.status = '{status}')" for status in _STATUSES)
_CHANGEABLE = ("name", "metadata", "expires_days", "last_active_at")


class SQLDialect(NamedTuple):
    """The names of the tables, and what databases write differently."""

    files: str
    stores: str
    batches: str
    entries: str  # the files of vector stores
    row: str  # the column that numbers the rows of every table
    one_of: str  # that a column is among the values of the first parameter, which is a list
    list: Callable[[Sequence[str | int]], object]  # the value of such a parameter


class FoundChunk(NamedTuple):
    """A chunk that matches a search, with its scores: from 0 to 1, or None if not computed."""

    id: str
    file: int  # its row among the files of vector stores
    text: str
    text_score: float | None
    similarity: float | None


class SQLVectorStores(ABC):
    """The part of `VectorStoreRecords` that is the same in all SQL databases."""

    def __init__(self, dialect: SQLDialect, tables: FileTables) -> None:
        self._tables = tables
        files, stores, batches, entries, row, _, _ = self._dialect = dialect
        self._store = f"""
            SELECT stores.id, owner, name, description, metadata, expires_days, stores.created_at, last_active_at,
                {_COUNTS}, CAST(coalesce(sum(usage_bytes), 0) AS bigint)
            FROM {stores} AS stores LEFT JOIN {entries} AS entries ON entries.store = stores.id
        """
        self._entry = f"""
            SELECT id, store, (SELECT filename FROM {files} AS files WHERE files.id = entries.id), created_at, status,
                error_code, error_message, usage_bytes, attributes, max_tokens, overlap, {row}
            FROM {entries} AS entries
        """
        self._batch = f"""
            SELECT batches.id, batches.store, batches.created_at, cancelled, {_COUNTS}
            FROM {batches} AS batches LEFT JOIN {entries} AS entries ON batch = batches.{row}
            WHERE batches.id = $1 AND batches.store = $2 GROUP BY batches.{row}
        """
        # The queues that have entries, each found by one search in the index; NULL is the last.
        self._queues = f"""
            WITH RECURSIVE queues (queue) AS (
                SELECT min(queue) FROM {entries} WHERE status = 'in_progress'
                UNION ALL
                SELECT (
                    SELECT min(more.queue) FROM {entries} AS more
                    WHERE status = 'in_progress' AND more.queue > queues.queue
                ) FROM queues WHERE queue IS NOT NULL
            )
        """

    @abstractmethod
    async def _text_of(self, store_id: str, file: int) -> list[str]:
        """Return the chunks of a file, in order."""

    @abstractmethod
    async def _found(
        self, store_id: str, search_query: Query, limit: int, files: Sequence[int] | None
    ) -> Sequence[FoundChunk]:
        """Return the best `limit` chunks by words and the best by embedding, of these files, or of all (None)."""

    @abstractmethod
    async def forget(self, entries: Sequence[Sequence[object]]) -> None:
        """Remove the chunks of files that were removed from stores, given as (store id, row)."""

    async def _change(self, statement: str, *values: object) -> Rows:
        return await self._tables.run(lambda: single(statement, *values))

    async def get(self, owner: str, store_id: str) -> VectorStore | None:
        group = f"GROUP BY stores.{self._dialect.row}"
        rows = await self._tables.fetch(f"{self._store} WHERE stores.id = $1 AND owner = $2 {group}", store_id, owner)
        return store_of(rows[0]) if rows else None

    async def stores(self, owner: str | None, page: Page) -> tuple[list[VectorStore], bool]:
        _, table, _, _, row, one_of, as_list = self._dialect
        where, values = ("1 = 1", ()) if owner is None else ("owner = $1", (owner,))
        listed, more = await self._tables.listed(f"SELECT id FROM {table}", table, where, values, page)
        ids = [store_id for (store_id,) in listed]
        rows = await self._tables.fetch(f"{self._store} WHERE stores.id {one_of} GROUP BY stores.{row}", as_list(ids))
        stores = {store[0]: store_of(store) for store in rows}
        return [stores[store_id] for store_id in ids if store_id in stores], more

    async def update(self, owner: str, store_id: str, changes: Mapping[str, Any]) -> bool:
        values = dict(changes)
        if "metadata" in values:
            values["metadata"] = encode_fields(values["metadata"])
        names = [name for name in _CHANGEABLE if name in values]
        assignments = ", ".join(f"{name} = ${index}" for index, name in enumerate(names, 3)) or "id = id"
        statement = f"UPDATE {self._dialect.stores} SET {assignments} WHERE id = $1 AND owner = $2 RETURNING id"
        return bool(await self._change(statement, store_id, owner, *(values[name] for name in names)))

    async def delete(self, owner: str, store_id: str) -> bool:
        statement = f"DELETE FROM {self._dialect.stores} WHERE id = $1 AND owner = $2 RETURNING id"
        return bool(await self._change(statement, store_id, owner))

    async def file(self, store: VectorStore, file_id: str) -> StoreFile | None:
        rows = await self._tables.fetch(f"{self._entry} WHERE store = $1 AND id = $2", store.id, file_id)
        return store_file_of(rows[0]) if rows else None

    async def files(
        self, store: VectorStore, page: Page, status: str | None = None, batch_id: str | None = None
    ) -> tuple[list[StoreFile], bool]:
        _, _, batches, entries, row, _, _ = self._dialect
        where = "store = $1 AND (CAST($2 AS text) IS NULL OR status = $2)"
        values: tuple[object, ...] = (store.id, status)
        if batch_id is not None:
            where += f" AND batch = (SELECT {row} FROM {batches} AS batches WHERE batches.id = $3)"
            values = (*values, batch_id)
        rows, more = await self._tables.listed(self._entry, entries, where, values, page)
        return [store_file_of(entry) for entry in rows], more

    async def set_attributes(self, store: VectorStore, file_id: str, attributes: Attributes) -> bool:
        statement = f"UPDATE {self._dialect.entries} SET attributes = $3 WHERE store = $1 AND id = $2 RETURNING id"
        return bool(await self._change(statement, store.id, file_id, encode_fields(attributes)))

    async def remove(self, store: VectorStore, file_id: str) -> bool:
        _, _, _, entries, row, _, _ = self._dialect
        statement = f"DELETE FROM {entries} WHERE store = $1 AND id = $2 RETURNING store, {row}"
        removed = await self._change(statement, store.id, file_id)
        await self.forget(removed)
        return bool(removed)

    async def text(self, store: VectorStore, file_id: str) -> list[str]:
        _, _, _, entries, row, _, _ = self._dialect
        completed = f"SELECT {row} FROM {entries} WHERE store = $1 AND id = $2 AND status = 'completed'"
        rows = await self._tables.fetch(completed, store.id, file_id)
        return await self._text_of(store.id, rows[0][0]) if rows else []

    async def batch(self, store: VectorStore, batch_id: str) -> FileBatch | None:
        rows = await self._tables.fetch(self._batch, batch_id, store.id)
        return file_batch_of(rows[0]) if rows else None

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
        found = await self._found(store.id, search_query, limit, files)
        _, _, _, _, row, one_of, as_list = self._dialect
        # Files that are being indexed, or were removed meanwhile, have no row here.
        statement = f"{self._entry} WHERE {row} {one_of} AND store = $2 AND status = 'completed'"
        rows = await self._tables.fetch(statement, as_list([*{chunk.file for chunk in found}]), store.id)
        completed = {entry[-1]: store_file_of(entry) for entry in rows}
        return [
            Candidate(chunk.id, completed[chunk.file], chunk.text, chunk.text_score, chunk.similarity)
            for chunk in found
            if chunk.file in completed
        ]

    async def _matching(self, store: VectorStore, matches: Callable[[Attributes], bool]) -> Sequence[int]:
        _, _, _, entries, row, _, _ = self._dialect
        rows = await self._tables.fetch(
            f"SELECT {row}, attributes FROM {entries} WHERE store = $1 AND status = 'completed'", store.id
        )
        return [number for number, text in rows if matches(decode_fields(text) or {})]


def job_of(row: Row, claim: str) -> Job:
    """Return the job of a claimed file from its columns."""
    number, attempt, owner, key, store, file_id, max_tokens, overlap, filename, size = row
    strategy = ChunkingStrategy(max_tokens, overlap)
    return Job(number, claim, attempt, owner, key, store, file_id, filename, size, strategy)
