from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from app.stores.usage import Spending, UsageRow, add_row


class MemoryUsage:
    """Rows, and each key's daily and monthly totals, for budgets."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], UsageRow] = {}
        self._tokens: Counter[tuple[str, str]] = Counter()  # by key, and by day or month
        self._cost: Counter[tuple[str, str]] = Counter()
        self._batches: deque[str] = deque(maxlen=100)  # the last batches, because repetitions follow soon

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        if batch in self._batches:
            return
        self._batches.append(batch)
        for row in rows:
            add_row(self._rows, row[:4], row)
        self._count(rows)

    async def spending(self, key: str, day: str) -> Spending:
        today, month = (key, day), (key, day[:7])
        return Spending(self._tokens[today], self._cost[today], self._tokens[month], self._cost[month])

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        return [row for row in self._rows.values() if first <= row.day <= last and key in (None, row.key)]

    async def delete_before(self, before: str) -> None:
        self._rows = {name: row for name, row in self._rows.items() if row.day >= before}
        self._tokens.clear()
        self._cost.clear()
        self._count(self._rows.values())

    def _count(self, rows: Iterable[UsageRow]) -> None:
        for row in rows:
            for period in (row.day, row.day[:7]):
                self._tokens[row.key, period] += row.input_tokens + row.output_tokens
                self._cost[row.key, period] += row.cost
