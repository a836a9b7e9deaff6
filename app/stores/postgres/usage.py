"""Usage in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from app.storage.postgres import PostgresClient
from app.stores.usage import BATCH_TTL, Spending, UsageRow

_COUNTS = UsageRow._fields[4:]
_COLUMNS = ", ".join(UsageRow._fields)
# In order, so that two concurrent additions to the same rows do not deadlock.
_ADD = f"""
WITH fresh AS (
    INSERT INTO antiphon_usage_batches (batch) VALUES ($1) ON CONFLICT DO NOTHING RETURNING batch
)
INSERT INTO antiphon_usage AS stored ({_COLUMNS})
SELECT {_COLUMNS} FROM unnest(
    $2::date[], $3::text[], $4::text[], $5::text[], {", ".join(f"${n}::bigint[]" for n in range(6, 6 + len(_COUNTS)))}
) AS added ({_COLUMNS})
WHERE EXISTS (SELECT FROM fresh) ORDER BY key, day, model, backend
ON CONFLICT (key, day, model, backend) DO UPDATE SET
    {", ".join(f"{name} = stored.{name} + excluded.{name}" for name in _COUNTS)}
"""
_SPENDING = """
SELECT coalesce(sum(tokens) FILTER (WHERE day = $2), 0)::bigint, coalesce(sum(cost) FILTER (WHERE day = $2), 0)::bigint,
    coalesce(sum(tokens), 0)::bigint, coalesce(sum(cost), 0)::bigint
FROM (SELECT day, input_tokens + output_tokens AS tokens, cost FROM antiphon_usage
    WHERE key = $1 AND day >= date_trunc('month', $2::date) AND day < date_trunc('month', $2::date) + interval '1 month'
) AS month
"""
_ROWS = f"SELECT {_COLUMNS} FROM antiphon_usage WHERE day BETWEEN $1 AND $2 AND ($3::text IS NULL OR key = $3)"
_FORGET_BATCHES = """
DELETE FROM antiphon_usage_batches WHERE added < clock_timestamp() - make_interval(secs => $1)
"""


class PostgresUsage:
    """Rows in a table."""

    def __init__(self, client: PostgresClient) -> None:
        self._client = client

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """Add to rows in one statement; a batch is added only once."""
        days, *columns = ([*column] for column in zip(*rows, strict=True))
        await self._client.fetch(_ADD, batch, [date.fromisoformat(day) for day in days], *columns, idempotent=True)

    async def spending(self, key: str, day: str) -> Spending:
        [row] = await self._client.fetch(_SPENDING, key, date.fromisoformat(day), idempotent=True)
        return Spending(*row)

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        days = date.fromisoformat(first), date.fromisoformat(last)
        rows = await self._client.fetch(_ROWS, *days, key, idempotent=True)
        return [UsageRow(day.isoformat(), *rest) for day, *rest in rows]

    async def forget(self, before: str) -> None:
        await self._client.fetch("DELETE FROM antiphon_usage WHERE day < $1", date.fromisoformat(before))
        await self._client.fetch(_FORGET_BATCHES, float(BATCH_TTL))
