"""Event logs in the store's SQLite file; waiting readers poll, at growing intervals."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import ClassVar

from app.storage.sqlite import SQLiteTables
from app.storage.tables import Rows
from app.stores.event_log import EventSegment, RunKey
from app.stores.event_log_sql import SQLLog

_HELD = "bucket = $1 AND response = $2 AND worker = $3 AND NOT ended"
_RUNS = "(bucket, response) IN (SELECT b.value, r.value FROM json_each($4) AS b JOIN json_each($5) AS r USING (key))"

_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.15)  # seconds between polls
_LAST_PAUSE = 0.25  # all further pauses
_MAX_READ_BYTES = 1024 * 1024  # per read


class SQLiteLog(SQLLog):
    _tables: SQLiteTables

    # Runs that have not ended do not expire.
    WORDS: ClassVar = {
        "{of_run}": "run = (SELECT id FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND {unexpired})",
        "{unexpired}": "NOT (ended AND expires <= {moment})",
    }
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
    WHERE {_RUNS} AND worker = $1 AND NOT ended;
    SELECT bucket, response, CASE WHEN cancelled THEN 'cancelled' ELSE 'held' END FROM antiphon_runs
    WHERE {_RUNS} AND worker = $1 AND {{unexpired}}
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

    async def _fetch_segments(self, statement: str, *values: object) -> Rows:
        return await self._tables.fetch_some(statement, *values, 500, max_bytes=_MAX_READ_BYTES)

    async def aclose(self) -> None:
        """The store closes the file."""
