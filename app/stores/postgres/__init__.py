"""
A store in PostgreSQL (13 or later), shared by any number of replicas of this server.

    postgresql://[user[:password]@]host[:5432][,host:port]/database

The query accepts libpq's `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `host` and `target_session_attrs`, and the
store's own `max_connections`, `connect_timeout` and `timeout` in seconds, and `statement_cache_size`, which must be 0
for a PgBouncer with transaction pooling. Tables are created on first use. Requires the extra `postgres`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any

from app.errors import StoreUnavailable
from app.storage.migration import Connection
from app.storage.outage import Outage
from app.storage.postgres import PostgresClient, PostgresTables, read_postgres_url
from app.stores import Change, images_bucket, owner_of
from app.stores.keys import FOREVER
from app.stores.postgres.counters import FAST, PostgresCounters
from app.stores.postgres.event_log import PostgresLog
from app.stores.postgres.schema import migrate_store
from app.stores.usage_sql import POSTGRES_USAGE, SQLUsage

# $12: other image buckets, because a statement cannot update a row twice. They are renewed last; every statement locks
# a bucket before its images' bucket.
_APPLY = """
WITH images AS (
    UPDATE antiphon_buckets SET expires = clock_timestamp() + make_interval(secs => $1)
    WHERE name = ANY ($12::text[]) AND expires > clock_timestamp()
    AND expires <= clock_timestamp() + make_interval(secs => $1::float8 - $2::float8)
)
SELECT antiphon_apply($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
"""
# Large records are sent in slices, because asyncpg would copy them several times. `$8` contains an empty record instead
# of each.
_MAY_STAGE = "SELECT has_database_privilege(current_database(), 'TEMPORARY')"
_STAGE = """
CREATE TEMPORARY TABLE antiphon_slices (record int NOT NULL, number int NOT NULL, data bytea NOT NULL) ON COMMIT DROP
"""
_ADD_SLICE = "INSERT INTO pg_temp.antiphon_slices (record, number, data) VALUES ($1, $2, $3)"
_STAGED = """ARRAY(
    SELECT coalesce(
        (SELECT string_agg(data, ''::bytea ORDER BY number) FROM pg_temp.antiphon_slices WHERE record = at), given
    ) FROM unnest($8::bytea[]) WITH ORDINALITY AS records (given, at) ORDER BY at
)"""
_APPLY_STAGED = _APPLY.replace("$8", _STAGED)
_LEFT = "extract(epoch FROM expires - clock_timestamp())::float8"
# Without this record, the result is a row of NULLs, because the bucket is renewed in any case.
_GET = f"""
SELECT {_LEFT}, record FROM antiphon_buckets AS buckets
LEFT JOIN antiphon_records AS records ON bucket = id AND records.name = $2
WHERE buckets.name = $1 AND expires > clock_timestamp()
"""
_EXISTS = """
SELECT 1 FROM antiphon_buckets AS buckets JOIN antiphon_records AS records ON bucket = id AND records.name = $2
WHERE buckets.name = $1 AND expires > clock_timestamp()
"""
_ALL = f"""
SELECT {_LEFT}, records.name, record FROM antiphon_buckets AS buckets
LEFT JOIN antiphon_records AS records ON bucket = id
WHERE buckets.name = $1 AND expires > clock_timestamp()
"""
_NAMES = f"""
SELECT {_LEFT}, records.name FROM antiphon_buckets AS buckets
LEFT JOIN antiphon_records AS records ON bucket = id
WHERE buckets.name = $1 AND expires > clock_timestamp()
"""
_RENEW = """
UPDATE antiphon_buckets SET expires = clock_timestamp() + make_interval(secs => $2) WHERE id IN (
    SELECT id FROM antiphon_buckets WHERE name = ANY ($1) AND expires > clock_timestamp() ORDER BY name FOR UPDATE
)
"""
_DROP = "DELETE FROM antiphon_buckets WHERE name = $1 AND expires > clock_timestamp() RETURNING 1"
_POSITION = """
SELECT position FROM antiphon_listed AS listed JOIN antiphon_buckets ON id = bucket
WHERE owner = $1 AND listed.name = $2 AND expires > clock_timestamp()
"""
_ADD = """
WITH images AS (
    UPDATE antiphon_buckets SET expires = clock_timestamp() + make_interval(secs => $2)
    WHERE name = $5 AND expires > clock_timestamp()
), bucket AS (
    INSERT INTO antiphon_buckets (name, expires) VALUES ($1, clock_timestamp() + make_interval(secs => $2))
    ON CONFLICT (name) DO UPDATE SET expires = excluded.expires RETURNING id
)
INSERT INTO antiphon_records (bucket, name, record) SELECT id, $3, $4 FROM bucket ON CONFLICT DO NOTHING RETURNING 1
"""
_EXPIRE = "DELETE FROM antiphon_buckets WHERE name = $1 AND expires <= clock_timestamp()"
_RECENT = """
SELECT entry FROM antiphon_listed AS listed
JOIN antiphon_records AS records USING (bucket, name) JOIN antiphon_buckets ON id = bucket
WHERE owner = $1 AND position < $2 AND expires > clock_timestamp() ORDER BY position DESC LIMIT $3
"""
# Created only on servers with quotas, because every new bucket must update the index.
_INDEX_OWNERS = """
DO $$ BEGIN
    IF to_regclass('antiphon_buckets_by_owner') IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('antiphon_buckets_by_owner', 0));
        CREATE INDEX IF NOT EXISTS antiphon_buckets_by_owner ON antiphon_buckets (split_part(name, ':', 1));
    END IF;
END $$
"""
_STORED = """
SELECT coalesce(sum(octet_length(record) + coalesce(octet_length(entry), 0)), 0)::bigint
FROM antiphon_buckets AS buckets JOIN antiphon_records ON bucket = id
WHERE split_part(buckets.name, ':', 1) = $1 AND expires > clock_timestamp()
"""
_BATCH = 100
# Only some at a time, skipping locked rows, to limit how long other calls wait.
_PURGES = [
    f"""
    DELETE FROM {table} WHERE ({key}) IN (
        SELECT {key} FROM {table} WHERE {time} <= clock_timestamp() LIMIT {_BATCH} FOR UPDATE SKIP LOCKED
    ) RETURNING 1
    """
    for table, key, time in (
        ("antiphon_buckets", "id", "expires"),
        ("antiphon_runs", "bucket, response", "expires"),
        ("antiphon_limits", "owner, bucket", "full_at"),
        ("antiphon_slots", "pool, holder", "expires"),
    )
]
_SLICE = 1024 * 1024  # bytes
_RECORDS = 7  # index of `$8`


class PostgresStore:
    def __init__(self, client: Callable[..., PostgresClient], *, ttl: float) -> None:
        """`client` creates clients; its arguments override the defaults."""
        self._new_client = client
        self._client = client()
        self._has_index = False  # on owners
        self._ttl = ttl
        # Smaller changes of the expiry are not written: most reads write nothing, but the bucket can expire that much
        # early.
        self._slack = min(ttl / 100, 3600)

    @classmethod
    def from_url(cls, url: str, *, ttl: float, **defaults: float) -> PostgresStore:
        """URL options override `defaults`. Raises ValueError, without secrets in its message."""
        address = read_postgres_url(url, **defaults)
        outage = Outage(f"PostgreSQL at {address.name}")
        return cls(
            lambda **more: PostgresClient(address, prepare=migrate_store, outage=outage, **{**address.options, **more}),
            ttl=ttl,
        )

    async def put(self, bucket: str, name: str, record: bytes) -> None:
        await self.apply(Change(bucket, {name: record}))

    async def add(self, bucket: str, name: str, record: bytes) -> bool:
        await self._client.fetch(_EXPIRE, bucket, idempotent=True)
        return bool(await self._client.fetch(_ADD, bucket, self._ttl, name, record, images_bucket(bucket)))

    async def apply(self, *changes: Change) -> bool:
        put = [
            (place, name, record, change.entries.get(name))
            for place, change in enumerate(changes, 1)
            for name, record in change.put.items()
        ]
        buckets = [change.bucket for change in changes]
        images = [name for name in map(images_bucket, buckets) if name not in buckets]
        deleted = [(place, name) for place, change in enumerate(changes, 1) for name in change.delete]
        arguments = (
            self._ttl,
            self._slack,
            owner_of(changes[0].bucket),
            buckets,
            [change.requires for change in changes],
            *_columns(put, 4),
            *_columns(deleted, 2),
            images,
        )
        idempotent = not deleted  # the deleted record could be a required one
        if any(len(record) > _SLICE for _, _, record, _ in put):
            return await self._client.transaction(lambda db: _apply_staged(db, arguments), idempotent=idempotent)
        applied: bool = await self._client.fetchval(_APPLY, *arguments, idempotent=idempotent)
        return applied

    async def get(self, bucket: str, name: str) -> bytes | None:
        rows = await self._client.fetch(_GET, bucket, name, idempotent=True)
        await self._renew(bucket, rows)
        return rows[0][1] if rows else None

    async def all(self, bucket: str) -> dict[str, bytes]:
        rows = await self._client.fetch(_ALL, bucket, idempotent=True)
        await self._renew(bucket, rows)
        return {name: record for _, name, record in rows if name is not None}

    async def exists(self, bucket: str, name: str) -> bool:
        return bool(await self._client.fetch(_EXISTS, bucket, name, idempotent=True))

    async def names(self, bucket: str) -> set[str]:
        rows = await self._client.fetch(_NAMES, bucket, idempotent=True)
        await self._renew(bucket, rows)
        return {name for _, name in rows if name is not None}

    async def delete(self, bucket: str, name: str) -> bool:
        deleted: bool = await self._client.fetchval("SELECT antiphon_delete($1, $2)", bucket, name)
        return deleted

    async def drop(self, bucket: str) -> bool:
        return bool(await self._client.fetch(_DROP, bucket))

    async def recent(self, owner: str, *, limit: int, after: str | None = None) -> list[bytes] | None:
        position = 2**63 - 1
        if after is not None:
            position = await self._client.fetchval(_POSITION, owner, after, idempotent=True)
        if position is None:
            return None
        rows = await self._client.fetch(_RECENT, owner, position, limit, idempotent=True)
        return [entry for (entry,) in rows]

    async def purge(self) -> None:
        for purge in _PURGES:
            while len(await self._client.fetch(purge)) == _BATCH:
                pass

    async def check(self) -> None:
        await self._client.check()

    async def stored_bytes(self, owner: str) -> int:
        if not self._has_index:
            await self._client.fetch(_INDEX_OWNERS, idempotent=True)
            self._has_index = True
        stored: int = await self._client.fetchval(_STORED, owner, idempotent=True)
        return stored

    def log(self, *, ttl: float, lease: float) -> PostgresLog:
        return PostgresLog(self._client, ttl=ttl, lease=lease)

    def counters(self) -> PostgresCounters:
        return PostgresCounters(self._new_client(timeout=FAST, connect_timeout=FAST))

    def lasting(self) -> PostgresStore:
        lasting = copy(self)
        lasting._ttl, lasting._slack = FOREVER, 3600.0
        return lasting

    def usage(self, *, days: int) -> SQLUsage:
        return SQLUsage(PostgresTables(self._client, POSTGRES_USAGE))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _renew(self, bucket: str, rows: Sequence[Any]) -> None:
        if rows and self._ttl - rows[0][0] > self._slack:
            # The result is complete even if the renewal fails; the next use renews.
            with suppress(StoreUnavailable):
                await self._client.fetch(_RENEW, [bucket, images_bucket(bucket)], self._ttl, idempotent=True)


async def _apply_staged(db: Connection, arguments: Sequence[Any]) -> bool:
    """Apply changes with large records, in slices if the user can create temporary tables."""
    if not await db.fetchval(_MAY_STAGE):
        return bool(await db.fetchval(_APPLY, *arguments))
    await db.execute(_STAGE)
    given = [*arguments[_RECORDS]]
    for at, record in enumerate(given):
        if len(record) > _SLICE:
            given[at] = b""
            for number, begin in enumerate(range(0, len(record), _SLICE)):
                await db.execute(_ADD_SLICE, at + 1, number, record[begin : begin + _SLICE])
    return bool(await db.fetchval(_APPLY_STAGED, *arguments[:_RECORDS], given, *arguments[_RECORDS + 1 :]))


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Transpose rows, also without rows."""
    return [[row[column] for row in rows] for column in range(width)]
