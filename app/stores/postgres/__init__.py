"""
A store in PostgreSQL (13 or later), shared by any number of replicas of this server.

    postgresql://[user[:password]@]host[:5432][,host:port]/database

The query accepts libpq's `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `host` and `target_session_attrs`, and the
store's own `max_connections`, `connect_timeout` and `timeout` in seconds, and `statement_cache_size`, which must be 0
for a PgBouncer with transaction pooling. Tables are created on first use. Requires the extra `postgres`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.storage.outage import Outage
from app.storage.postgres import PostgresClient, PostgresTables, read_postgres_url
from app.storage.tables import Transaction, execute
from app.stores import Change, images_partition, owner_of
from app.stores.postgres.counters import FAST, PostgresCounters
from app.stores.postgres.event_log import PostgresLog
from app.stores.postgres.schema import migrate_store
from app.stores.records_sql import EXPIRE, SQLStore, delete_expired_from
from app.stores.usage_sql import POSTGRES_USAGE

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
_WORDS = {
    **POSTGRES_USAGE,
    **PostgresLog.WORDS,
    "{left}": "extract(epoch FROM expires - clock_timestamp())::float8",
    "{array}": "json_agg",
}
# Created only on servers with quotas, because every new partition must update the index.
_INDEX_OWNERS = """
DO $$ BEGIN
    IF to_regclass('antiphon_buckets_by_owner') IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtextextended('antiphon_buckets_by_owner', 0));
        CREATE INDEX IF NOT EXISTS antiphon_buckets_by_owner ON antiphon_buckets (split_part(name, ':', 1));
    END IF;
END $$
"""
_SLICE = 1024 * 1024  # bytes
_RECORDS = 7  # index of `$8`


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

    def __init__(self, client: Callable[..., PostgresClient], *, ttl: float) -> None:
        """`client` creates clients; its arguments override the defaults."""
        self._new_client = client
        self._client = client()
        self._has_index = False  # on owners
        super().__init__(PostgresTables(self._client, _WORDS), ttl=ttl)

    @classmethod
    def from_url(cls, url: str, *, ttl: float, **defaults: float) -> PostgresStore:
        """URL options override `defaults`. Raises ValueError, without secrets."""
        address = read_postgres_url(url, **defaults)
        outage = Outage(f"PostgreSQL at {address.name}")
        return cls(
            lambda **more: PostgresClient(address, prepare=migrate_store, outage=outage, **{**address.options, **more}),
            ttl=ttl,
        )

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
        values = (
            self._ttl,
            self._slack,
            owner_of(changes[0].partition),
            partitions,
            [change.requires for change in changes],
            *_columns(put, 4),
            *_columns(deleted, 2),
            images,
        )
        idempotent = not deleted  # the deleted record could be a required one
        if any(len(record) > _SLICE for _, _, record, _ in put):
            return await self._tables.run(lambda: _apply_staged(values), idempotent=idempotent)
        return bool((await self._tables.execute(_APPLY, *values, idempotent=idempotent))[0][0])

    async def stored_bytes(self, owner: str) -> int:
        if not self._has_index:
            await self._tables.execute(_INDEX_OWNERS, idempotent=True)
            self._has_index = True
        return await super().stored_bytes(owner)

    async def check(self) -> None:
        await self._client.check()

    def log(self, *, ttl: float, lease: float) -> PostgresLog:
        return PostgresLog(self._client, self._tables, ttl=ttl, lease=lease)

    def counters(self) -> PostgresCounters:
        return PostgresCounters(self._new_client(timeout=FAST, connect_timeout=FAST))

    async def aclose(self) -> None:
        await self._client.aclose()


def _apply_staged(values: tuple[Any, ...]) -> Transaction[bool]:
    """Large records are sent in slices if the user can create temporary tables."""
    apply = _APPLY
    ((may_stage,),) = yield execute(_MAY_STAGE)
    if may_stage:
        yield execute(_STAGE)
        records = [*values[_RECORDS]]
        for at, record in enumerate(records):
            if len(record) > _SLICE:
                records[at] = b""
                for number, begin in enumerate(range(0, len(record), _SLICE)):
                    yield execute(_ADD_SLICE, at + 1, number, record[begin : begin + _SLICE])
        apply, values = _APPLY_STAGED, (*values[:_RECORDS], records, *values[_RECORDS + 1 :])
    ((applied,),) = yield execute(apply, *values)
    return bool(applied)


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    """Transpose rows, also without rows."""
    return [[row[column] for row in rows] for column in range(width)]
