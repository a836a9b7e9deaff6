from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

# Seconds for which a store remembers added batches, at least.
BATCH_TTL = 86_400


class UsageRow(NamedTuple):
    """A key's daily usage of a model at a backend, or an addition to it."""

    day: str  # in UTC, for example `2026-11-22`
    key: str
    model: str
    backend: str
    requests: int
    input_tokens: int
    cached_tokens: int  # part of the input
    output_tokens: int
    reasoning_tokens: int  # part of the output
    cost: int  # in nanos: see `app.core.prices`


class Spending(NamedTuple):
    tokens_per_day: int = 0
    money_per_day: int = 0  # in nanos
    tokens_per_month: int = 0
    money_per_month: int = 0


class UsageLedger(Protocol):
    """For a process or for all processes that share a store. Can raise `StoreUnavailable`."""

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """
        Add to the rows with the same day, key, model and backend, atomically.

        A `batch` is added only once, so a call with an unknown result can be repeated.
        """
        ...

    async def spending(self, key: str, day: str) -> Spending: ...

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        """Rows for these days, for a key or all keys, in any order."""
        ...

    async def delete_before(self, before: str) -> None:
        """Delete rows before a day, unless the store does it itself."""
        ...


@runtime_checkable
class UsageStore(Protocol):
    def usage(self, *, days: int) -> UsageLedger:
        """The ledger retains rows for `days` days; no I/O before first use."""
        ...


def add_rows(row: UsageRow, other: UsageRow) -> UsageRow:
    return UsageRow(*row[:4], *(a + b for a, b in zip(row[4:], other[4:], strict=True)))


def add_row(rows: dict[tuple[str, ...], UsageRow], name: tuple[str, ...], row: UsageRow) -> None:
    """The first row's names are kept."""
    rows[name] = add_rows(rows[name], row) if name in rows else row
