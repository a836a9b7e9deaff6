"""
A store in a SQLite file, shared by workers on the same machine.

    sqlite:///antiphon.db           relative to the working directory
    sqlite:////var/lib/antiphon.db  absolute
    sqlite:///antiphon.db?synchronous=full&busy_timeout=5
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from app.storage import one_of, read_options, seconds
from app.storage.sqlite import SQLiteTables
from app.storage.tables import Migrations, Transaction, execute, execute_many
from app.stores import Change, EventSegment, RunKey, images_partition, owner_of
from app.stores.sql import EXISTS, EXPIRE, SQLLog, SQLStore, delete_expired_from

# Delete an expired partition, then create or renew the partition, and renew its images' partition.
_OPEN = f"""
{EXPIRE};
INSERT INTO antiphon_buckets (name, expires) VALUES ($1, {{moment}} + $3)
ON CONFLICT (name) DO UPDATE SET expires = excluded.expires;
UPDATE antiphon_buckets SET expires = {{moment}} + $3 WHERE name = $2 AND expires > {{moment}};
"""
_PUT = """
INSERT INTO antiphon_records (bucket, name, entry, record) SELECT id, $2, $3, $4 FROM antiphon_buckets WHERE name = $1
ON CONFLICT (bucket, name) DO UPDATE SET entry = coalesce(excluded.entry, entry), record = excluded.record;
DELETE FROM antiphon_pieces WHERE name = $2 AND bucket IN (SELECT id FROM antiphon_buckets WHERE name = $1)
"""
_PUT_PIECE = """
INSERT INTO antiphon_pieces (bucket, name, number, piece)
SELECT id, $2, $3, $4 FROM antiphon_buckets WHERE name = $1
"""
_GET_PIECE = """
SELECT piece FROM antiphon_pieces AS pieces JOIN antiphon_buckets AS buckets ON id = bucket
WHERE buckets.name = $1 AND pieces.name = $2 AND number = $3
"""
_LIST = """
INSERT INTO antiphon_listed (owner, position, bucket, name)
SELECT $3, (SELECT coalesce(max(position), 0) + 1 FROM antiphon_listed WHERE owner = $3), id, $2
FROM antiphon_buckets WHERE name = $1
ON CONFLICT (bucket, name) DO NOTHING
"""
_DELETE = """
DELETE FROM antiphon_records WHERE name = $2
AND bucket IN (SELECT id FROM antiphon_buckets WHERE name = $1 AND expires > {moment})
"""
_DROP_EMPTY = """
DELETE FROM antiphon_buckets WHERE name = $1
AND NOT EXISTS (SELECT 1 FROM antiphon_records WHERE bucket = antiphon_buckets.id)
"""

# In both modes, a record survives `kill -9` after `put` returns. With `full` it also survives a power failure.
_SYNCHRONOUS = one_of("normal", "full")


class SQLiteStore(SQLStore):
    _tables: SQLiteTables

    ADD = f"""
    {_OPEN};
    INSERT INTO antiphon_records (bucket, name, record) SELECT id, $4, $5 FROM antiphon_buckets WHERE name = $1
    ON CONFLICT DO NOTHING RETURNING 1
    """
    DELETE = f"{_DELETE}; SELECT changes(); {_DROP_EMPTY}"
    # Uses the index on names: `;` follows `:`. SQLite knows a value's length without reading it.
    STORED_BYTES = """
    SELECT coalesce(sum(size), 0) FROM (
        SELECT length(record) + coalesce(length(entry), 0) AS size
        FROM antiphon_buckets AS buckets JOIN antiphon_records ON bucket = id
        WHERE buckets.name >= $1 || ':' AND buckets.name < $1 || ';' AND expires > {moment}
        UNION ALL SELECT length(piece) FROM antiphon_buckets AS buckets JOIN antiphon_pieces ON bucket = id
        WHERE buckets.name >= $1 || ':' AND buckets.name < $1 || ';' AND expires > {moment}
    )
    """
    DELETE_EXPIRED = (
        delete_expired_from("antiphon_buckets", "id", "expires <= {moment}"),
        delete_expired_from("antiphon_runs", "id", "ended AND expires <= {moment}"),
    )

    def __init__(self, path: str | Path, *, ttl: float, clock: Callable[[], float] = time.time, **options: Any) -> None:
        """`options` are arguments of `app.storage.sqlite.connect`."""
        super().__init__(SQLiteTables(Path(path).expanduser(), MIGRATIONS, _WORDS, clock, **options), ttl=ttl)

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

    async def apply(self, *changes: Change) -> bool:
        return await self._tables.run(lambda: _apply(changes, self._ttl))

    def log(self, *, ttl: float, lease: float) -> SQLiteLog:
        return SQLiteLog(self._tables, ttl=ttl, lease=lease)

    async def delete_expired(self) -> None:
        if await asyncio.to_thread(self._tables.path.exists):
            await super().delete_expired()

    async def _records(self, statement: str, partition: str, *names: str) -> dict[str, bytes]:
        records = await super()._records(statement, partition, *names)
        if any(len(record) >= RECORD_PIECE for record in records.values()):
            return await self._tables.snapshot(lambda: _whole_records(statement, partition, *names))
        return records


def _whole_records(statement: str, partition: str, *names: str) -> Transaction[dict[str, bytes]]:
    """Join the records' pieces."""
    whole = {}
    for _, name, record in (yield execute(statement, partition, *names)):
        if record and len(record) >= RECORD_PIECE:
            joined = io.BytesIO()  # avoids a second copy of the record
            joined.write(record)
            for number in itertools.count():
                if not (pieces := (yield execute(_GET_PIECE, partition, name, number))):
                    break
                joined.write(pieces[0][0])
            record = joined.getvalue()
        if name is not None:
            whole[name] = record
    return whole


def _apply(changes: Sequence[Change], ttl: float) -> Transaction[bool]:
    for change in changes:
        if change.requires is not None and not (yield execute(EXISTS, change.partition, change.requires)):
            return False
    for partition, put, delete, _, entries in changes:
        yield execute(_OPEN, partition, images_partition(partition), ttl)
        for name, record in put.items():
            view = memoryview(record)
            first, *others = [view[at : at + RECORD_PIECE] for at in range(0, max(1, len(record)), RECORD_PIECE)]
            yield execute(_PUT, partition, name, entries.get(name), first)
            yield execute_many(_PUT_PIECE, [(partition, name, *piece) for piece in enumerate(others)])
        yield execute_many(_LIST, [(partition, name, owner_of(partition)) for name in entries])
        yield execute_many(_DELETE, [(partition, name) for name in delete])
        if delete or not put:
            yield execute(_DROP_EMPTY, partition)
    return True


_HELD = "bucket = $1 AND response = $2 AND worker = $3 AND NOT ended"
_RENEWED = "(bucket, response) IN (SELECT b.value, r.value FROM json_each($4) AS b JOIN json_each($5) AS r USING (key))"

_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.15)  # seconds between polls
_LAST_PAUSE = 0.25  # all further pauses


class SQLiteLog(SQLLog):
    """Event logs in the same file; waiting readers poll, at growing intervals."""

    BEGIN = """
    DELETE FROM antiphon_runs WHERE bucket = $1 AND response = $2;
    INSERT INTO antiphon_runs (bucket, response, worker, leased, expires)
    VALUES ($1, $2, $3, {moment} + $4, {moment} + $5)
    """
    CLAIM = """
    DELETE FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND ended AND expires <= {moment};
    INSERT INTO antiphon_runs (bucket, response, worker, leased, expires)
    VALUES ($1, $2, $3, {moment} + $4, {moment} + $5)
    ON CONFLICT (bucket, response) DO UPDATE
    SET worker = excluded.worker, leased = excluded.leased, expires = excluded.expires
    WHERE NOT ended AND leased <= {moment};
    SELECT changes()
    """
    APPEND = f"""
    INSERT INTO antiphon_batches (run, first, last, ends, data) SELECT id, $6, $7, $8, $9 FROM antiphon_runs
    WHERE {_HELD} AND $6 > (SELECT coalesce(max(last), -1) FROM antiphon_batches WHERE run = id);
    UPDATE antiphon_runs SET leased = {{moment}} + $4, expires = {{moment}} + $5, ended = changes() AND $8
    WHERE {_HELD};
    SELECT CASE WHEN cancelled THEN 'cancelled' ELSE 'held' END FROM antiphon_runs
    WHERE bucket = $1 AND response = $2 AND worker = $3 AND {{unexpired}}
    """
    RENEW = f"""
    UPDATE antiphon_runs SET leased = {{moment}} + $2, expires = {{moment}} + $3
    WHERE {_RENEWED} AND worker = $1 AND NOT ended;
    SELECT bucket, response, CASE WHEN cancelled THEN 'cancelled' ELSE 'held' END FROM antiphon_runs
    WHERE {_RENEWED} AND worker = $1 AND {{unexpired}}
    """
    DELETE = "DELETE FROM antiphon_runs WHERE bucket = $1 AND response = $2"

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        segments = await self._poll(run, after)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                for pause in itertools.chain(_PAUSES, itertools.repeat(_LAST_PAUSE)):
                    if segments:
                        break
                    await asyncio.sleep(pause)
                    segments = await self._poll(run, after)
        return segments

    async def aclose(self) -> None:
        """The store closes the file."""


_WORDS = {
    "{day}": "day",
    "{as_day}": "",
    "{of_run}": "run = (SELECT id FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND {unexpired})",
    "{unexpired}": "NOT (ended AND expires <= {moment})",  # runs that have not ended do not expire
    "{left}": "expires - $now",
    "{array}": "json_group_array",
}

# `runs` and `batches` belong to the event log, the others to the store.
_BUCKETS = """
CREATE TABLE buckets (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, expires REAL NOT NULL);
CREATE INDEX buckets_by_expiry ON buckets (expires);
"""
_RECORDS = """
CREATE TABLE records (
    bucket INTEGER NOT NULL REFERENCES buckets (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    padding BLOB NOT NULL,
    entry BLOB,
    record BLOB NOT NULL,
    PRIMARY KEY (bucket, name)
) WITHOUT ROWID;
"""
# Further pieces of records larger than `RECORD_PIECE` bytes: SQLite copies each written row twice.
_PIECES = """
CREATE TABLE pieces (
    bucket INTEGER NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    padding BLOB NOT NULL,
    piece BLOB NOT NULL,
    PRIMARY KEY (bucket, name, number),
    FOREIGN KEY (bucket, name) REFERENCES records (bucket, name) ON DELETE CASCADE
) WITHOUT ROWID;
"""
RECORD_PIECE = 1024 * 1024
# Per owner, in the order of first storage.
_LISTED = """
CREATE TABLE listed (
    owner TEXT NOT NULL,
    position INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (owner, position),
    UNIQUE (bucket, name),
    FOREIGN KEY (bucket, name) REFERENCES records (bucket, name) ON DELETE CASCADE
) WITHOUT ROWID;
"""
_RUNS = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    bucket TEXT NOT NULL,
    response TEXT NOT NULL,
    worker TEXT NOT NULL,
    leased REAL NOT NULL,
    expires REAL NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,
    UNIQUE (bucket, response)
);
CREATE INDEX running_by_lease ON runs (leased) WHERE NOT ended;
CREATE INDEX ended_by_expiry ON runs (expires) WHERE ended;
"""
_BATCHES = """
CREATE TABLE batches (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    last INTEGER NOT NULL,
    first INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    padding BLOB NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, last)
) WITHOUT ROWID;
"""
_USAGE = """
CREATE TABLE usage (
    day TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    backend TEXT NOT NULL,
    requests INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (key, day, model, backend)
) WITHOUT ROWID;
CREATE TABLE usage_batches (batch TEXT PRIMARY KEY, added REAL NOT NULL) WITHOUT ROWID;
"""
# Content was stored after padding, to move all of it into overflow pages.
_WITHOUT_PADDING = "".join(f"ALTER TABLE {table} DROP COLUMN padding;" for table in ("records", "pieces", "batches"))

# Version 1 lacked padding, lists and usage, version 2 usage. Versions 1 to 3 stored each record in one piece.
_FROM_FIRST = f"""
ALTER TABLE records RENAME TO old_records;
{_RECORDS}
INSERT INTO records SELECT bucket, name, x'', NULL, record FROM old_records;
DROP TABLE old_records;
{_PIECES}{_LISTED}
ALTER TABLE batches RENAME TO old_batches;
{_BATCHES}
INSERT INTO batches SELECT run, last, first, ends, x'', data FROM old_batches;
DROP TABLE old_batches;
{_USAGE}
"""
_EARLIER = {1: _FROM_FIRST, 2: _PIECES + _USAGE, 3: _PIECES}

_TABLES = _BUCKETS + _RECORDS + _PIECES + _LISTED + _RUNS + _BATCHES + _USAGE
MIGRATIONS = Migrations([_TABLES, _WITHOUT_PADDING], first=4, earlier=_EARLIER)
