"""The tables of the SQLite file, and their migrations."""

from __future__ import annotations

import sqlite3

# In `PRAGMA user_version`. Version 4 is that of the first release.
VERSION = 5

# Times are Unix times, to survive a restart. `runs` and `batches` are the event log's, the others the store's.
_BUCKETS = """
CREATE TABLE buckets (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, expires REAL NOT NULL);
CREATE INDEX buckets_by_expiry ON buckets (expires)
"""
_RECORDS = """
CREATE TABLE records (
    bucket INTEGER NOT NULL REFERENCES buckets (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    entry BLOB,
    record BLOB NOT NULL,
    PRIMARY KEY (bucket, name)
) WITHOUT ROWID
"""
# The rest of records of more than `RECORD_PIECE` bytes: SQLite copies each row twice when it is written.
_PIECES = """
CREATE TABLE pieces (
    bucket INTEGER NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    piece BLOB NOT NULL,
    PRIMARY KEY (bucket, name, number),
    FOREIGN KEY (bucket, name) REFERENCES records (bucket, name) ON DELETE CASCADE
) WITHOUT ROWID
"""
RECORD_PIECE = 1024 * 1024
# The listed records, each owner's in the order in which they were first stored.
_LISTED = """
CREATE TABLE listed (
    owner TEXT NOT NULL,
    position INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (owner, position),
    UNIQUE (bucket, name),
    FOREIGN KEY (bucket, name) REFERENCES records (bucket, name) ON DELETE CASCADE
) WITHOUT ROWID
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
CREATE INDEX ended_by_expiry ON runs (expires) WHERE ended
"""
_BATCHES = """
CREATE TABLE batches (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    last INTEGER NOT NULL,
    first INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, last)
) WITHOUT ROWID
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
CREATE TABLE usage_batches (batch TEXT PRIMARY KEY, added REAL NOT NULL) WITHOUT ROWID
"""
_CREATE = [*_BUCKETS.split(";"), _RECORDS, _PIECES, _LISTED, *_RUNS.split(";"), _BATCHES, *_USAGE.split(";")]

# Content was stored after padding, so that SQLite moved all of it into overflow pages.
_WITHOUT_PADDING = [f"ALTER TABLE {table} DROP COLUMN padding" for table in ("records", "pieces", "batches")]


def prepare(db: sqlite3.Connection, synchronous: str) -> None:
    """Configure a new connection, and create the tables of a new file; raises `sqlite3.Error`."""
    db.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA secure_delete = ON")
    db.execute("PRAGMA journal_size_limit = 67108864")
    if _version(db) != VERSION:
        _make_tables(db)


def _make_tables(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    match _version(db):
        case 0:
            statements = _CREATE
        case 4:
            statements = _WITHOUT_PADDING
        case 5:  # another process has done it
            statements = []
        case version:
            raise sqlite3.DatabaseError(f"the file has version {version}, and this server knows only {VERSION}")
    for statement in statements:
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _version(db: sqlite3.Connection) -> int:
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    return version
