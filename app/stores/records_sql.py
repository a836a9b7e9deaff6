"""
Records in SQL tables: the statements that SQLite and PostgreSQL share. A partition is a row in `antiphon_buckets`.

`app.storage.tables` describes their syntax. `{left}` is the time in seconds until a partition expires; `{array}`
aggregates a column into a JSON array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import ClassVar, Self

import orjson

from app.errors import StoreUnavailable
from app.storage.tables import Rows, Tables
from app.stores import Change, images_partition
from app.stores.keys import FOREVER
from app.stores.usage_sql import SQLUsage

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


class SQLStore(ABC):
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

    @abstractmethod
    async def apply(self, *changes: Change) -> bool: ...

    async def put(self, partition: str, name: str, record: bytes) -> None:
        await self.apply(Change(partition, {name: record}))

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

    async def _records(self, statement: str, partition: str, *name: str) -> dict[str, bytes]:
        rows = await self._fetch_records(statement, partition, *name)
        await self._renew(partition, rows)
        return {name: record for _, name, record in rows if name is not None}

    async def _fetch_records(self, statement: str, *values: str) -> Rows:
        return await self._tables.fetch(statement, *values)

    async def _renew(self, partition: str, rows: Rows) -> None:
        if rows and abs(self._ttl - rows[0][0]) > self._slack:
            # The result is complete even if the renewal fails; the next use renews.
            with suppress(StoreUnavailable):
                await self._tables.execute(_RENEW, partition, images_partition(partition), self._ttl, idempotent=True)
