"""Event logs in the store's SQLite file; waiting readers poll, at growing intervals."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection

import apsw

from app.storage.sqlite import Database, changed, query
from app.stores.event_log import EventSegment, LeaseState, RunKey, RunState

_FIND = """
SELECT id, worker, leased, cancelled, ended FROM runs
WHERE bucket = :bucket AND response = :id AND NOT (ended AND expires <= :now)
"""
_READ = f"""
SELECT first, last, data, ends FROM batches
WHERE run = (SELECT id FROM ({_FIND})) AND last > :after ORDER BY last LIMIT 500
"""
_BEGIN = """
INSERT INTO runs (bucket, response, worker, leased, expires) VALUES (:bucket, :id, :worker, :leased, :until)
"""
_APPEND = """
INSERT INTO batches (run, last, first, ends, data) SELECT :run, :last, :first, :ends, :data
WHERE :first > (SELECT coalesce(max(last), -1) FROM batches WHERE run = :run)
"""
_RENEW = "UPDATE runs SET worker = :worker, leased = :leased, expires = :until, ended = :ends WHERE id = :run"
_CANCEL = "UPDATE runs SET cancelled = 1 WHERE bucket = :bucket AND response = :id"
_DELETE = "DELETE FROM runs WHERE bucket = :bucket AND response = :id"
_ORPHANS = "SELECT bucket, response FROM runs WHERE NOT ended AND leased <= :now LIMIT 100"
EXPIRED = "SELECT 1 FROM runs WHERE ended AND expires <= :now LIMIT 1"
# Only some at a time, to limit how long other writes wait.
PURGE = "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE ended AND expires <= :now LIMIT 20)"

_MAX_READ_BYTES = 1024 * 1024  # per read
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.15)  # seconds between polls
_LAST_PAUSE = 0.25  # all further pauses


class SQLiteLog:
    def __init__(self, db: Database, *, ttl: float, lease: float, clock: Callable[[], float]) -> None:
        self._db = db
        self._ttl = ttl  # from the end of the run
        self._lease = lease
        self._clock = clock

    async def begin(self, run: RunKey, worker: str) -> None:
        values = self._values(run, worker=worker)
        await self._db.write(lambda db: _begin(db, values))

    async def append(self, run: RunKey, worker: str, batch: EventSegment) -> LeaseState:
        values = self._values(run, worker=worker, **batch._asdict())
        return await self._db.write(lambda db: _renew(db, values))

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        each = [(run, self._values(run, worker=worker)) for run in runs]
        return await self._db.write(lambda db: {run: _renew(db, values) for run, values in each})

    async def claim(self, run: RunKey, worker: str) -> bool:
        values = self._values(run, worker=worker)
        return await self._db.write(lambda db: _claim(db, values))

    async def cancel(self, run: RunKey) -> None:
        values = self._values(run)
        await self._db.write(lambda db: db.execute(_CANCEL, values))

    async def state(self, run: RunKey) -> RunState:
        values = self._values(run)
        row = await self._db.read(lambda db: db.execute(_FIND, values).fetchone())
        if row is None:
            return "absent"
        _, _, leased, _, ended = row
        if ended:
            return "ended"
        return "running" if values["now"] < leased else "orphaned"

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        """Returns at most 500 batches, or fewer large ones."""
        batches = await self._poll(run, after)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                for pause in itertools.chain(_PAUSES, itertools.repeat(_LAST_PAUSE)):
                    if batches:
                        break
                    await asyncio.sleep(pause)
                    batches = await self._poll(run, after)
        return batches

    async def _poll(self, run: RunKey, after: int) -> list[EventSegment]:
        values = self._values(run, after=min(after, 2**62))
        return await self._db.read(lambda db: _read(db, values))

    async def orphans(self) -> list[RunKey]:
        values = {"now": self._clock()}
        rows = await self._db.read(lambda db: query(db, _ORPHANS, values))
        return [RunKey(*row) for row in rows]

    async def delete(self, run: RunKey) -> None:
        values = self._values(run)
        await self._db.write(lambda db: db.execute(_DELETE, values))

    async def aclose(self) -> None:
        """The store closes the file."""

    def _values(self, run: RunKey, **more: object) -> dict[str, object]:
        now = self._clock()
        return {**run._asdict(), "now": now, "leased": now + self._lease, "until": now + self._ttl, **more}


def _read(db: apsw.Connection, values: dict[str, object]) -> list[EventSegment]:
    batches: list[EventSegment] = []
    size = 0
    for first, last, data, ends in db.execute(_READ, values):
        batches.append(EventSegment(first, last, data, bool(ends)))
        size += len(data)
        if size > _MAX_READ_BYTES:
            break
    return batches


def _begin(db: apsw.Connection, values: dict[str, object]) -> None:
    db.execute(_DELETE, values)
    db.execute(_BEGIN, values)


def _renew(db: apsw.Connection, values: dict[str, object]) -> LeaseState:
    """Renew a held lease; also add a batch if `values` contain one."""
    row = db.execute(_FIND, values).fetchone()
    if row is None or row[1] != values["worker"]:
        return "lost"
    run, _, _, cancelled, ended = row
    if not ended:
        values = values | {"run": run}
        added = "data" in values and changed(db, _APPEND, values) > 0
        db.execute(_RENEW, values | {"ends": added and values["ends"]})
    return "cancelled" if cancelled else "held"


def _claim(db: apsw.Connection, values: dict[str, object]) -> bool:
    row = db.execute(_FIND, values).fetchone()
    if row is None:
        _begin(db, values)
        return True
    run, _, leased, _, ended = row
    if ended or values["now"] < leased:
        return False
    db.execute(_RENEW, values | {"run": run, "ends": False})
    return True
