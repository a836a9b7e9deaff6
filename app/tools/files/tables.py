"""
Tables that SQLite and PostgreSQL have with the same columns, used by the same statements.

Statements are written for PostgreSQL: parameters are `$1`, `$2`, ..., and tables are named `antiphon_...`. `{row}` is
the column that numbers the rows of a table, of the type `{identity}`, and `{now}` the time by the clock of the
database, in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from app.tools.files import Page, UnknownCursor

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


def with_words(text: str, words: Mapping[str, str]) -> str:
    """Return a statement with a database's own words for those that differ, in this order."""
    for word, here in words.items():
        text = text.replace(word, here)
    return text


class FileTables(Protocol):
    """The tables of a database of files; every method raises `FilesUnavailable` if it cannot be reached."""

    async def fetch(self, text: str, *values: object) -> Rows:
        """Return the rows of a statement that changes nothing."""
        ...

    async def run(self, steps: Callable[[], Steps[T]]) -> T:
        """Run statements in one transaction and return their result; `steps` may be called more than once."""
        ...

    def lock_owner(self, owner: str) -> Steps[None]:
        """Let transactions that add to an owner's files wait for each other, so that two keep the limit together."""
        ...


async def listed(
    tables: FileTables, select: str, table: str, where: str, values: tuple[object, ...], page: Page
) -> tuple[Sequence[Row], bool]:
    """
    Return the rows of a page of a table, and whether more follow; raises `UnknownCursor`.

    The column `id` holds the ids of the entries; `where` and `values` select some of them.
    """
    bounds = []
    for name, row_id, comparison in page.cursors():
        cursor = f"SELECT {{row}} FROM {table} WHERE {where} AND id = ${len(values) + 1}"
        rows = await tables.fetch(cursor, *values, row_id)
        if not rows:
            raise UnknownCursor(name, row_id)
        bounds.append(f"{{row}} {comparison} {rows[0][0]}")
    conditions = " AND ".join([where, *bounds])
    statement = f"{select} WHERE {conditions} ORDER BY {{row}} {page.order} LIMIT {page.limit + 1}"
    return page.cut([*await tables.fetch(statement, *values)])


def single(text: str, *values: object) -> Steps[Rows]:
    """Return the steps of one statement; their result is its rows."""
    return (yield Statement(text, values))
