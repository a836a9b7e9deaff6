"""
Tables that SQLite and PostgreSQL have with the same columns, used by the same statements.

Statements are written for PostgreSQL: parameters are `$1`, `$2`, ..., and tables are named `antiphon_...`. `{now}` is
the database's time in seconds. A caller can name more words that differ between the databases.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
Row: TypeAlias = Sequence[Any]  # its columns are of the types that the schema names
Rows: TypeAlias = Sequence[Row]


class Statement(NamedTuple):
    """A statement with the values of its parameters."""

    text: str
    values: tuple[object, ...] = ()
    many: Sequence[tuple[object, ...]] | None = None  # run once with each of these values, returning no rows


# The statements of one transaction: a generator that yields them, receives the rows of each, and returns a result.
Steps: TypeAlias = Generator[Statement, Rows, T]


class Tables(Protocol):
    """The tables of a database; every method raises the error of its outage."""

    async def fetch(self, text: str, *values: object) -> Rows:
        """Return the rows of a statement that changes nothing."""
        ...

    async def run(self, steps: Callable[[], Steps[T]], *, idempotent: bool = False) -> T:
        """
        Run statements in one transaction and return their result; `steps` may be called more than once.

        `idempotent` transactions are repeated if the connection breaks.
        """
        ...


def with_words(text: str, words: Mapping[str, str]) -> str:
    """Replace words in a statement, in this order."""
    for word, here in words.items():
        text = text.replace(word, here)
    return text


def single(text: str, *values: object) -> Steps[Rows]:
    """Return the steps of one statement; their result is its rows."""
    return (yield Statement(text, values))
