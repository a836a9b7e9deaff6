from __future__ import annotations

from app.storage.migration import Migrations

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
