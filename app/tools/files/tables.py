"""
Tables for files, with the same columns in SQLite and PostgreSQL: see `app.storage.tables`.

`{row}` is the column with a table's row number, `{identity}` its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.storage.tables import Row, Tables, Transaction
from app.tools.files import Page, UnknownCursor


class FileTables(Tables, Protocol):
    def advisory_lock(self, key: str) -> Transaction[None]:
        """Lock a key, such as an owner, until the transaction ends, so that concurrent uploads keep the limit."""
        ...


async def fetch_page(
    tables: FileTables, select: str, table: str, where: str, values: tuple[object, ...], page: Page
) -> tuple[Sequence[Row], bool]:
    """
    Return a page of rows and whether more exist; raises `UnknownCursor`.

    Cursors are values in the column `id`. `where` and `values` filter the rows.
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
    return page.trim([*await tables.fetch(statement, *bounds, page.limit + 1)])
