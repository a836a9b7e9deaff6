"""
The file store in a SQLite database: persistent, and shared by the workers of one machine.

    sqlite:///files.db           relative to the working directory
    sqlite:////var/lib/files.db  absolute
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw

from app.tools.files import ABANDONED_AFTER, File, Page
from app.tools.files.sqlite.database import Database, empty_log, listed, query
from app.tools.files.sqlite.vector_stores import SQLiteVectorStores

SWEPT_PAGES = 25_000  # pages that one sweep returns to the file system, 100 MB

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
# The files of each owner wait to be indexed in a queue of their own; `key` has added the file.
_QUEUES = """
ALTER TABLE store_files ADD COLUMN queue TEXT NOT NULL DEFAULT '';
ALTER TABLE store_files ADD COLUMN key TEXT NOT NULL DEFAULT '';
UPDATE store_files SET queue = (SELECT owner FROM stores WHERE stores.id = store) WHERE status = 'in_progress';
CREATE INDEX store_files_by_queue ON store_files (queue, row) WHERE status = 'in_progress';
CREATE TABLE turns (queue TEXT PRIMARY KEY, served REAL NOT NULL) WITHOUT ROWID;
"""
_FILE = "SELECT id, owner, filename, purpose, bytes, created_at, expires_at FROM files"
_ALIVE = "(expires_at IS NULL OR expires_at > :now)"


class SQLiteFileStore:
    """A `FileStore` in a SQLite database."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._db = Database(path, [_SCHEMA, _QUEUES])
        self._clock = clock
        self.vector_stores = SQLiteVectorStores(self._db, clock)

    @classmethod
    def from_url(cls, url: str, *, clock: Callable[[], float] = time.time) -> SQLiteFileStore:
        """Create the store for a `sqlite:///` URL; the database is created on first use."""
        return cls(sqlite_path(url), clock=clock)

    async def write(self, file_id: str, number: int, data: bytes) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute("INSERT INTO pieces (file, number, data) VALUES (?, ?, ?)", (file_id, number, data))
            db.execute("INSERT OR REPLACE INTO uploads VALUES (?, ?)", (file_id, self._clock()))

        await self._db.write(work)

    async def add(self, file: File, limit: int | None = None) -> bool:
        def work(db: apsw.Connection) -> bool:
            if limit is not None and self._stored_bytes(db, file.owner) + file.bytes > limit:
                return False
            values = (file.id, file.owner, file.filename, file.purpose, file.bytes, file.created_at, file.expires_at)
            db.execute(
                "INSERT INTO files (id, owner, filename, purpose, bytes, created_at, expires_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            db.execute("DELETE FROM uploads WHERE file = ?", (file.id,))
            return True

        return await self._db.write(work)

    async def stored_bytes(self, owner: str) -> int:
        return await self._db.read(lambda db: self._stored_bytes(db, owner))

    def _stored_bytes(self, db: apsw.Connection, owner: str) -> int:
        statement = f"SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = :owner AND {_ALIVE}"
        return int(query(db, statement, {"owner": owner, "now": self._clock()})[0][0])

    async def discard(self, file_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            if query(db, "DELETE FROM uploads WHERE file = ? RETURNING file", (file_id,)):
                db.execute("DELETE FROM pieces WHERE file = ?", (file_id,))

        await self._db.write(work)

    async def file(self, owner: str, file_id: str) -> File | None:
        values = {"owner": owner, "id": file_id, "now": self._clock()}
        statement = f"{_FILE} WHERE id = :id AND owner = :owner AND {_ALIVE}"
        rows = await self._db.read(lambda db: query(db, statement, values))
        return File(*rows[0]) if rows else None

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        values = {"owner": owner, "purpose": purpose, "now": self._clock()}
        where = f"owner = :owner AND {_ALIVE} AND (:purpose IS NULL OR purpose = :purpose)"
        rows, more = await self._db.read(lambda db: listed(db, _FILE, "files", where, values, page))
        return [File(*row) for row in rows], more

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        number = 0
        statement = "SELECT data FROM pieces WHERE file = ? AND number = ?"
        while True:
            rows = await self._db.read(partial(query, statement=statement, values=(file_id, number)))
            if not rows:
                return
            yield rows[0][0]
            number += 1

    async def delete(self, owner: str, file_id: str) -> bool:
        values = {"owner": owner, "id": file_id, "now": self._clock()}

        def work(db: apsw.Connection) -> list[tuple[object, ...]] | None:
            exists = f"SELECT 1 FROM files WHERE id = :id AND owner = :owner AND {_ALIVE}"
            return _delete(db, file_id) if query(db, exists, values) else None

        removed = await self._db.write(work)
        await self.vector_stores.forget(removed or ())
        return removed is not None

    async def sweep(self) -> None:
        await self.vector_stores.forget(await self._db.write(self._sweep))
        await self.vector_stores.sweep()
        await self._db.write(lambda db: query(db, f"PRAGMA incremental_vacuum ({SWEPT_PAGES})"))
        await self._db.run(empty_log)

    def _sweep(self, db: apsw.Connection) -> list[tuple[object, ...]]:
        now = self._clock()
        for (file_id,) in query(db, "DELETE FROM uploads WHERE touched <= ? RETURNING file", (now - ABANDONED_AFTER,)):
            db.execute("DELETE FROM pieces WHERE file = ?", (file_id,))
        expired = query(db, "SELECT id FROM files WHERE expires_at <= ?", (now,))
        return [removed for (file_id,) in expired for removed in _delete(db, file_id)]

    async def prepare_vectors(self) -> None:
        """Do nothing: every database can store embeddings."""

    async def check(self) -> None:
        """Check that the database can be written to: take the write lock and release it."""
        await self._db.write(lambda db: None)

    async def aclose(self) -> None:
        """Close the database, after pending writes."""
        await self.vector_stores.aclose()
        await self._db.aclose()


def _delete(db: apsw.Connection, file_id: str) -> list[tuple[object, ...]]:
    """Delete a file; return its rows in vector stores, as (vector store id, row)."""
    removed = query(db, "DELETE FROM store_files WHERE id = ? RETURNING store, row", (file_id,))
    db.execute("DELETE FROM files WHERE id = ?", (file_id,))
    db.execute("DELETE FROM pieces WHERE file = ?", (file_id,))
    return removed


def sqlite_path(url: str) -> Path:
    """Return the path in a `sqlite:///` URL; raises `ValueError` for any other URL."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path or path.endswith("/") or parts.query:
        raise ValueError("should be a file, such as sqlite:///files.db (relative) or sqlite:////var/lib/files.db")
    return Path(path).expanduser()
