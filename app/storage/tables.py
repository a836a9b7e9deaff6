"""
Tables with the same columns and statements in SQLite and PostgreSQL.

Statements are written for PostgreSQL: parameters are `$1`, `$2`, ..., tables are named `antiphon_...`, and `= ANY ($1)`
compares with a list. Placeholders: `{now}` is the time in seconds, `{moment}` the time in time columns, and `{second}`
the unit to add to `{moment}`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]


class Statement(NamedTuple):
    text: str
    values: tuple[object, ...] = ()
    many: Sequence[tuple[object, ...]] | None = None  # run once per element, without returning rows


# Yields `execute(...)`, receives its rows, and returns a result.
Transaction: TypeAlias = Generator[Statement, Rows, T]


class Tables(Protocol):
    """Every method raises the outage's error."""

    async def fetch(self, text: str, *values: object) -> Rows:
        """A read-only statement's rows."""
        ...

    async def execute(self, text: str, *values: object, idempotent: bool = False) -> Rows:
        """Run a single statement that writes; return its rows. Otherwise like `run`."""
        ...

    async def run(self, transaction: Callable[[], Transaction[T]], *, idempotent: bool = False) -> T:
        """
        Run a transaction; it can be called more than once.

        `idempotent` transactions are repeated if the connection breaks.
        """
        ...


def execute(text: str, *values: object) -> Statement:
    return Statement(text, values)


def execute_many(text: str, rows: Sequence[tuple[object, ...]]) -> Statement:
    """Return a statement that runs once per element of `rows`, without returning rows."""
    return Statement(text, many=rows)


def substitute(text: str, words: Mapping[str, str]) -> str:
    """Replace placeholders in order."""
    for word, here in words.items():
        text = text.replace(word, here)
    return text
