"""
Usage in Redis: a hash per key and month.

    antiphon:{usage:NAME}:2026-11   counts by day, model, backend and column; and tokens and cost by day and month
    antiphon:{usage:NAME}:batch:ID  marks an added batch
    antiphon:usage                  names of keys
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from app.stores import BATCH_TTL, Spending, UsageRow
from app.stores.redis.connection import RedisClient, lua_write_guard

_NAMES = "antiphon:usage"
_COUNTS = UsageRow._fields[4:]
_SEPARATOR = "\x1f"
_DAY = 86_400

# KEYS: the batch, then the months. ARGV: the TTLs of the batch and of a month, in seconds; then, repeatedly, a key's
# index, a field, and the amount to add.
_ADD = f"""{lua_write_guard("'SET', KEYS[1], 1, 'NX', 'EX', ARGV[1]")}
if not written then return 0 end
for i = 3, #ARGV, 3 do
  redis.call('HINCRBY', KEYS[tonumber(ARGV[i])], ARGV[i + 1], ARGV[i + 2])
end
for i = 2, #KEYS do redis.call('EXPIRE', KEYS[i], ARGV[2]) end
return 1
"""


class RedisUsage:
    def __init__(self, server: RedisClient, *, days: int) -> None:
        """A month expires `days` days after its last addition."""
        self._server = server
        self._ttl = days * _DAY
        self._named: set[str] = set()  # with stored names

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """Atomic per key."""
        by_key: defaultdict[str, list[UsageRow]] = defaultdict(list)
        for row in rows:
            by_key[row.key].append(row)
        await asyncio.gather(*(self._add(batch, key, key_rows) for key, key_rows in by_key.items()))

    async def spending(self, key: str, day: str) -> Spending:
        month = _month_key(key, day)
        fields = [_field(period, column) for period in (day, day[:7]) for column in ("tokens", "cost")]
        [counts] = await self._server.execute(month, ("HMGET", month, *fields))
        return Spending(*(int(count or 0) for count in counts))

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        [names] = await self._server.execute(_NAMES, ("SMEMBERS", _NAMES))
        keys = sorted(name.decode() for name in names if key in (None, name.decode()))
        first_month, last_month = (12 * int(day[:4]) + int(day[5:7]) - 1 for day in (first, last))
        months = [f"{month // 12:04d}-{month % 12 + 1:02d}" for month in range(first_month, last_month + 1)]
        hashes = await asyncio.gather(*(self._hash(name, month) for name in keys for month in months))
        return [row for rows in hashes for row in rows if first <= row.day <= last]

    async def delete_before(self, before: str) -> None:
        """Redis deletes expired keys itself."""

    async def _add(self, batch: str, key: str, rows: Sequence[UsageRow]) -> None:
        if key not in self._named:
            await self._server.execute(_NAMES, ("SADD", _NAMES, key))
            self._named.add(key)
        months = sorted({row.day[:7] for row in rows})
        keys = [f"antiphon:{{usage:{key}}}:batch:{batch}", *(_month_key(key, month) for month in months)]
        changes: list[str | int] = []
        for row in rows:
            index = months.index(row.day[:7]) + 2
            for column, count in zip(_COUNTS, row[4:], strict=True):
                changes += [index, _field(row.day, row.model, row.backend, column), count]
            for period in (row.day, row.day[:7]):
                changes += [index, _field(period, "tokens"), row.input_tokens + row.output_tokens]
                changes += [index, _field(period, "cost"), row.cost]
        await self._server.execute(keys[0], ("EVAL", _ADD, len(keys), *keys, BATCH_TTL, self._ttl, *changes))

    async def _hash(self, key: str, month: str) -> list[UsageRow]:
        name = _month_key(key, month)
        [fields] = await self._server.execute(name, ("HGETALL", name))
        rows: defaultdict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
        for field, count in fields.items():
            parts = field.decode().split(_SEPARATOR)
            if len(parts) == 4:
                rows[parts[0], parts[1], parts[2]][parts[3]] = int(count)
        return [
            UsageRow(day, key, model, backend, *(counts.get(name, 0) for name in _COUNTS))
            for (day, model, backend), counts in rows.items()
        ]


def _field(*parts: str) -> str:
    return _SEPARATOR.join(parts)


def _month_key(key: str, day: str) -> str:
    return f"antiphon:{{usage:{key}}}:{day[:7]}"
