"""
SQLite databases, accessed in threads: neither a slow disk nor another process's lock blocks the event loop.

SQLite comes from `apsw`, not from Python's `sqlite3`: it always has FTS5, and can load `sqlite-vec`, which many builds
of `sqlite3` cannot. Two SQLite libraries must never open the same file in one process (closing it in one drops the
locks of the other), so these files are opened only here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from app.tools.files import FilesUnavailable

T = TypeVar("T")
logger = logging.getLogger(__name__)

BUSY_TIMEOUT = 5.0  # seconds to wait for another process's lock


def connect(path: Path) -> apsw.Connection:
    """Open a database, creating it and its folder if needed, accessible only to this user."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its other files the mode of this one. O_EXCL, since closing a file that SQLite has open would drop
    # SQLite's locks: POSIX locks belong to the process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    db = apsw.Connection(str(path))
    try:
        db.set_busy_timeout(round(BUSY_TIMEOUT * 1000))
        db.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")  # deleted content is overwritten
        db.execute("PRAGMA journal_size_limit = 67108864")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[apsw.Connection]:
    """Run a transaction. It takes the write lock at once, so that it cannot fail half-way while waiting for it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        with suppress(apsw.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def query(db: apsw.Connection, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a statement."""
    return db.execute(statement, values).fetchall()


def numbered(values: tuple[object, ...]) -> dict[str, object]:
    """Return the values of the parameters `$1`, `$2`, ..."""
    return {str(number): value for number, value in enumerate(values, 1)}


def migrate_tables(db: apsw.Connection, migrations: Sequence[str]) -> None:
    """
    Create or migrate the tables of a file.

    Each migration leads from the version that is its index to the next; version 0 is an empty file. Raises
    `apsw.SQLError` if the file was written by a later version of this server.
    """
    if int(db.pragma("user_version")) == len(migrations):
        return
    with transaction(db):
        version = int(db.pragma("user_version"))
        if version > len(migrations):
            raise apsw.SQLError(f"the file has version {version}, and this server knows only {len(migrations)}")
        for migration in migrations[version:]:
            db.execute(migration)
        db.pragma("user_version", len(migrations))


class Database:
    """
    A database file, with one writer thread and a few reader threads.

    Each call is a complete transaction, so a cancelled caller leaves none open. After an error the connection is closed
    and the next call opens the file again, so the database recovers once the cause is gone.
    """

    def __init__(self, path: Path, migrations: Sequence[str], *, readers: int = 2) -> None:
        self.path = path
        self._migrations = migrations
        self._writer = ThreadPoolExecutor(1, "antiphon-files-write")
        self._readers = ThreadPoolExecutor(readers, "antiphon-files-read")
        self._local = threading.local()
        self._open: set[apsw.Connection] = set()
        self._unavailable = False

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in a reader thread and return its result; raises `FilesUnavailable`."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._run, work)

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in the writer thread, in a transaction, and return its result; raises `FilesUnavailable`."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._run, _in_transaction(work))

    async def aclose(self) -> None:
        """Close the file, after running calls have ended."""
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
                self._discard_connection()
                # SQLite itself waits for locks, but not while several connections create or recover the file.
                if isinstance(error, apsw.BusyError) and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                if not self._unavailable:
                    logger.error("the file store is unavailable: %s: %s", type(error).__name__, error)
                self._unavailable = True
                raise FilesUnavailable from None
            except BaseException:
                self._discard_connection()
                raise
            if self._unavailable:
                logger.info("the file store is available again")
            self._unavailable = False
            return result

    def _connection(self) -> apsw.Connection:
        """Return the connection of this thread."""
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self.path)
            self._open.add(db)
            migrate_tables(db, self._migrations)
        return db

    def _discard_connection(self) -> None:
        """Close the connection of this thread, so that the next call opens a new one."""
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
