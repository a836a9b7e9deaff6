"""
SQLite databases, used in threads so that slow disks and locks do not block the event loop.

`apsw` always includes FTS5 and can load `sqlite-vec`, unlike many builds of `sqlite3`. Files are opened only here: with
two SQLite libraries in a process, closing a file in one drops the other's locks.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from app.errors import APIError, StoreUnavailable, UnstorableValue
from app.storage import Outage
from app.storage.tables import Migrations, Rows, Transaction, UnpreparedError, substitute

T = TypeVar("T")

BUSY_TIMEOUT = 5.0  # seconds to wait for another process's lock

# The value is at fault.
_REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, OverflowError, UnicodeError)


def connect(path: Path, *, busy_timeout: float = BUSY_TIMEOUT, synchronous: str = "normal") -> apsw.Connection:
    """Open a database, accessible only to this user; create it and its folder if missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its other files this file's mode. O_EXCL, because closing a file that SQLite has open would drop its
    # locks: POSIX locks belong to the process.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    db = apsw.Connection(str(path))
    try:
        db.set_busy_timeout(round(busy_timeout * 1000))
        db.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")  # deleted content is overwritten
        db.execute("PRAGMA journal_size_limit = 67108864")
        db.convert_binding = lambda cursor, number, value: json.dumps(value)  # lists
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[apsw.Connection]:
    """Acquires the write lock at once, and cannot fail half-way while waiting for it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        with suppress(apsw.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def query(db: apsw.Connection, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
    return db.execute(statement, values).fetchall()


def migrate_tables(db: apsw.Connection, migrations: Migrations) -> None:
    """Raises `UnpreparedError`."""
    if int(db.pragma("user_version")) == migrations.newest:
        return
    with transaction(db):
        for statements in migrations.pending(int(db.pragma("user_version"))):
            db.execute(statements)
        db.pragma("user_version", migrations.newest)


# A transaction locks the whole database.
_LOCKING = re.compile(r"\s+FOR (?:UPDATE|KEY SHARE)(?: OF \w+)?(?: SKIP LOCKED)?\b")
_ANY = re.compile(r"= ANY \((\$\d+)\)")
_NUMBERS = [str(number) for number in range(1, 33)]  # the names of parameters


def in_sqlite(text: str, words: Mapping[str, str]) -> str:
    text = substitute(text, {**words, "antiphon_": "", "{now}": "$now", "{moment}": "$now", "{second}": "1.0"})
    return _LOCKING.sub("", _ANY.sub(r"IN (SELECT value FROM json_each(\1))", text))


class SQLiteTables:
    """
    Tables in a database file, with a writer thread and reader threads, each with its own connection.

    Each call is a complete transaction, so a cancelled caller leaves none open. After an error, the next call opens the
    file again. Every call raises the outage's error, and `UnstorableValue`.
    """

    def __init__(
        self,
        path: Path,
        migrations: Migrations,
        words: Mapping[str, str],
        clock: Callable[[], float],
        error: Callable[[], APIError] = StoreUnavailable,
        *,
        readers: int = 1,
        **options: Any,
    ) -> None:
        """`words` are replaced in statements; `options` are arguments of `connect`."""
        name = f"SQLite store {path}"
        self.path = path
        self._migrations, self._clock = migrations, clock
        self._text = cache(partial(in_sqlite, words=words))
        self._options = options
        self._writer = ThreadPoolExecutor(1, "antiphon-sqlite-write")
        self._readers = ThreadPoolExecutor(readers, "antiphon-sqlite-read")
        self._writing, self._reading = Outage(f"{name} (writing)", error), Outage(f"{name} (reading)", error)
        self._local = threading.local()
        self._open: set[apsw.Connection] = set()

    async def fetch(self, text: str, *values: object) -> Rows:
        return await self.read(lambda db: self._query(db, text, values).fetchall())

    async def snapshot(self, transaction: Callable[[], Transaction[T]]) -> T:
        """Run read-only statements that see no later commits."""

        def work(db: apsw.Connection) -> T:
            db.execute("BEGIN")
            result = self._run(db, transaction)
            db.execute("COMMIT")
            return result

        return await self.read(work)

    async def execute(self, text: str, *values: object, idempotent: bool = False) -> Rows:
        """Statements separated by `;` run in a transaction, and their rows are returned together."""
        return await self.write(lambda db: self._query(db, text, values).fetchall())

    async def run(self, transaction: Callable[[], Transaction[T]], *, idempotent: bool = False) -> T:
        return await self.write(lambda db: self._run(db, transaction))

    def advisory_lock(self, key: str) -> Transaction[None]:
        """Only one transaction runs at a time."""
        yield from ()

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in a reader thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._call, work, self._reading)

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in the writer thread, in a transaction."""

        def run(db: apsw.Connection) -> T:
            with transaction(db):
                if self._writing.lasts:  # write in any case, to detect a full disk
                    db.pragma("user_version", self._migrations.newest)
                return work(db)

        return await asyncio.get_running_loop().run_in_executor(self._writer, self._call, run, self._writing)

    async def check(self) -> None:
        """Acquire and release the write lock."""
        await self.write(lambda db: None)

    async def aclose(self) -> None:
        """Close the file, after running calls have ended."""
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        for db in list(self._open):
            db.close()
        self._open.clear()

    def _call(self, work: Callable[[apsw.Connection], T], outage: Outage) -> T:
        deadline = time.monotonic() + self._options.get("busy_timeout", BUSY_TIMEOUT)
        while True:
            try:
                result = work(self._connection())
            except _REFUSED:
                self._discard_connection()
                raise UnstorableValue from None
            except (apsw.Error, OSError, UnpreparedError) as error:
                self._discard_connection()
                # SQLite does not wait while several connections create or recover the file.
                if isinstance(error, apsw.BusyError) and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                reason = str(error) if isinstance(error, UnpreparedError) else f"{type(error).__name__}: {error}"
                raise outage.begins(reason) from None
            except APIError:  # rejected by a transaction, which was rolled back
                raise
            except BaseException:
                self._discard_connection()
                raise
            outage.ends()
            return result

    def _connection(self) -> apsw.Connection:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self.path, **self._options)
            self._open.add(db)
            migrate_tables(db, self._migrations)
        return db

    def _discard_connection(self) -> None:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            self._open.discard(db)
            with suppress(apsw.Error):
                db.close()

    def _run(self, db: apsw.Connection, transaction: Callable[[], Transaction[T]]) -> T:
        running = transaction()
        try:
            statement = next(running)
            while True:
                rows: Rows = []
                if statement.many is None:
                    rows = self._query(db, statement.text, statement.values).fetchall()
                else:
                    for values in statement.many:
                        self._query(db, statement.text, values)
                statement = running.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result

    def _query(self, db: apsw.Connection, text: str, values: tuple[object, ...]) -> apsw.Cursor:
        return db.execute(self._text(text), dict(zip(_NUMBERS, values), now=self._clock()))  # noqa: B905
