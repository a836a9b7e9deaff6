from __future__ import annotations

import calendar
from collections.abc import Sequence

from app.storage.tables import Tables, Transaction, execute, execute_many
from app.stores import BATCH_TTL, Spending, UsageRow

# In PostgreSQL, days are dates.
SQLITE_USAGE = {"{day}": "day", "{as_day}": ""}
POSTGRES_USAGE = {"{day}": "to_char(day, 'YYYY-MM-DD')", "{as_day}": "::text::date"}

_COUNTS = UsageRow._fields[4:]
_ADD_BATCH = """
INSERT INTO antiphon_usage_batches (batch, added) VALUES ($1, {moment}) ON CONFLICT DO NOTHING RETURNING batch
"""
_ADD = f"""
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
_ROWS = f"""
SELECT {{day}}, {", ".join(UsageRow._fields[1:])} FROM antiphon_usage
WHERE day BETWEEN $1{{as_day}} AND $2{{as_day}} AND (CAST($3 AS text) IS NULL OR key = $3)
"""
_DELETE = "DELETE FROM antiphon_usage WHERE day < $1{as_day}"
_DELETE_BATCHES = "DELETE FROM antiphon_usage_batches WHERE added < {moment} - $1 * {second}"


class SQLUsage:
    """Usage rows in a table, and added batches in another."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        def transaction() -> Transaction[None]:
            if (yield execute(_ADD_BATCH, batch)):
                # In order, to prevent deadlocks between concurrent additions to the same rows.
                yield execute_many(_ADD, sorted(rows, key=lambda row: row[:4]))

        await self._tables.run(transaction, idempotent=True)

    async def spending(self, key: str, day: str) -> Spending:
        month = day[:7]
        _, days = calendar.monthrange(int(month[:4]), int(month[5:]))
        (row,) = await self._tables.fetch(_SPENDING, key, day, f"{month}-01", f"{month}-{days}")
        return Spending(*row)

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        return [UsageRow(*row) for row in await self._tables.fetch(_ROWS, first, last, key)]

    async def delete_before(self, before: str) -> None:
        await self._tables.execute(_DELETE, before, idempotent=True)
        await self._tables.execute(_DELETE_BATCHES, float(BATCH_TTL), idempotent=True)
