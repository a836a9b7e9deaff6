"""
A store in a SQLite file, shared by workers on the same machine.

    sqlite:///antiphon.db           relative to the working directory
    sqlite:////var/lib/antiphon.db  absolute
    sqlite:///antiphon.db?synchronous=full&busy_timeout=5
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import apsw
import orjson

from app.errors import StoreUnavailable
from app.storage.sqlite import Database, SQLiteTables, changed, query
from app.storage.url_options import one_of, read_options, seconds
from app.stores import Change, images_bucket, owner_of
from app.stores.keys import FOREVER
from app.stores.sqlite import event_log
from app.stores.sqlite.event_log import SQLiteLog
from app.stores.sqlite.schema import MIGRATIONS, RECORD_PIECE
from app.stores.usage_sql import SQLITE_USAGE, SQLUsage

# :bucket, :images and :name are names, :now and :until Unix times, which survive a restart.
_EXPIRE = "DELETE FROM buckets WHERE name = :bucket AND expires <= :now"
_RENEW = """
INSERT INTO buckets (name, expires) VALUES (:bucket, :until) ON CONFLICT (name) DO UPDATE SET expires = excluded.expires
"""
_PUT = """
INSERT INTO records (bucket, name, entry, record)
SELECT id, :name, :entry, :record FROM buckets WHERE name = :bucket
ON CONFLICT (bucket, name) DO UPDATE SET entry = coalesce(excluded.entry, entry), record = excluded.record
"""
_PUT_PIECE = """
INSERT INTO pieces (bucket, name, number, piece)
SELECT id, :name, :number, :piece FROM buckets WHERE name = :bucket
"""
_GET_PIECES = """
SELECT piece FROM pieces JOIN buckets ON id = bucket WHERE buckets.name = :bucket AND pieces.name = :name
ORDER BY number
"""
_DELETE_PIECES = "DELETE FROM pieces WHERE name = :name AND bucket IN (SELECT id FROM buckets WHERE name = :bucket)"
_LIST = """
INSERT INTO listed (owner, position, bucket, name)
SELECT :owner, (SELECT coalesce(max(position), 0) + 1 FROM listed WHERE owner = :owner), id, :name
FROM buckets WHERE name = :bucket
ON CONFLICT (bucket, name) DO NOTHING
"""
# Only some at a time, to limit how long other writes wait.
_PURGE = "DELETE FROM buckets WHERE id IN (SELECT id FROM buckets WHERE expires <= :now LIMIT 20)"
_EXPIRED = "SELECT 1 FROM buckets WHERE expires <= :now LIMIT 1"
# Without this record, the result is a row of NULLs, because the bucket is renewed in any case.
_GET = """
SELECT expires, records.name, record FROM buckets LEFT JOIN records ON bucket = id AND records.name = :name
WHERE buckets.name = :bucket AND expires > :now
"""
_ALL = """
SELECT expires, records.name, record FROM buckets LEFT JOIN records ON bucket = id
WHERE buckets.name = :bucket AND expires > :now
"""
# In a single row, because the thread releases and acquires the GIL for each.
_NAMES = """
SELECT expires, (SELECT json_group_array(name) FROM records WHERE bucket = id) FROM buckets
WHERE name = :bucket AND expires > :now
"""
_RENEW_READ = "UPDATE buckets SET expires = :until WHERE name IN (:bucket, :images) AND expires > :now"
_RENEW_IMAGES = "UPDATE buckets SET expires = :until WHERE name = :images AND expires > :now"
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
# Uses the index on names: `;` follows `:`. SQLite knows a value's length without reading it.
_STORED = """
SELECT coalesce(sum(size), 0) FROM (
    SELECT length(record) + coalesce(length(entry), 0) AS size FROM buckets JOIN records ON bucket = id
    WHERE buckets.name >= :owner || ':' AND buckets.name < :owner || ';' AND expires > :now
    UNION ALL SELECT length(piece) FROM buckets JOIN pieces ON bucket = id
    WHERE buckets.name >= :owner || ':' AND buckets.name < :owner || ';' AND expires > :now
)
"""
_DROP = "DELETE FROM buckets WHERE name = :bucket AND expires > :now"
_DROP_EMPTY = """
DELETE FROM buckets WHERE name = :bucket AND NOT EXISTS (SELECT 1 FROM records WHERE bucket = buckets.id)
"""
_HAS = """
SELECT 1 FROM buckets JOIN records ON bucket = id
WHERE buckets.name = :bucket AND expires > :now AND records.name = :required
"""

# In both modes, a record survives `kill -9` after `put` returns. With `full` it also survives a power failure.
_SYNCHRONOUS = one_of("normal", "full")


def _whole_records(db: apsw.Connection, statement: str, values: Mapping[str, object]) -> list[tuple[object, ...]]:
    """Return rows of expiry, name and complete record."""
    rows = query(db, statement, values)
    if not any(record and len(record) >= RECORD_PIECE for _, _, record in rows):
        return rows
    db.execute("BEGIN")  # the record can be replaced concurrently
    whole: list[tuple[object, ...]] = []
    for expires, name, record in db.execute(statement, values):
        if record and len(record) >= RECORD_PIECE:
            joined = io.BytesIO()  # avoids a second copy of the record
            joined.write(record)
            joined.writelines(piece for (piece,) in db.execute(_GET_PIECES, {**values, "name": name}))
            record = joined.getvalue()
        whole.append((expires, name, record))
    db.execute("COMMIT")
    return whole


def _pieces(record: bytes) -> list[memoryview]:
    view = memoryview(record)
    return [view[at : at + RECORD_PIECE] for at in range(0, max(1, len(record)), RECORD_PIECE)]


class SQLiteStore:
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
        self._clock = clock
        # Reads do not write smaller changes of the expiry, but the bucket can expire that much early.
        self._slack = min(ttl / 100, 3600)
        self._db = Database(
            self._path,
            MIGRATIONS,
            f"SQLite store {self._path}",
            busy_timeout=busy_timeout,
            synchronous=synchronous,
        )

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float] = time.time) -> SQLiteStore:
        """The file and its directories are created on first use."""
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        if parts.netloc or not path or path.endswith("/"):
            raise ValueError(
                "Invalid store URL: must be sqlite:///relative.db (three slashes) or sqlite:////absolute.db (four)."
            )
        if path == ":memory:":
            raise ValueError("Invalid store URL: must contain a file. For a store in memory, use memory://")
        options = read_options(parts.query, {"busy_timeout": seconds, "synchronous": _SYNCHRONOUS})
        return cls(path, ttl=ttl, clock=clock, **options)

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        await self.apply(Change(bucket, {name: record}))

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        now = self._clock()
        times = {"now": now, "until": now + self._ttl}
        return await self._db.write(lambda db: _add(db, bucket, name, record, times))

    async def apply(self, *changes: Change) -> bool:
        now = self._clock()
        times = {"now": now, "until": now + self._ttl}
        return await self._db.write(lambda db: _apply(db, changes, times))

    async def get(self, bucket: str, name: str) -> bytes | None:
        return (await self._records(_GET, bucket, name)).get(name)

    async def all(self, bucket: str) -> dict[str, bytes]:
        return await self._records(_ALL, bucket)

    async def exists(self, bucket: str, name: str) -> bool:
        values = {"bucket": bucket, "required": name, "now": self._clock()}
        return bool(await self._db.read(lambda db: query(db, _HAS, values)))

    async def names(self, bucket: str) -> set[str]:
        rows = await self._read(_NAMES, {"bucket": bucket})
        return {*orjson.loads(rows[0][1])} if rows else set()

    async def delete(self, bucket: str, name: str) -> bool:
        values = {"bucket": bucket, "name": name, "now": self._clock()}
        return await self._db.write(lambda db: _delete(db, values))

    async def drop(self, bucket: str) -> bool:
        values = {"bucket": bucket, "now": self._clock()}
        return await self._db.write(lambda db: changed(db, _DROP, values)) > 0

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        values: dict[str, object] = {"owner": owner, "after": after, "limit": limit, "now": self._clock()}

        def read(db: apsw.Connection) -> list[bytes] | None:
            position = (2**63 - 1,) if after is None else db.execute(_POSITION, values).fetchone()
            if position is None:
                return None
            return [entry for (entry,) in db.execute(_RECENT, {**values, "position": position[0]})]

        return await self._db.read(read)

    async def stored_bytes(self, owner: str) -> int:
        values = {"owner": owner, "now": self._clock()}
        return int((await self._db.read(lambda db: query(db, _STORED, values)))[0][0])

    def log(self, *, ttl: float, lease: float) -> SQLiteLog:
        return SQLiteLog(self._db, ttl=ttl, lease=lease, clock=self._clock)

    def lasting(self) -> SQLiteStore:
        lasting = copy(self)
        lasting._ttl, lasting._slack = FOREVER, 3600.0
        return lasting

    def usage(self, *, days: int) -> SQLUsage:
        return SQLUsage(SQLiteTables(self._db, self._clock, SQLITE_USAGE))

    async def purge(self) -> None:
        if not await asyncio.to_thread(self._path.exists):
            return
        for expired, delete in ((_EXPIRED, _PURGE), (event_log.EXPIRED, event_log.PURGE)):
            now = {"now": self._clock()}
            while await self._db.read(lambda db: db.execute(expired, now).fetchone()):  # noqa: B023
                await self._db.write(lambda db: db.execute(delete, now))  # noqa: B023

    async def check(self) -> None:
        """Acquire and release the write lock."""
        await self._db.write(lambda db: None)

    async def aclose(self) -> None:
        await self._db.aclose()

    async def _records(self, statement: str, bucket: str, name: str | None = None) -> dict[str, bytes]:
        rows = await self._read(statement, {"bucket": bucket, "name": name}, read=_whole_records)
        return {name: record for _, name, record in rows if name is not None}

    async def _read(
        self, statement: str, values: dict[str, object], read: Callable[..., list[tuple[Any, ...]]] = query
    ) -> list[tuple[Any, ...]]:
        """Return a statement's rows, each starting with the bucket's expiry, and renew the bucket."""
        now = self._clock()
        until = now + self._ttl
        values |= {"images": images_bucket(str(values["bucket"])), "now": now, "until": until}
        rows = await self._db.read(lambda db: read(db, statement, values))
        if rows and abs(until - rows[0][0]) > self._slack:
            # The result is complete even if the renewal fails; the next use renews.
            with suppress(StoreUnavailable):
                await self._db.write(lambda db: db.execute(_RENEW_READ, values))
        return rows


def _apply(db: apsw.Connection, changes: Sequence[Change], times: Mapping[str, float]) -> bool:
    for change in changes:
        values = {"bucket": change.bucket, "required": change.requires, **times}
        if change.requires is not None and not db.execute(_HAS, values).fetchone():
            return False
    for change in changes:
        bucket = change.bucket
        values = {"bucket": bucket, "images": images_bucket(bucket), "owner": owner_of(bucket), **times}
        db.execute(_EXPIRE, values)
        db.execute(_RENEW, values)
        db.execute(_RENEW_IMAGES, values)
        for name, record in change.put.items():
            first, *others = _pieces(record)
            db.execute(_PUT, {**values, "name": name, "record": first, "entry": change.entries.get(name)})
            db.execute(_DELETE_PIECES, {**values, "name": name})
            numbered = enumerate(others)
            db.executemany(_PUT_PIECE, ({**values, "name": name, "number": n, "piece": piece} for n, piece in numbered))
        db.executemany(_LIST, [{**values, "name": name} for name in change.entries])
        db.executemany(_DELETE, [{**values, "name": name} for name in change.delete])
        db.execute(_DROP_EMPTY, values)
    return True


def _add(db: apsw.Connection, bucket: str, name: str, record: bytes, times: Mapping[str, float]) -> bool:
    exists = db.execute(_HAS, {"bucket": bucket, "required": name, **times}).fetchone()
    _apply(db, [Change(bucket, {} if exists else {name: record})], times)
    return not exists


def _delete(db: apsw.Connection, values: Mapping[str, object]) -> bool:
    deleted = changed(db, _DELETE, values) > 0
    db.execute(_DROP_EMPTY, values)
    return deleted
