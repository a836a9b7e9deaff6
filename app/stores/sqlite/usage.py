"""Usage in a SQLite file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from app.storage.sqlite import Database, changed, query
from app.stores.usage import BATCH_TTL, Spending, UsageRow

_COLUMNS = ", ".join(UsageRow._fields)
_COUNTS = UsageRow._fields[4:]
_SUMS = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTS)
_ADD = f"""
INSERT INTO usage ({_COLUMNS}) VALUES ({", ".join("?" * len(UsageRow._fields))})
ON CONFLICT (key, day, model, backend) DO UPDATE SET {_SUMS}
"""
_BATCH = "INSERT INTO usage_batches (batch, added) VALUES (?, ?) ON CONFLICT DO NOTHING"
_SPENDING = """
SELECT coalesce(sum(tokens) FILTER (WHERE day = :day), 0), coalesce(sum(cost) FILTER (WHERE day = :day), 0),
    coalesce(sum(tokens), 0), coalesce(sum(cost), 0)
FROM (SELECT day, input_tokens + output_tokens AS tokens, cost FROM usage
    WHERE key = :key AND day BETWEEN :month || '-01' AND :month || '-31')
"""
_ROWS = f"SELECT {_COLUMNS} FROM usage WHERE day BETWEEN :first AND :last AND (:key IS NULL OR key = :key)"


class SQLiteUsage:
    """Rows in a table."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._clock = clock

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """Add to rows in one transaction; a batch is added only once."""
        now = self._clock()

        def add(db: apsw.Connection) -> None:
            db.execute("DELETE FROM usage_batches WHERE added < ?", (now - BATCH_TTL,))
            if changed(db, _BATCH, (batch, now)):
                db.executemany(_ADD, rows)

        await self._db.write(add)

    async def spending(self, key: str, day: str) -> Spending:
        values = {"key": key, "day": day, "month": day[:7]}
        return Spending(*(await self._fetch(_SPENDING, values))[0])

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        return [UsageRow(*row) for row in await self._fetch(_ROWS, {"first": first, "last": last, "key": key})]

    async def forget(self, before: str) -> None:
        await self._db.write(lambda db: db.execute("DELETE FROM usage WHERE day < ?", (before,)))

    async def _fetch(self, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        return await self._db.read(lambda db: query(db, statement, values))
