"""File store in SQLite: persistent, and shared by the workers on a machine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import apsw

from app.storage.object_storage import ObjectStorage
from app.storage.sqlite import SQLiteTables, in_sqlite
from app.storage.tables import Migrations, Row, Rows, Transaction, UnpreparedError, execute, in_transaction
from app.tools.files import FilesUnavailable
from app.tools.files.records import FileStore
from app.tools.files.records.tables import FILE_TABLES
from app.tools.files.sqlite.index import Index
from app.tools.files.vector_stores.records import EmbeddedText, Job
from app.tools.files.vector_stores.sql import HELD, QUEUES, FoundChunk, VectorStoreRecords

T = TypeVar("T")
logger = logging.getLogger(__name__)

SQLITE_NAMES = {
    "antiphon_vector_stores": "stores",
    "antiphon_file_batches": "batches",
    "{row}": "row",
    "{identity}": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "bytea": "BLOB",
    "timestamptz": "REAL",
    "'-infinity'": "0",
}
_REMOVED = "CREATE TABLE removed (row INTEGER PRIMARY KEY, content TEXT NOT NULL)"
_OWN_TABLES = ("", "", _REMOVED, "", "", "")
_MIGRATIONS = Migrations(
    [in_sqlite(tables, SQLITE_NAMES) + own for tables, own in zip(FILE_TABLES, _OWN_TABLES, strict=True)]
)
_DELETE_ENTRIES = "DELETE FROM antiphon_store_files WHERE id = $1 RETURNING store, {row}"
_DELETE_FILE = """
DELETE FROM antiphon_files WHERE id = $1;
INSERT INTO antiphon_removed (content) SELECT $1 UNION ALL SELECT id FROM antiphon_upload_parts WHERE file = $1;
DELETE FROM antiphon_upload_parts WHERE file = $1
"""


class SQLiteFileStore(FileStore):
    WRITE_PIECE = """
    INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3);
    INSERT OR REPLACE INTO antiphon_uploads VALUES ($1, {moment})
    """

    vector_stores: SQLiteVectorStores

    def __init__(
        self, path: Path, storage: ObjectStorage | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        tables = SQLiteTables(path, _MIGRATIONS, SQLITE_NAMES, clock, FilesUnavailable, readers=2)
        super().__init__(tables, storage)
        self.vector_stores = SQLiteVectorStores(tables)

    @classmethod
    def from_url(
        cls, url: str, storage: ObjectStorage | None = None, *, clock: Callable[[], float] = time.time
    ) -> SQLiteFileStore:
        """The database is created on first use. Raises `ValueError`."""
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.scheme != "sqlite" or parts.netloc or not path or path.endswith("/") or parts.query:
            raise ValueError("must be a file, such as sqlite:///files.db (relative) or sqlite:////var/lib/files.db")
        return cls(Path(path).expanduser(), storage, clock=clock)

    async def _delete(self, condition: str, *values: object) -> int:
        deleted, entries = await self._delete_rows(condition, *values)
        await self.vector_stores.delete_chunks(entries)
        if deleted:
            await self._pieces.delete_removed()
        return deleted

    @in_transaction
    def _delete_rows(self, condition: str, *values: object) -> Transaction[tuple[int, list[Row]]]:
        files, entries = (yield execute(f"SELECT id FROM antiphon_files WHERE {condition}", *values)), list[Row]()
        for file in files:
            entries += yield execute(_DELETE_ENTRIES, *file)
            yield execute(_DELETE_FILE, *file)
        return len(files), entries

    async def aclose(self) -> None:
        await self.vector_stores.aclose()
        await super().aclose()


_NEXT = f"""
{QUEUES}, oldest AS (
    SELECT queue, (
        SELECT {{row}} FROM antiphon_store_files AS files
        WHERE status = 'in_progress' AND files.queue = queues.queue AND claimed_until <= {{moment}}
        ORDER BY {{row}} LIMIT 1
    ) AS {{row}}
    FROM queues WHERE NOT queue = ANY ($1)
)
SELECT {{row}} FROM oldest LEFT JOIN antiphon_turns USING (queue)
WHERE {{row}} IS NOT NULL ORDER BY coalesce(served, 0), {{row}} LIMIT 1
"""
_CLAIM = f"""
UPDATE antiphon_store_files SET claim = $2, claimed_until = {{moment}} + $3, attempts = attempts + 1
WHERE {{row}} = ({_NEXT})
RETURNING {{row}}, attempts, queue, key, store, id,
    (SELECT filename FROM antiphon_files AS files WHERE files.id = antiphon_store_files.id), max_tokens, overlap
"""
_ROWS_OF_STORE = "SELECT {row} FROM antiphon_store_files WHERE store = $1"
_COMPLETE = f"""
UPDATE antiphon_store_files SET status = 'completed', claim = NULL, usage_bytes = $3 WHERE {HELD} RETURNING id
"""


class SQLiteVectorStores(VectorStoreRecords):
    """Records are in the file database, chunks in an index file per store."""

    CANCEL_FILES = "UPDATE antiphon_store_files SET status = 'cancelled' WHERE batch = $1 AND status = 'in_progress'"
    FAIL = f"""
    UPDATE antiphon_store_files SET status = 'failed', claim = NULL, error_code = $3, error_message = $4
    WHERE {HELD} RETURNING store, {{row}}
    """

    def __init__(self, tables: SQLiteTables) -> None:
        super().__init__(tables)
        self._folder = tables.path.with_name(f"{tables.path.name}.indexes")
        self._threads = ThreadPoolExecutor(4, "antiphon-index")

    async def delete(self, owner: str, store_id: str) -> bool:
        deleted = await super().delete(owner, store_id)
        if deleted:
            await self._in_thread(self._index(store_id).delete)
        return deleted

    async def delete_chunks(self, entries: Rows) -> None:
        for store_id, row in entries:
            await self._in_thread(self._index(store_id).remove, row)

    async def _text_of(self, store_id: str, file: int) -> list[str]:
        return await self._in_thread(self._index(store_id).text, file)

    async def _found(
        self, store_id: str, search_query: EmbeddedText, limit: int, files: Sequence[int] | None
    ) -> list[FoundChunk]:
        return await self._in_thread(self._index(store_id).search, search_query, limit, files)

    async def _claim(self, excluded: list[str], claim: str, lease: float) -> Rows:
        if not await self._tables.fetch(_NEXT, excluded):
            return []  # without the write lock
        return await self._claim_next(excluded, claim, lease)

    @in_transaction
    def _claim_next(self, excluded: list[str], claim: str, lease: float) -> Transaction[Rows]:
        rows = yield execute(_CLAIM, excluded, claim, lease)
        for row in rows:
            yield execute("INSERT OR REPLACE INTO antiphon_turns VALUES ($1, {moment})", row[2])
        return rows

    async def complete(self, job: Job, chunks: Iterable[EmbeddedText]) -> bool:
        alive = {row for (row,) in await self._tables.fetch(_ROWS_OF_STORE, job.store_id)}
        if job.row not in alive:
            return False
        index = self._index(job.store_id)
        size = await self._in_thread(index.replace, job.row, chunks, alive)
        completed = bool(await self._tables.execute(_COMPLETE, job.row, job.claim, size))
        if not completed:
            await self._in_thread(index.remove, job.row)
        return completed

    async def sweep(self) -> None:
        """Also delete the indexes of deleted vector stores."""
        await super().sweep()
        # The indexes are listed before the stores are read: a store missing afterwards was deleted, permanently. An
        # empty store's index is retained, since files can be added at any time, and other processes may have it open.
        indexes = await self._in_thread(lambda: [Index(path) for path in self._folder.glob("*.db")])
        stores = {store for (store,) in await self._tables.fetch("SELECT id FROM antiphon_vector_stores")}
        for index in indexes:
            if index.store_id not in stores:
                await self._in_thread(index.delete)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except (apsw.Error, OSError, UnpreparedError) as error:
            logger.error("vector index unavailable", extra={"error": type(error).__name__, "reason": str(error)})
            raise FilesUnavailable from None

    def _index(self, store_id: str) -> Index:
        return Index(self._folder / f"{store_id}.db")
