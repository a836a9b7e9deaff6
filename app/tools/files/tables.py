"""
The tables of files, with the same columns in SQLite and PostgreSQL: see `app.storage.tables`.

`{row}` is the column that numbers the rows of a table, of the type `{identity}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.storage.tables import Row, Steps, Tables
from app.tools.files import Page, UnknownCursor


class FileTables(Tables, Protocol):
    """The tables of a database of files; every method raises `FilesUnavailable` if it cannot be reached."""

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
    conditions, bounds = [where], [*values]
    for name, row_id, comparison in page.cursors():
        cursor = f"SELECT {{row}} FROM {table} WHERE {where} AND id = ${len(values) + 1}"
        rows = await tables.fetch(cursor, *values, row_id)
        if not rows:
            raise UnknownCursor(name, row_id)
        bounds.append(rows[0][0])
        conditions.append(f"{{row}} {comparison} ${len(bounds)}")
    limit = f"LIMIT ${len(bounds) + 1}"
    statement = f"{select} WHERE {' AND '.join(conditions)} ORDER BY {{row}} {page.order} {limit}"
    return page.cut([*await tables.fetch(statement, *bounds, page.limit + 1)])
