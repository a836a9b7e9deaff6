"""File store in SQLite: persistent, and shared by the workers on a machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw

from app.storage.migration import Migrations
from app.storage.object_storage import ObjectStorage
from app.storage.sqlite import Database, SQLiteTables, in_sqlite, query
from app.tools.files import ABANDONED_AFTER, FilesUnavailable
from app.tools.files.batches_sql import BATCH_TABLES
from app.tools.files.contents.attachments import ATTACHMENT_TABLES
from app.tools.files.contents.objects import OBJECT_TABLES
from app.tools.files.files_sql import SQLFileStore
from app.tools.files.multipart_sql import MULTIPART_TABLES
from app.tools.files.sqlite.pieces import SQLitePieces
from app.tools.files.sqlite.vector_stores import SQLITE_NAMES, SQLiteVectorStores

DELETED_PIECES = 32  # per transaction

_SCHEMA = """
CREATE TABLE files (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE INDEX files_by_owner ON files (owner, row);
CREATE INDEX files_by_expiry ON files (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE pieces (
    file TEXT NOT NULL,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (file, number)
);
CREATE TABLE uploads (file TEXT PRIMARY KEY, touched REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE stores (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    metadata TEXT,
    expires_days INTEGER,
    created_at INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL
);
CREATE INDEX stores_by_owner ON stores (owner, row);
CREATE TABLE batches (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    store TEXT NOT NULL REFERENCES stores (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batches_by_store ON batches (store);
CREATE TABLE store_files (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    store TEXT NOT NULL REFERENCES stores (id) ON DELETE CASCADE,
    id TEXT NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    batch INTEGER REFERENCES batches (row) ON DELETE SET NULL,
    created_at INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'in_progress',
    error_code TEXT,
    error_message TEXT,
    usage_bytes INTEGER NOT NULL DEFAULT 0,
    attributes TEXT,
    max_tokens INTEGER NOT NULL,
    overlap INTEGER NOT NULL,
    claim TEXT,
    claimed_until REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    UNIQUE (store, id)
);
CREATE INDEX store_files_by_file ON store_files (id);
CREATE INDEX store_files_by_batch ON store_files (batch) WHERE batch IS NOT NULL;
CREATE INDEX store_files_to_read ON store_files (claimed_until) WHERE status = 'in_progress';
"""
# Each owner's files wait in a separate queue; `key` names the key that added the file.
_QUEUES = """
ALTER TABLE store_files ADD COLUMN queue TEXT NOT NULL DEFAULT '';
ALTER TABLE store_files ADD COLUMN key TEXT NOT NULL DEFAULT '';
UPDATE store_files SET queue = (SELECT owner FROM stores WHERE stores.id = store) WHERE status = 'in_progress';
CREATE INDEX store_files_by_queue ON store_files (queue, row) WHERE status = 'in_progress';
CREATE TABLE turns (queue TEXT PRIMARY KEY, served REAL NOT NULL) WITHOUT ROWID;
"""
_REMOVED = "CREATE TABLE removed (row INTEGER PRIMARY KEY, content TEXT NOT NULL)"
_MIGRATIONS = Migrations(
    [
        _SCHEMA,
        _QUEUES,
        in_sqlite(MULTIPART_TABLES, SQLITE_NAMES) + _REMOVED,
        in_sqlite(BATCH_TABLES, SQLITE_NAMES),
        in_sqlite(OBJECT_TABLES, SQLITE_NAMES),
        in_sqlite(ATTACHMENT_TABLES, SQLITE_NAMES),
    ]
)


class SQLiteFileStore(SQLFileStore):
    def __init__(
        self, path: Path, storage: ObjectStorage | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._db = Database(path, _MIGRATIONS, f"SQLite file store {path}", FilesUnavailable, readers=2)
        self._clock = clock
        tables = SQLiteTables(self._db, clock, SQLITE_NAMES)
        super().__init__(tables, SQLitePieces(self._db, tables, clock), storage)
        self.vector_stores = SQLiteVectorStores(self._db, self._tables, clock)

    @classmethod
    def from_url(
        cls, url: str, storage: ObjectStorage | None = None, *, clock: Callable[[], float] = time.time
    ) -> SQLiteFileStore:
        """The database is created on first use."""
        return cls(sqlite_path(url), storage, clock=clock)

    async def delete(self, owner: str, file_id: str) -> bool:
        def work(db: apsw.Connection) -> list[tuple[object, ...]] | None:
            exists = "SELECT 1 FROM files WHERE id = ? AND owner = ? AND (expires_at IS NULL OR expires_at > ?)"
            return _delete(db, file_id) if query(db, exists, (file_id, owner, self._clock())) else None

        removed = await self._db.write(work)
        await self.vector_stores.delete_chunks(removed or ())
        return removed is not None

    async def sweep(self) -> None:
        await self.vector_stores.delete_chunks(await self._db.write(self._sweep))
        await self.uploads.sweep()
        while await self._db.read(lambda db: query(db, "SELECT 1 FROM removed LIMIT 1")):
            await self._db.write(_delete_some)
        await self.vector_stores.sweep()
        await self._sweep_objects()

    def _sweep(self, db: apsw.Connection) -> list[tuple[object, ...]]:
        now = self._clock()
        for (file_id,) in query(db, "DELETE FROM uploads WHERE touched <= ? RETURNING file", (now - ABANDONED_AFTER,)):
            db.execute("DELETE FROM pieces WHERE file = ?", (file_id,))
        expired = query(db, "SELECT id FROM files WHERE expires_at <= ?", (now,))
        return [removed for (file_id,) in expired for removed in _delete(db, file_id)]

    async def prepare_vectors(self) -> None:
        """Every database supports embeddings."""

    async def check(self) -> None:
        """Acquire and release the write lock."""
        await self._db.write(lambda db: None)
        await self._objects.check()

    async def aclose(self) -> None:
        await self.vector_stores.aclose()
        await self._db.aclose()


def _delete(db: apsw.Connection, file_id: str) -> list[tuple[object, ...]]:
    """Return the file's rows in vector stores, as (vector store id, row)."""
    removed = query(db, "DELETE FROM store_files WHERE id = ? RETURNING store, row", (file_id,))
    db.execute("DELETE FROM files WHERE id = ?", (file_id,))
    db.execute("DELETE FROM pieces WHERE file = ?", (file_id,))
    for part in query(db, "DELETE FROM upload_parts WHERE file = ? RETURNING id", (file_id,)):
        db.execute("INSERT INTO removed (content) VALUES (?)", part)
    return removed


def _delete_some(db: apsw.Connection) -> None:
    """Delete a few pieces, since other processes wait for the transaction."""
    oldest = f"(SELECT content FROM removed ORDER BY row LIMIT {DELETED_PIECES})"
    some = f"SELECT rowid FROM pieces WHERE file IN {oldest} LIMIT {DELETED_PIECES}"
    db.execute(f"DELETE FROM pieces WHERE rowid IN ({some})")
    deleted = f"content IN {oldest} AND NOT EXISTS (SELECT 1 FROM pieces WHERE file = content)"
    db.execute(f"DELETE FROM removed WHERE {deleted}")


def sqlite_path(url: str) -> Path:
    """Raises `ValueError` for other URLs."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path or path.endswith("/") or parts.query:
        raise ValueError("must be a file, such as sqlite:///files.db (relative) or sqlite:////var/lib/files.db")
    return Path(path).expanduser()
