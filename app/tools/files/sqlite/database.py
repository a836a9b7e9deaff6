"""
SQLite databases, asked in threads: neither a slow disk nor another process's lock stops the event loop.

This is SQLite as `apsw` brings it, and not Python's own module: it always has FTS5, and loads `sqlite-vec`, which the
`sqlite3` of many Pythons cannot. Two SQLite libraries must never open one file in one process (closing it in one drops
the locks of the other), so these files are opened here alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from app.tools.files import FilesUnavailable, Page, UnknownCursor

T = TypeVar("T")
logger = logging.getLogger(__name__)

BUSY_TIMEOUT = 5.0  # seconds to wait for another process's lock


def connect(path: Path) -> apsw.Connection:
    """Open a database, and make it and its folder if need be, readable by this user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its other files the mode of this one. O_EXCL, since closing a file that SQLite has open would drop
    # SQLite's locks: POSIX locks belong to the process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    db = apsw.Connection(str(path))
    try:
        db.set_busy_timeout(round(BUSY_TIMEOUT * 1000))
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only while the file is empty
        db.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        db.execute("PRAGMA journal_size_limit = 67108864")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[apsw.Connection]:
    """Do all or nothing; the lock for writing is taken at once, so that waiting for it cannot fail half-way."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        with suppress(apsw.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def empty_log(db: apsw.Connection) -> None:
    """Leave nothing in the write-ahead log, where what was deleted still stands; next time, if somebody is reading."""
    db.set_busy_timeout(50)
    try:
        db.execute("PRAGMA wal_checkpoint (TRUNCATE)")
    finally:
        db.set_busy_timeout(round(BUSY_TIMEOUT * 1000))


def query(db: apsw.Connection, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement."""
    return db.execute(statement, values).fetchall()


def create_tables(db: apsw.Connection, schema: str, version: int) -> None:
    """Make the tables of a new file; raise if the file is one that this code cannot read."""
    found = int(db.pragma("user_version"))
    if found == version:
        return
    with transaction(db):
        found = int(db.pragma("user_version"))
        if found == 0:
            db.execute(schema)
            db.pragma("user_version", version)
        elif found != version:
            raise apsw.SQLError(f"the file has version {found}, and this server knows only {version}")


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


class Database:
    """
    One file, with one thread that writes and a few that read.

    What they are given is a whole transaction: a caller that is cancelled leaves none open. After an error the
    connection is given up and the next call opens the file anew, so a database recovers from whatever was wrong.
    """

    def __init__(self, path: Path, schema: str, version: int, *, readers: int = 2) -> None:
        self.path = path
        self._schema, self._version = schema, version
        self._writer = ThreadPoolExecutor(1, "antiphon-files-write")
        self._readers = ThreadPoolExecutor(readers, "antiphon-files-read")
        self._local = threading.local()
        self._open: set[apsw.Connection] = set()
        self._away = False

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run what reads; raises `FilesUnavailable`."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run, work)

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run what writes in one transaction; raises `FilesUnavailable`."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._run, _in_transaction(work))

    async def run(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run what cannot be in a transaction, where others write; raises `FilesUnavailable`."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._run, work)

    async def aclose(self) -> None:
        """Close the file, once what is running has ended."""
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        for db in list(self._open):
            db.close()
        self._open.clear()

    def _run(self, work: Callable[[apsw.Connection], T]) -> T:
        deadline = time.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                result = work(self._connection())
            except (apsw.Error, OSError) as error:
                self._give_up()
                # SQLite waits for a lock itself, but not where several connections make the file or recover it.
                if isinstance(error, apsw.BusyError) and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                if not self._away:
                    logger.error("the file store is unavailable: %s: %s", type(error).__name__, error)
                self._away = True
                raise FilesUnavailable from None
            except BaseException:
                self._give_up()
                raise
            if self._away:
                logger.info("the file store is available again")
            self._away = False
            return result

    def _connection(self) -> apsw.Connection:
        """Return the connection of this thread."""
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self.path)
            self._open.add(db)
            create_tables(db, self._schema, self._version)
        return db

    def _give_up(self) -> None:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            self._open.discard(db)
            with suppress(apsw.Error):
                db.close()


def _in_transaction(work: Callable[[apsw.Connection], T]) -> Callable[[apsw.Connection], T]:
    def run(db: apsw.Connection) -> T:
        with transaction(db):
            return work(db)

    return run
