"""Usage in this process's memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from app.stores.usage import Spending, UsageRow, add_row


class MemoryUsage:
    """Rows by day, key, model and backend."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], UsageRow] = {}
        self._batches: deque[str] = deque(maxlen=100)  # the last ones added: repetitions follow soon

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """Add to rows; a batch is added only once."""
        if batch in self._batches:
            return
        self._batches.append(batch)
        for row in rows:
            add_row(self._rows, row[:4], row)

    async def spending(self, key: str, day: str) -> Spending:
        month = [row for row in self._rows.values() if row.key == key and row.day[:7] == day[:7]]
        today = [row for row in month if row.day == day]
        totals = [
            (sum(r.input_tokens + r.output_tokens for r in rows), sum(r.cost for r in rows)) for rows in (today, month)
        ]
        return Spending(*totals[0], *totals[1])

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        return [row for row in self._rows.values() if first <= row.day <= last and key in (None, row.key)]

    async def forget(self, before: str) -> None:
        self._rows = {name: row for name, row in self._rows.items() if row.day >= before}
