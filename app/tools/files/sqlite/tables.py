"""The `FileTables` of a SQLite database."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import apsw

from app.storage.sqlite import Database, query
from app.tools.files.tables import Rows, Statement, Steps, with_words

T = TypeVar("T")

_LOCKING = re.compile(r"\s+FOR (?:UPDATE|KEY SHARE)(?: SKIP LOCKED)?\b")  # a transaction locks the whole database


class SQLiteTables:
    """Runs statements that are written for PostgreSQL."""

    def __init__(self, db: Database, clock: Callable[[], float]) -> None:
        self._db, self._clock = db, clock

    async def fetch(self, text: str, *values: object) -> Rows:
        return await self._db.read(lambda db: self.query(db, Statement(text, values)))

    async def run(self, steps: Callable[[], Steps[T]]) -> T:
        def work(db: apsw.Connection) -> T:
            running = steps()
            try:
                statement = next(running)
                while True:
                    statement = running.send(self.query(db, statement))
            except StopIteration as end:
                result: T = end.value
                return result

        return await self._db.write(work)

    def lock_owner(self, owner: str) -> Steps[None]:
        """Do nothing: there is one transaction at a time."""
        yield from ()

    def query(self, db: apsw.Connection, statement: Statement) -> list[tuple[Any, ...]]:
        """Return the rows of a statement in a transaction that runs."""
        text, now = in_sqlite(statement.text), {"now": self._clock()}
        if statement.many is not None:
            db.executemany(text, [numbered(values) | now for values in statement.many])
            return []
        return query(db, text, numbered(statement.values) | now)


def numbered(values: tuple[object, ...]) -> dict[str, object]:
    """Return the values of the parameters `$1`, `$2`, ..."""
    return {str(number): value for number, value in enumerate(values, 1)}


_WORDS = {
    "antiphon_vector_stores": "stores",
    "antiphon_file_batches": "batches",
    "antiphon_": "",
    "{row}": "row",
    "{identity}": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "bytea": "BLOB",
    "{now}": "$now",
}


@cache
def in_sqlite(text: str) -> str:
    """Return a statement with SQLite's own words."""
    return _LOCKING.sub("", with_words(text, _WORDS))
