"""
The statements and methods that the SQLite and PostgreSQL stores share: records, event logs and usage.

`app.storage.tables` describes the statements' syntax. A partition is a row in `antiphon_buckets`. `{left}` is the time
in seconds until it expires; `{array}` aggregates a column into a JSON array. `{unexpired}` is a condition on runs,
`{of_run}` on a run's segments. `{day}` is the column as text, `{as_day}` converts text: in PostgreSQL, days are dates.
"""

from __future__ import annotations

import calendar
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from copy import copy
from typing import ClassVar, Self

import orjson

from app.errors import StoreUnavailable
from app.storage.tables import Rows, Tables, Transaction, execute, execute_many
from app.stores import (
    BATCH_TTL,
    EventSegment,
    LeaseState,
    RunKey,
    RunState,
    ServerStore,
    Spending,
    UsageRow,
    images_partition,
)
from app.stores.keys import FOREVER

EXISTS = """
SELECT 1 FROM antiphon_buckets AS buckets JOIN antiphon_records AS records ON bucket = id AND records.name = $2
WHERE buckets.name = $1 AND expires > {moment}
"""
EXPIRE = "DELETE FROM antiphon_buckets WHERE name = $1 AND expires <= {moment}"
# The result is a row of NULLs if only the record is missing, because the partition is renewed in any case.
_GET = """
SELECT {left}, records.name, record FROM antiphon_buckets AS buckets
LEFT JOIN antiphon_records AS records ON bucket = id AND records.name = $2
WHERE buckets.name = $1 AND expires > {moment}
"""
_ALL = """
SELECT {left}, records.name, record FROM antiphon_buckets AS buckets
LEFT JOIN antiphon_records AS records ON bucket = id
WHERE buckets.name = $1 AND expires > {moment}
"""
# In a single row, because SQLite's thread releases and acquires the GIL for each.
_NAMES = """
SELECT {left}, (SELECT {array}(name) FROM antiphon_records WHERE bucket = id) FROM antiphon_buckets AS buckets
WHERE name = $1 AND expires > {moment}
"""
# In order, because every statement locks a partition before its images' partition.
_RENEW = """
UPDATE antiphon_buckets SET expires = {moment} + $3 * {second} WHERE id IN (
    SELECT id FROM antiphon_buckets WHERE name IN ($1, $2) AND expires > {moment} ORDER BY name FOR UPDATE
)
"""
_DROP = "DELETE FROM antiphon_buckets WHERE name = $1 AND expires > {moment} RETURNING 1"
_POSITION = """
SELECT position FROM antiphon_listed AS listed JOIN antiphon_buckets ON id = bucket
WHERE owner = $1 AND listed.name = $2 AND expires > {moment}
"""
_RECENT = """
SELECT entry FROM antiphon_listed AS listed
JOIN antiphon_records AS records USING (bucket, name) JOIN antiphon_buckets ON id = bucket
WHERE owner = $1 AND position < $2 AND expires > {moment} ORDER BY position DESC LIMIT $3
"""
_EXPIRED_ROWS = 20


def delete_expired_from(table: str, key: str, condition: str) -> str:
    """A few rows, without locked ones, to limit how long other writes wait."""
    return f"""
        DELETE FROM {table} WHERE ({key}) IN (
            SELECT {key} FROM {table} WHERE {condition} LIMIT {_EXPIRED_ROWS} FOR UPDATE SKIP LOCKED
        ) RETURNING 1
    """


class SQLStore(ServerStore):
    # (partition, images partition, seconds until expiry, name, record): returns a row if the record was added.
    ADD: ClassVar[str]
    # (partition, name): returns whether the record existed.
    DELETE: ClassVar[str]
    # (owner)
    STORED_BYTES: ClassVar[str]
    DELETE_EXPIRED: ClassVar[Sequence[str]]

    def __init__(self, tables: Tables, *, ttl: float) -> None:
        self._tables = tables
        self._ttl = ttl
        # Reads do not write smaller changes of the expiry, but the partition can expire that much early.
        self._slack = min(ttl / 100, 3600)

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        return bool(
            await self._tables.execute(self.ADD, partition, images_partition(partition), self._ttl, name, record)
        )

    async def get(self, partition: str, name: str) -> bytes | None:
        return (await self._records(_GET, partition, name)).get(name)

    async def all(self, partition: str) -> dict[str, bytes]:
        return await self._records(_ALL, partition)

    async def exists(self, partition: str, name: str) -> bool:
        return bool(await self._tables.fetch(EXISTS, partition, name))

    async def names(self, partition: str) -> set[str]:
        rows = await self._tables.fetch(_NAMES, partition)
        await self._renew(partition, rows)
        return {*orjson.loads(rows[0][1] or "[]")} if rows else set()

    async def delete(self, partition: str, name: str) -> bool:
        ((existed,),) = await self._tables.execute(self.DELETE, partition, name)
        return bool(existed)

    async def delete_partition(self, partition: str) -> bool:
        return bool(await self._tables.execute(_DROP, partition))

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        rows: Rows = [(2**63 - 1,)] if after is None else await self._tables.fetch(_POSITION, owner, after)
        if not rows:
            return None
        return [entry for (entry,) in await self._tables.fetch(_RECENT, owner, rows[0][0], limit)]

    async def stored_bytes(self, owner: str) -> int:
        return int((await self._tables.fetch(self.STORED_BYTES, owner))[0][0])

    async def delete_expired(self) -> None:
        for statement in self.DELETE_EXPIRED:
            while len(await self._tables.execute(statement)) == _EXPIRED_ROWS:
                pass

    def lasting(self) -> Self:
        lasting = copy(self)
        lasting._ttl, lasting._slack = FOREVER, 3600.0
        return lasting

    def usage(self, *, days: int) -> SQLUsage:
        return SQLUsage(self._tables)

    async def check(self) -> None:
        await self._tables.check()

    async def aclose(self) -> None:
        await self._tables.aclose()

    async def _records(self, statement: str, partition: str, *names: str) -> dict[str, bytes]:
        rows = await self._tables.fetch(statement, partition, *names)
        await self._renew(partition, rows)
        return {name: record for _, name, record in rows if name is not None}

    async def _renew(self, partition: str, rows: Rows) -> None:
        if rows and abs(self._ttl - rows[0][0]) > self._slack:
            # The result is complete even if the renewal fails; the next use renews.
            with suppress(StoreUnavailable):
                await self._tables.execute(_RENEW, partition, images_partition(partition), self._ttl, idempotent=True)


_STATE = """
SELECT ended, leased > {moment} FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND {unexpired}
"""
_READ = """
SELECT first, last, ends, data FROM antiphon_batches AS batches WHERE {of_run} AND last > $3 ORDER BY last LIMIT $4
"""
_SEGMENTS = 16  # per read; a segment can have a megabyte
_CANCEL = "UPDATE antiphon_runs SET cancelled = true WHERE bucket = $1 AND response = $2"
_ORPHANS = "SELECT bucket, response FROM antiphon_runs WHERE NOT ended AND leased <= {moment} LIMIT 100"


class SQLLog(ABC):
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

    async def _poll(self, run: RunKey, after: int) -> list[EventSegment]:
        rows = await self._tables.fetch(_READ, *run, min(after, 2**62), _SEGMENTS)
        return [EventSegment(first, last, data, bool(ends)) for first, last, ends, data in rows]


_COUNTS = UsageRow._fields[4:]
_ADD_BATCH = """
INSERT INTO antiphon_usage_batches (batch, added) VALUES ($1, {moment}) ON CONFLICT DO NOTHING RETURNING batch
"""
_ADD_USAGE = f"""
INSERT INTO antiphon_usage AS stored ({", ".join(UsageRow._fields)})
VALUES ($1{{as_day}}, {", ".join(f"${number}" for number in range(2, 5 + len(_COUNTS)))})
ON CONFLICT (key, day, model, backend) DO UPDATE SET
    {", ".join(f"{name} = stored.{name} + excluded.{name}" for name in _COUNTS)}
"""
_SPENDING = """
SELECT CAST(coalesce(sum(tokens) FILTER (WHERE day = $2{as_day}), 0) AS bigint),
    CAST(coalesce(sum(cost) FILTER (WHERE day = $2{as_day}), 0) AS bigint),
    CAST(coalesce(sum(tokens), 0) AS bigint), CAST(coalesce(sum(cost), 0) AS bigint)
FROM (
    SELECT day, input_tokens + output_tokens AS tokens, cost FROM antiphon_usage
    WHERE key = $1 AND day BETWEEN $3{as_day} AND $4{as_day}
) AS month
"""
_USAGE = f"""
SELECT {{day}}, {", ".join(UsageRow._fields[1:])} FROM antiphon_usage
WHERE day BETWEEN $1{{as_day}} AND $2{{as_day}} AND (CAST($3 AS text) IS NULL OR key = $3)
"""
_DELETE_USAGE = "DELETE FROM antiphon_usage WHERE day < $1{as_day}"
_DELETE_BATCHES = "DELETE FROM antiphon_usage_batches WHERE added < {moment} - $1 * {second}"


class SQLUsage:
    """Usage rows in a table, and added batches in another."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        def transaction() -> Transaction[None]:
            if (yield execute(_ADD_BATCH, batch)):
                # In order, to prevent deadlocks between concurrent additions to the same rows.
                yield execute_many(_ADD_USAGE, sorted(rows, key=lambda row: row[:4]))

        await self._tables.run(transaction, idempotent=True)

    async def spending(self, key: str, day: str) -> Spending:
        month = day[:7]
        _, days = calendar.monthrange(int(month[:4]), int(month[5:]))
        (row,) = await self._tables.fetch(_SPENDING, key, day, f"{month}-01", f"{month}-{days}")
        return Spending(*row)

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        return [UsageRow(*row) for row in await self._tables.fetch(_USAGE, first, last, key)]

    async def delete_before(self, before: str) -> None:
        await self._tables.execute(_DELETE_USAGE, before, idempotent=True)
        await self._tables.execute(_DELETE_BATCHES, float(BATCH_TTL), idempotent=True)
