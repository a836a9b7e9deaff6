"""File store in SQLite: persistent, and shared by the workers on a machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app.storage.object_storage import ObjectStorage
from app.storage.sqlite import Database, SQLiteTables, in_sqlite
from app.storage.tables import Migrations, Row, Transaction, execute
from app.tools.files import FilesUnavailable
from app.tools.files.batches_sql import BATCH_TABLES
from app.tools.files.contents.attachments import ATTACHMENT_TABLES
from app.tools.files.contents.objects import OBJECT_TABLES
from app.tools.files.files_sql import SQLFileStore
from app.tools.files.multipart_sql import MULTIPART_TABLES
from app.tools.files.sqlite.pieces import SQLitePieces
from app.tools.files.sqlite.vector_stores import SQLITE_NAMES, SQLiteVectorStores

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
_DELETE_ENTRIES = "DELETE FROM antiphon_store_files WHERE id = $1 RETURNING store, {row}"
_DELETE_FILE = """
DELETE FROM antiphon_files WHERE id = $1;
INSERT INTO antiphon_removed (content) SELECT $1 UNION ALL SELECT id FROM antiphon_upload_parts WHERE file = $1;
DELETE FROM antiphon_upload_parts WHERE file = $1
"""


class SQLiteFileStore(SQLFileStore):
    vector_stores: SQLiteVectorStores

    def __init__(
        self, path: Path, storage: ObjectStorage | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._db = Database(path, _MIGRATIONS, f"SQLite file store {path}", FilesUnavailable, readers=2)
        tables = SQLiteTables(self._db, clock, SQLITE_NAMES)
        super().__init__(tables, SQLitePieces(tables), storage)
        self.vector_stores = SQLiteVectorStores(self._db, self._tables)

    @classmethod
    def from_url(
        cls, url: str, storage: ObjectStorage | None = None, *, clock: Callable[[], float] = time.time
    ) -> SQLiteFileStore:
        """The database is created on first use."""
        return cls(sqlite_path(url), storage, clock=clock)

    async def _delete(self, condition: str, *values: object) -> int:
        def transaction() -> Transaction[tuple[int, list[Row]]]:
            files, entries = (yield execute(f"SELECT id FROM antiphon_files WHERE {condition}", *values)), list[Row]()
            for file in files:
                entries += yield execute(_DELETE_ENTRIES, *file)
                yield execute(_DELETE_FILE, *file)
            return len(files), entries

        deleted, entries = await self._tables.run(transaction)
        await self.vector_stores.delete_chunks(entries)
        if deleted:
            await self._pieces.delete_removed()
        return deleted

    async def prepare_vectors(self) -> None:
        """Every database supports embeddings."""

    async def check(self) -> None:
        """Acquire and release the write lock."""
        await self._db.write(lambda db: None)
        await self._objects.check()

    async def aclose(self) -> None:
        await self.vector_stores.aclose()
        await self._db.aclose()


def sqlite_path(url: str) -> Path:
    """Raises `ValueError` for other URLs."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path or path.endswith("/") or parts.query:
        raise ValueError("must be a file, such as sqlite:///files.db (relative) or sqlite:////var/lib/files.db")
    return Path(path).expanduser()
