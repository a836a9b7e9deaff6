"""
A store in one SQLite file: it outlives the process, and several workers of one machine share it.

    sqlite:///antiphon.db           relative to the working directory
    sqlite:////var/lib/antiphon.db  absolute
    sqlite:///antiphon.db?synchronous=full&busy_timeout=5

SQLite blocks, so it is used in two threads of the store's own, one that reads and one that writes: neither a slow
disk nor a lock held by another process stops the event loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from app.errors import StoreUnavailable
from app.stores import Change, owner_of
from app.stores.outage import Outage
from app.stores.sqlite import event_log
from app.stores.sqlite.event_log import SQLiteLog
from app.stores.sqlite.schema import PADDING, VERSION, empty_wal, prepare
from app.stores.sqlite.usage import SQLiteUsage
from app.stores.url_options import one_of, read_options, seconds

T = TypeVar("T")

# Each statement is given :bucket (a name), :name, :record, :given, :now and :until as far as it uses them; times are
# Unix times, so that a restart keeps them.
_EXPIRE = "DELETE FROM buckets WHERE name = :bucket AND expires <= :now"
_RENEW = """
INSERT INTO buckets (name, expires) VALUES (:bucket, :until) ON CONFLICT (name) DO UPDATE SET expires = excluded.expires
"""
_PUT = f"""
INSERT INTO records (bucket, name, padding, entry, record)
SELECT id, :name, {PADDING}, :entry, :record FROM buckets WHERE name = :bucket
ON CONFLICT (bucket, name) DO UPDATE SET entry = coalesce(excluded.entry, entry), record = excluded.record
"""
_LIST = """
INSERT INTO listed (owner, position, bucket, name)
SELECT :owner, (SELECT coalesce(max(position), 0) + 1 FROM listed WHERE owner = :owner), id, :name
FROM buckets WHERE name = :bucket
ON CONFLICT (bucket, name) DO NOTHING
"""
# A few at a time, so that nobody waits for a big clean-up.
_PURGE = "DELETE FROM buckets WHERE id IN (SELECT id FROM buckets WHERE expires <= :now LIMIT 20)"
_EXPIRED = "SELECT 1 FROM buckets WHERE expires <= :now LIMIT 1"
# A bucket without records has one row, of NULLs: it is renewed all the same.
_GET = """
SELECT expires, record FROM buckets LEFT JOIN records ON bucket = id AND records.name = :name
WHERE buckets.name = :bucket AND expires > :now
"""
_ALL = """
SELECT expires, records.name, record FROM buckets LEFT JOIN records ON bucket = id
WHERE buckets.name = :bucket AND expires > :now
"""
_NAMES = """
SELECT expires, records.name FROM buckets LEFT JOIN records ON bucket = id
WHERE buckets.name = :bucket AND expires > :now
"""
_RENEW_READ = "UPDATE buckets SET expires = :until WHERE name = :bucket AND expires > :now"
_DELETE = """
DELETE FROM records WHERE name = :name AND bucket IN (SELECT id FROM buckets WHERE name = :bucket AND expires > :now)
"""
_POSITION = """
SELECT position FROM listed JOIN buckets ON id = bucket WHERE owner = :owner AND listed.name = :after AND expires > :now
"""
_RECENT = """
SELECT entry FROM listed JOIN records USING (bucket, name) JOIN buckets ON id = bucket
WHERE owner = :owner AND position < :position AND expires > :now ORDER BY position DESC LIMIT :limit
"""
_DROP = "DELETE FROM buckets WHERE name = :bucket AND expires > :now"
_DROP_EMPTY = """
DELETE FROM buckets WHERE name = :bucket AND NOT EXISTS (SELECT 1 FROM records WHERE bucket = buckets.id)
"""
_HAS = """
SELECT 1 FROM buckets JOIN records ON bucket = id
WHERE buckets.name = :bucket AND expires > :now AND records.name = :given
"""

# Writes a page, and changes nothing.
_TOUCH = f"PRAGMA user_version = {VERSION}"

# A record whose `put` returned survives the process, also `kill -9`, either way: a commit hands it to the operating
# system. `full` waits for the disk as well, so that it survives a power cut.
_SYNCHRONOUS = one_of("normal", "full")


class SQLiteStore:
    """Buckets in a table, their records in another."""

    def __init__(
        self,
        path: str | Path,
        *,
        ttl: float,
        busy_timeout: float = 5.0,
        synchronous: str = "normal",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path).expanduser()
        self._ttl = ttl
        self._busy_timeout = busy_timeout
        self._synchronous = synchronous
        self._clock = clock
        # A bucket that is only read is renewed when its expiry would move by more than this: reading stays reading,
        # at the price that it may expire that much early.
        self._slack = min(ttl / 100, 3600)
        self._reads = _Thread(self._open, busy_timeout, Outage(f"SQLite store {self._path} (reading)"))
        self._writes = _Thread(self._open, busy_timeout, Outage(f"SQLite store {self._path} (writing)"))

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        ttl: float,
        busy_timeout: float = 5.0,
        synchronous: str = "normal",
        clock: Callable[[], float] = time.time,
    ) -> SQLiteStore:
        """
        Make the store of a `sqlite:///` URL, whose options `busy_timeout` (seconds) and `synchronous` win.

        The file, and the directories it is in, are made on first use.
        """
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.netloc or not path or path.endswith("/"):
            raise ValueError(
                "A SQLite store needs a file: write sqlite:///relative.db (three slashes) or sqlite:////absolute.db."
            )
        if path == ":memory:":
            raise ValueError("For a store in memory write memory://")
        options: dict[str, Any] = {"busy_timeout": busy_timeout, "synchronous": synchronous}
        options |= read_options(parts.query, {"busy_timeout": seconds, "synchronous": _SYNCHRONOUS})
        return cls(path, ttl=ttl, clock=clock, **options)

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        """Keep a record and renew its bucket, in one transaction."""
        await self.apply(Change(bucket, {name: record}))

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        """Store a record if there is none of that name, in one transaction; return whether it was stored."""
        now = self._clock()
        times = {"now": now, "until": now + self._ttl}
        return await self._writes.write(lambda db: _add(db, bucket, name, record, times))

    async def apply(self, *changes: Change) -> bool:
        """Make changes in one transaction; make none, and return False, where a given record is missing."""
        now = self._clock()
        times = {"now": now, "until": now + self._ttl}
        return await self._writes.write(lambda db: _apply(db, changes, times))

    async def get(self, bucket: str, name: str) -> bytes | None:
        """Return one record, and renew its bucket."""
        rows = await self._read(_GET, bucket, name)
        return rows[0][1] if rows else None

    async def all(self, bucket: str) -> dict[str, bytes]:
        """Return a bucket's records by name, and renew it."""
        rows = await self._read(_ALL, bucket)
        return {name: record for _, name, record in rows if name is not None}

    async def names(self, bucket: str) -> set[str]:
        """Return the names of a bucket's records, and renew it."""
        rows = await self._read(_NAMES, bucket)
        return {name for _, name in rows if name is not None}

    async def delete(self, bucket: str, name: str) -> bool:
        """Forget one record; tell whether it was there."""
        values = {"bucket": bucket, "name": name, "now": self._clock()}
        return await self._writes.write(lambda db: _delete(db, values))

    async def drop(self, bucket: str) -> bool:
        """Forget a bucket; tell whether it was there."""
        values = {"bucket": bucket, "now": self._clock()}
        return await self._writes.write(lambda db: db.execute(_DROP, values).rowcount) > 0

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        """Return the entries of an owner's records, the newest first."""
        values: dict[str, object] = {"owner": owner, "after": after, "limit": limit, "now": self._clock()}

        def read(db: sqlite3.Connection) -> list[bytes] | None:
            position = (2**63 - 1,) if after is None else db.execute(_POSITION, values).fetchone()
            if position is None:
                return None
            return [entry for (entry,) in db.execute(_RECENT, {**values, "position": position[0]})]

        return await self._reads.run(read)

    def log(self, *, ttl: float, lease: float) -> SQLiteLog:
        """Return an event log in the same file, used in the same threads."""
        return SQLiteLog(self._reads, self._writes, ttl=ttl, lease=lease, clock=self._clock)

    def usage(self, *, days: int) -> SQLiteUsage:
        """Return the usage of keys in the same file, used in the same threads."""
        return SQLiteUsage(self._reads, self._writes, self._clock)

    async def purge(self) -> None:
        """Delete what has expired, and leave nothing of what was deleted in any of the files."""
        if not await asyncio.to_thread(self._path.exists):
            return
        for expired, delete in ((_EXPIRED, _PURGE), (event_log.EXPIRED, event_log.PURGE)):
            now = {"now": self._clock()}
            while await self._reads.run(lambda db: db.execute(expired, now).fetchone()):  # noqa: B023
                await self._writes.write(lambda db: db.execute(delete, now))  # noqa: B023
        if await asyncio.to_thread(self._has_wal):
            await self._writes.run(empty_wal)

    async def check(self) -> None:
        """Take the lock that a write needs, and give it back."""
        await self._writes.write(lambda db: None)

    async def aclose(self) -> None:
        """Close the file, after what is being written."""
        await asyncio.gather(self._reads.aclose(), self._writes.aclose())

    async def _read(self, statement: str, bucket: str, name: str | None = None) -> list[tuple[Any, ...]]:
        now = self._clock()
        until = now + self._ttl
        values = {"bucket": bucket, "name": name, "now": now, "until": until}
        rows = await self._reads.run(lambda db: db.execute(statement, values).fetchall())
        if rows and abs(until - rows[0][0]) > self._slack:
            # The result is complete even if the renewal fails; the next use renews.
            with suppress(StoreUnavailable):
                await self._writes.write(lambda db: db.execute(_RENEW_READ, values))
        return rows

    def _has_wal(self) -> bool:
        wal = self._path.with_name(f"{self._path.name}-wal")
        return wal.exists() and wal.stat().st_size > 0

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives its other files the mode of this one. O_EXCL is not only for the mode: to open and close a file
        # that SQLite has open in this process would drop SQLite's locks, since POSIX locks belong to the process.
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        # Each connection is used by one thread at a time, but closed by another.
        db = sqlite3.connect(self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)
        try:
            prepare(db, self._synchronous)
        except BaseException:
            db.close()
            raise
        return db


def _apply(db: sqlite3.Connection, changes: Sequence[Change], times: Mapping[str, float]) -> bool:
    """Make changes, if all records are there that they depend on."""
    for change in changes:
        values = {"bucket": change.bucket, "given": change.given, **times}
        if change.given is not None and not db.execute(_HAS, values).fetchone():
            return False
    for change in changes:
        values = {"bucket": change.bucket, "owner": owner_of(change.bucket), **times}
        db.execute(_EXPIRE, values)
        db.execute(_RENEW, values)
        for name, record in change.put.items():
            db.execute(_PUT, {**values, "name": name, "record": record, "entry": change.entries.get(name)})
        db.executemany(_LIST, [{**values, "name": name} for name in change.entries])
        db.executemany(_DELETE, [{**values, "name": name} for name in change.delete])
        db.execute(_DROP_EMPTY, values)
    return True


def _add(db: sqlite3.Connection, bucket: str, name: str, record: bytes, times: Mapping[str, float]) -> bool:
    """Store a record if there is none of that name, and renew the bucket."""
    there = db.execute(_HAS, {"bucket": bucket, "given": name, **times}).fetchone()
    _apply(db, [Change(bucket, {} if there else {name: record})], times)
    return not there


def _delete(db: sqlite3.Connection, values: Mapping[str, object]) -> bool:
    deleted = db.execute(_DELETE, values).rowcount > 0
    db.execute(_DROP_EMPTY, values)
    return deleted


class _Thread:
    """
    One thread with a connection of its own.

    What it is given to run is a whole transaction: a caller that is cancelled meanwhile leaves none open. After any
    error the connection is given up, which rolls back, and the next call opens the file anew: so a store recovers
    from whatever was wrong with the file, also if somebody has replaced it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], patience: float, outage: Outage) -> None:
        self._connect = connect
        self._patience = patience  # seconds for a lock
        self._outage = outage
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-sqlite")
        self._db: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction; raise StoreUnavailable if SQLite or the file system refuses it."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, work)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run what writes, or not, in one transaction. Where the last one failed, it does write: is the disk full?"""

        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            if self._outage.lasts:
                db.execute(_TOUCH)
            result = work(db)
            db.execute("COMMIT")
            return result

        return await self.run(transaction)

    async def aclose(self) -> None:
        """Close the connection, once what is running has ended."""
        await asyncio.to_thread(self._executor.shutdown)
        self._disconnect()

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._db = self._db or self._connect()
                result = work(self._db)
            except (sqlite3.Error, OSError) as error:
                self._disconnect()
                # SQLite waits for a lock itself, but for some it does not: when several connections make the file,
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
