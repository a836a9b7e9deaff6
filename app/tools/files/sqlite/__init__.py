"""
Files in one SQLite database: it outlives the process, and several workers of one machine share it.

    sqlite:///files.db           relative to the working directory
    sqlite:////var/lib/files.db  absolute
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import apsw

from app.tools.files import File, Page, UnknownCursor
from app.tools.files.sqlite.database import Database, query

ABANDONED_AFTER = 3600  # seconds without a new piece after which an upload is removed

_VERSION = 1
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
"""
_FILE = "SELECT id, owner, filename, purpose, bytes, created_at, expires_at FROM files"
_ALIVE = "(expires_at IS NULL OR expires_at > :now)"


class SQLiteFileStore:
    """A `FileStore` in one file."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._db = Database(path, _SCHEMA, _VERSION)
        self._clock = clock

    @classmethod
    def from_url(cls, url: str, *, clock: Callable[[], float] = time.time) -> SQLiteFileStore:
        """Make the store of a `sqlite:///` URL; the file is made on first use."""
        return cls(sqlite_path(url), clock=clock)

    async def write(self, id: str, number: int, data: bytes) -> None:
        """Keep a piece of a file that is being uploaded."""

        def work(db: apsw.Connection) -> None:
            db.execute("INSERT INTO pieces (file, number, data) VALUES (?, ?, ?)", (id, number, data))
            db.execute("INSERT OR REPLACE INTO uploads VALUES (?, ?)", (id, self._clock()))

        await self._db.write(work)

    async def add(self, file: File) -> None:
        """Make a file visible whose content has been written."""

        def work(db: apsw.Connection) -> None:
            values = (file.id, file.owner, file.filename, file.purpose, file.bytes, file.created_at, file.expires_at)
            db.execute(
                "INSERT INTO files (id, owner, filename, purpose, bytes, created_at, expires_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            db.execute("DELETE FROM uploads WHERE file = ?", (file.id,))

        await self._db.write(work)

    async def discard(self, id: str) -> None:
        """Forget what was written of a file that was never added."""

        def work(db: apsw.Connection) -> None:
            if query(db, "DELETE FROM uploads WHERE file = ? RETURNING file", (id,)):
                db.execute("DELETE FROM pieces WHERE file = ?", (id,))

        await self._db.write(work)

    async def file(self, owner: str, id: str) -> File | None:
        """Return a file, if it is there and has not expired."""
        values = {"owner": owner, "id": id, "now": self._clock()}
        statement = f"{_FILE} WHERE id = :id AND owner = :owner AND {_ALIVE}"
        rows = await self._db.read(lambda db: query(db, statement, values))
        return File(*rows[0]) if rows else None

    async def files(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[File], bool]:
        """Return a page of files and whether there are more."""
        values = {"owner": owner, "purpose": purpose, "now": self._clock()}
        where = f"owner = :owner AND {_ALIVE} AND (:purpose IS NULL OR purpose = :purpose)"
        rows, more = await self._db.read(lambda db: listed(db, _FILE, "files", where, values, page))
        return [File(*row) for row in rows], more

    async def content(self, id: str) -> AsyncIterator[bytes]:
        """Yield the content of a file, whose owner has been checked."""
        number = 0
        statement = "SELECT data FROM pieces WHERE file = ? AND number = ?"
        while True:
            rows = await self._db.read(partial(query, statement=statement, values=(id, number)))
            if not rows:
                return
            yield rows[0][0]
            number += 1

    async def delete(self, owner: str, id: str) -> bool:
        """Forget a file; tell whether it was there."""
        values = {"owner": owner, "id": id, "now": self._clock()}

        def work(db: apsw.Connection) -> bool:
            statement = f"DELETE FROM files WHERE id = :id AND owner = :owner AND {_ALIVE} RETURNING id"
            found = bool(query(db, statement, values))
            if found:
                db.execute("DELETE FROM pieces WHERE file = ?", (id,))
            return found

        return await self._db.write(work)

    async def sweep(self) -> None:
        """Remove what has expired, and uploads that were given up."""
        await self._db.write(self._sweep)

    def _sweep(self, db: apsw.Connection) -> None:
        now = self._clock()
        gone = query(db, "DELETE FROM files WHERE expires_at <= ? RETURNING id", (now,))
        gone += query(db, "DELETE FROM uploads WHERE touched <= ? RETURNING file", (now - ABANDONED_AFTER,))
        for (id,) in gone:
            db.execute("DELETE FROM pieces WHERE file = ?", (id,))

    async def check(self) -> None:
        """Take the lock that a write needs, and give it back."""
        await self._db.write(lambda db: None)

    async def aclose(self) -> None:
        """Close the database, after what is being written."""
        await self._db.aclose()


def sqlite_path(url: str) -> Path:
    """Return the path in a `sqlite:///` URL; raises `ValueError` where there is none."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.scheme != "sqlite" or parts.netloc or not path or path.endswith("/") or parts.query:
        raise ValueError("should be a file, such as sqlite:///files.db (relative) or sqlite:////var/lib/files.db")
    return Path(path).expanduser()


def listed(
    db: apsw.Connection, select: str, table: str, where: str, values: dict[str, Any], page: Page
) -> tuple[list[tuple[Any, ...]], bool]:
    """
    Return the rows of a page, and whether there are more behind it.

    `table` orders by its column `row` and names its entries in `id`; `where` and `values` say which of them are listed.
    """
    bounds = []
    for name, behind in (("after", page.descending), ("before", not page.descending)):
        if (id := getattr(page, name)) is None:
            continue
        rows = query(db, f"SELECT row FROM {table} WHERE {where} AND id = :cursor", {**values, "cursor": id})
        if not rows:
            raise UnknownCursor(name, id)
        bounds.append(f"row {'<' if behind else '>'} {rows[0][0]}")
    # With `before` alone, the entries wanted are the nearest before it.
    backwards = page.before is not None and page.after is None
    descending = page.descending != backwards
    conditions = " AND ".join([where, *bounds])
    order = "DESC" if descending else "ASC"
    statement = f"{select} WHERE {conditions} ORDER BY row {order} LIMIT {page.limit + 1}"
    rows = query(db, statement, values)
    more, rows = len(rows) > page.limit, rows[: page.limit]
    return (rows[::-1] if backwards else rows), more
