"""
A store in PostgreSQL (13 or later), shared by any number of replicas of this server.

    postgresql://[user[:password]@]host[:5432][,host:port]/database

The query accepts libpq's `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `host` and `target_session_attrs`, and the
store's own `max_connections`, `connect_timeout` and `timeout` in seconds, and `statement_cache_size`, which must be 0
for a PgBouncer with transaction pooling. Tables are created on first use. Requires the extra `postgres`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from app.runtime.tasks import wait_for_event
from app.storage import Outage
from app.storage.postgres import PostgresAddress, PostgresTables, read_postgres_url
from app.stores import SLOT_LEASE, Change, EventSegment, RunKey, TokenCharge, TokenResult, images_partition, owner_of
from app.stores.postgres.schema import CHANNEL, migrate_store
from app.stores.sql import EXPIRE, SQLLog, SQLStore, delete_expired_from

# $12: other image partitions, because a statement cannot update a row twice. They are renewed last: every statement
# locks a partition before its images' partition.
_APPLY = """
WITH images AS (
    UPDATE antiphon_buckets SET expires = clock_timestamp() + make_interval(secs => $1)
    WHERE name = ANY ($12::text[]) AND expires > clock_timestamp()
    AND expires <= clock_timestamp() + make_interval(secs => $1::float8 - $2::float8)
)
SELECT antiphon_apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
# Created only on servers with quotas, because every new partition must update the index.
_INDEX_OWNERS = """
DO $$ BEGIN
    IF to_regclass('antiphon_buckets_by_owner') IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('antiphon_buckets_by_owner', 0));
        CREATE INDEX IF NOT EXISTS antiphon_buckets_by_owner ON antiphon_buckets (split_part(name, ':', 1));
    END IF;
END $$
"""


class PostgresStore(SQLStore):
    ADD = """
    WITH images AS (
        UPDATE antiphon_buckets SET expires = {moment} + $3 * {second} WHERE name = $2 AND expires > {moment}
    ), bucket AS (
        INSERT INTO antiphon_buckets (name, expires) VALUES ($1, {moment} + $3 * {second})
        ON CONFLICT (name) DO UPDATE SET expires = excluded.expires RETURNING id
    )
    INSERT INTO antiphon_records (bucket, name, record) SELECT id, $4, $5 FROM bucket ON CONFLICT DO NOTHING RETURNING 1
    """
    DELETE = "SELECT antiphon_delete($1, $2)"
    STORED_BYTES = """
    SELECT coalesce(sum(octet_length(record) + coalesce(octet_length(entry), 0)), 0)::bigint
    FROM antiphon_buckets AS buckets JOIN antiphon_records ON bucket = id
    WHERE split_part(buckets.name, ':', 1) = $1 AND expires > {moment}
    """
    DELETE_EXPIRED = (
        delete_expired_from("antiphon_buckets", "id", "expires <= {moment}"),
        delete_expired_from("antiphon_runs", "bucket, response", "expires <= {moment}"),
        delete_expired_from("antiphon_limits", "owner, bucket", "full_at <= {moment}"),
        delete_expired_from("antiphon_slots", "pool, holder", "expires <= {moment}"),
    )

    _tables: PostgresTables

    def __init__(self, address: PostgresAddress, *, ttl: float) -> None:
        self._address = address
        self._outage = Outage(f"PostgreSQL at {address.name}")
        self._has_index = False  # on owners
        super().__init__(self._connect(address), ttl=ttl)

    @classmethod
    def from_url(cls, url: str, *, ttl: float) -> PostgresStore:
        """Raises ValueError, without secrets."""
        return cls(read_postgres_url(url), ttl=ttl)

    async def add(self, partition: str, name: str, record: bytes) -> bool:
        await self._tables.execute(EXPIRE, partition, idempotent=True)  # one statement cannot replace the row
        return await super().add(partition, name, record)

    async def apply(self, *changes: Change) -> bool:
        put = [
            (place, name, record, change.entries.get(name))
            for place, change in enumerate(changes, 1)
            for name, record in change.put.items()
        ]
        partitions = [change.partition for change in changes]
        images = [name for name in map(images_partition, partitions) if name not in partitions]
        deleted = [(place, name) for place, change in enumerate(changes, 1) for name in change.delete]
        ((applied,),) = await self._tables.execute(
            _APPLY,
            self._ttl,
            self._slack,
            owner_of(changes[0].partition),
            partitions,
            [change.requires for change in changes],
            *_columns(put, 4),
            *_columns(deleted, 2),
            images,
            idempotent=not deleted,  # the deleted record could be a required one
        )
        return bool(applied)

    async def stored_bytes(self, owner: str) -> int:
        if not self._has_index:
            await self._tables.execute(_INDEX_OWNERS, idempotent=True)
            self._has_index = True
        return await super().stored_bytes(owner)

    def log(self, *, ttl: float, lease: float) -> PostgresLog:
        return PostgresLog(self._tables, ttl=ttl, lease=lease)

    def counters(self) -> PostgresCounters:
        options = {**self._address.options, "timeout": FAST, "connect_timeout": FAST}
        return PostgresCounters(self._connect(self._address._replace(options=options)))

    def _connect(self, address: PostgresAddress) -> PostgresTables:
        return PostgresTables(address, _WORDS, prepare=migrate_store, outage=self._outage)


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Transpose rows, also without rows."""
    return [[row[column] for row in rows] for column in range(width)]


_LISTENING_PAUSE = 5.0  # seconds between polls while notifications work
_PAUSE = 0.25  # otherwise


class PostgresLog(SQLLog):
    """
    Each added segment notifies waiting readers.

    Each process listens on one connection. While it is broken, readers poll.
    """

    BEGIN = "SELECT antiphon_run_begin($1, $2, $3, $4, $5)"
    CLAIM = "SELECT antiphon_run_claim($1, $2, $3, $4, $5)"
    APPEND = "SELECT antiphon_run_append($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    # In order, to prevent deadlocks between concurrent renewals of the same runs.
    RENEW = """
    SELECT bucket, response, antiphon_run_append(bucket, response, $1, $2, $3)
    FROM (SELECT * FROM unnest($4::text[], $5::text[]) AS runs (bucket, response) ORDER BY 1, 2) AS runs
    """
    DELETE = f"""
    WITH deleted AS (DELETE FROM antiphon_runs WHERE bucket = $1 AND response = $2 RETURNING 1)
    SELECT pg_notify('{CHANNEL}', $1 || ' ' || $2) FROM deleted
    """

    _tables: PostgresTables

    def __init__(self, tables: PostgresTables, *, ttl: float, lease: float) -> None:
        super().__init__(tables, ttl=ttl, lease=lease)
        self._connection: Any = None
        self._connecting = asyncio.Lock()
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)  # readers, by run

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        segments = await self._poll(run, after)
        if segments or wait <= 0:
            return segments
        deadline = asyncio.get_running_loop().time() + wait
        changed, name = asyncio.Event(), f"{run.partition} {run.id}"
        self._waiting[name].add(changed)
        try:
            while True:
                changed.clear()
                pause = _LISTENING_PAUSE if await self._listen() else _PAUSE
                segments = await self._poll(run, after)
                left = deadline - asyncio.get_running_loop().time()
                if segments or left <= 0:
                    return segments
                await wait_for_event(changed, min(left, pause))
        finally:
            self._waiting[name].discard(changed)
            if not self._waiting[name]:
                del self._waiting[name]

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            await asyncio.sleep(0)  # closes the socket

    async def _listen(self) -> bool:
        """Start to listen; return whether the connection is open."""
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                with contextlib.suppress(Exception):  # the next poll raises the error
                    self._connection = await self._open_listener()
            return self._connection is not None and not self._connection.is_closed()

    async def _open_listener(self) -> Any:
        def notified(connection: object, process: int, channel: str, run: object) -> None:
            for changed in self._waiting.get(str(run), ()):
                changed.set()

        def broken(connection: object) -> None:
            for events in self._waiting.values():
                for changed in events:
                    changed.set()

        connection = await self._tables.connect()
        try:
            connection.add_termination_listener(broken)
            await connection.add_listener(CHANNEL, notified)
        except BaseException:
            connection.terminate()
            raise
        return connection


_WORDS = {
    "{day}": "to_char(day, 'YYYY-MM-DD')",
    "{as_day}": "::text::date",
    "{of_run}": """bucket = $1 AND response = $2 AND EXISTS (
        SELECT FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND {unexpired}
    )""",
    "{unexpired}": "expires > {moment}",
    "{left}": "extract(epoch FROM expires - clock_timestamp())::float8",
    "{array}": "json_agg",
}


FAST = 0.5  # seconds to connect, and for a response: limits must not delay a request for long

_RENEW = """
UPDATE antiphon_slots SET expires = clock_timestamp() + make_interval(secs => $3)
FROM unnest($1::text[], $2::text[]) AS held (pool, holder)
WHERE antiphon_slots.pool = held.pool AND antiphon_slots.holder = held.holder
RETURNING held.pool, held.holder
"""


class PostgresCounters:
    """They are lost if the database server crashes."""

    def __init__(self, tables: PostgresTables) -> None:
        self._tables = tables

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        columns = [
            [float(value) for value in column] for column in zip(*(charge[1:] for charge in charges), strict=True)
        ]
        take, buckets = "SELECT antiphon_take($1, $2, $3, $4, $5)", [charge.bucket for charge in charges]
        (((granted, *missing),),) = await self._tables.execute(take, owner, buckets, *columns)
        return TokenResult(bool(granted), missing)

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        acquire = "SELECT antiphon_acquire($1, $2, $3, $4)"
        ((acquired,),) = await self._tables.execute(acquire, pool, holder, limit, SLOT_LEASE)
        return bool(acquired)

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        pools, holders = [pool for pool, _ in slots], [holder for _, holder in slots]
        rows = await self._tables.execute(_RENEW, pools, holders, SLOT_LEASE, idempotent=True)
        renewed = {(pool, holder) for pool, holder in rows}
        return [slot for slot in slots if slot not in renewed]

    async def release(self, pool: str, holder: str) -> None:
        release = "DELETE FROM antiphon_slots WHERE pool = $1 AND holder = $2"
        await self._tables.execute(release, pool, holder, idempotent=True)

    async def aclose(self) -> None:
        await self._tables.aclose()
