"""The protocol of usage: how much each key has used of each model on each day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

# Seconds for which a store remembers added batches, at least.
BATCH_TTL = 86_400


class UsageRow(NamedTuple):
    """What one key used of one model at one backend on one day, or adds to that."""

    day: str  # in UTC, such as `2026-11-22`
    key: str  # its name
    model: str
    backend: str  # its name in the settings
    requests: int
    input_tokens: int
    cached_tokens: int  # of the input
    output_tokens: int
    reasoning_tokens: int  # of the output
    cost: int  # in nanos: see `app.core.prices`


class Spending(NamedTuple):
    """What one key has used on a day, and in the month of that day until its end."""

    tokens_per_day: int = 0
    money_per_day: int = 0  # in nanos
    tokens_per_month: int = 0
    money_per_month: int = 0


class UsageLedger(Protocol):
    """The usage of all keys, added up by one process or by all that share a store; may raise `StoreUnavailable`."""

    async def add(self, batch: str, rows: Sequence[UsageRow]) -> None:
        """
        Add to the rows of the same day, key, model and backend, all at once.

        A `batch` is added only once, so a call whose result is unknown can be repeated.
        """
        ...

    async def spending(self, key: str, day: str) -> Spending:
        """Return what a key has used on a day, and in its month."""
        ...

    async def rows(self, first: str, last: str, key: str | None = None) -> list[UsageRow]:
        """Return the rows of these days, of one key or of all, in any order."""
        ...

    async def forget(self, before: str) -> None:
        """Delete the rows of earlier days, where the store does not do so itself."""
        ...


@runtime_checkable
class UsageStore(Protocol):
    """A store for usage."""

    def usage(self, *, days: int) -> UsageLedger:
        """Return the ledger, which stores rows for `days` days; it does no I/O until it is used."""
        ...


def add_rows(row: UsageRow, other: UsageRow) -> UsageRow:
    """Return the sum of two rows of the same day, key, model and backend."""
    return UsageRow(*row[:4], *(a + b for a, b in zip(row[4:], other[4:], strict=True)))


def add_row(rows: dict[tuple[str, ...], UsageRow], name: tuple[str, ...], row: UsageRow) -> None:
    """Add a row to the one of that name, or put it there if there is none; the first row's names are kept."""
    rows[name] = add_rows(rows[name], row) if name in rows else row
