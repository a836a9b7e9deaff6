"""
Event logs in SQL tables: the statements that SQLite and PostgreSQL share.

`app.storage.tables` describes their syntax. `{unexpired}` is a condition on runs, `{of_run}` on a run's segments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from app.storage.tables import Rows, Tables
from app.stores import EventSegment, LeaseState, RunKey, RunState

_STATE = """
SELECT ended, leased > {moment} FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND {unexpired}
"""
_READ = """
SELECT first, last, ends, data FROM antiphon_batches AS batches WHERE {of_run} AND last > $3 ORDER BY last LIMIT $4
"""
_CANCEL = "UPDATE antiphon_runs SET cancelled = true WHERE bucket = $1 AND response = $2"
_ORPHANS = "SELECT bucket, response FROM antiphon_runs WHERE NOT ended AND leased <= {moment} LIMIT 100"


class SQLLog(ABC):
    WORDS: ClassVar[Mapping[str, str]]
    # All times are in seconds.
    BEGIN: ClassVar[str]  # (partition, response, worker, lease, time until expiry)
    CLAIM: ClassVar[str]  # as above; returns whether the run was claimed
    # (partition, response, worker, lease, time until expiry, first, last, ends, data): returns no row or a `LeaseState`
    APPEND: ClassVar[str]
    # (worker, lease, time until expiry, partitions, responses): returns held runs and their `LeaseState`s.
    RENEW: ClassVar[str]
    DELETE: ClassVar[str]  # (partition, response)

    def __init__(self, tables: Tables, *, ttl: float, lease: float) -> None:
        self._tables = tables
        self._lease = lease
        self._ttl, self._ttl_once_ended = max(ttl, lease), ttl

    @abstractmethod
    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]: ...

    async def begin(self, run: RunKey, worker: str) -> None:
        await self._tables.execute(self.BEGIN, *run, worker, self._lease, self._ttl, idempotent=True)

    async def append(self, run: RunKey, worker: str, segment: EventSegment) -> LeaseState:
        ttl = self._ttl_once_ended if segment.ends else self._ttl
        values = (*run, worker, self._lease, ttl, *segment[:2], segment.ends, segment.data)
        # Idempotent, because a segment already in the log is not added.
        rows = await self._tables.execute(self.APPEND, *values, idempotent=True)
        return rows[0][0] if rows else "lost"

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        if not runs:
            return {}
        keys = [run.partition for run in runs], [run.id for run in runs]
        rows = await self._tables.execute(self.RENEW, worker, self._lease, self._ttl, *keys, idempotent=True)
        states: dict[RunKey, LeaseState] = {RunKey(partition, response): state for partition, response, state in rows}
        return {run: states.get(run, "lost") for run in runs}

    async def claim(self, run: RunKey, worker: str) -> bool:
        ((claimed,),) = await self._tables.execute(self.CLAIM, *run, worker, self._lease, self._ttl)
        return bool(claimed)

    async def cancel(self, run: RunKey) -> None:
        await self._tables.execute(_CANCEL, *run, idempotent=True)

    async def state(self, run: RunKey) -> RunState:
        rows = await self._tables.fetch(_STATE, *run)
        if not rows:
            return "absent"
        ((ended, leased),) = rows
        return "ended" if ended else "running" if leased else "orphaned"

    async def orphans(self) -> list[RunKey]:
        return [RunKey(*row) for row in await self._tables.fetch(_ORPHANS)]

    async def delete(self, run: RunKey) -> None:
        await self._tables.execute(self.DELETE, *run, idempotent=True)

    @abstractmethod
    async def _fetch_segments(self, statement: str, *values: object) -> Rows:
        """At most about 16 MiB; the statement's last parameter limits the number of rows."""

    async def _poll(self, run: RunKey, after: int) -> list[EventSegment]:
        rows = await self._fetch_segments(_READ, *run, min(after, 2**62))
        return [EventSegment(first, last, data, bool(ends)) for first, last, ends, data in rows]
