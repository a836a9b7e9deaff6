"""Threads that run transactions of SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.errors import UnstorableValue
from app.storage.outage import Outage
from app.stores.sqlite.schema import VERSION

T = TypeVar("T")

# Writes a page, and changes nothing.
_TOUCH = f"PRAGMA user_version = {VERSION}"


class DatabaseThread:
    """
    One thread with a connection of its own.

    It runs whole transactions, so a caller that is cancelled leaves none open. After any error the connection is
    closed, which rolls back, and the next call opens the file again: so the store recovers even if the file was
    replaced.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], lock_timeout: float, outage: Outage) -> None:
        self._connect = connect
        self._lock_timeout = lock_timeout  # in seconds
        self._outage = outage
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-sqlite")
        self._db: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction; raises `StoreUnavailable` if SQLite or the file system refuses it, `UnstorableValue`."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, work)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a write transaction. During an outage it always writes, to detect a full disk."""

        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            if self._outage.lasts:
                db.execute(_TOUCH)
            result = work(db)
            db.execute("COMMIT")
            return result

        return await self.run(transaction)

    async def aclose(self) -> None:
        """Close the connection, after the running transaction."""
        await asyncio.to_thread(self._executor.shutdown)
        self._disconnect()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        deadline = time.monotonic() + self._lock_timeout
        while True:
            try:
                self._db = self._db or self._connect()
                result = work(self._db)
            except (sqlite3.DataError, sqlite3.IntegrityError, OverflowError, UnicodeError):
                self._disconnect()
                raise UnstorableValue from None
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                # SQLite waits for most locks itself, but not for some: when several connections create the file,
                # recover it after a crash, or are the last to close it.
                if _is_busy(error) and time.monotonic() < deadline:
                    time.sleep(0.01)
                    continue
                raise self._outage.begins(f"{type(error).__name__}: {error}") from None
            except BaseException:
                self._disconnect()
                raise
            self._outage.ends()
            return result

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
