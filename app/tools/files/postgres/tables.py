"""The `FileTables` of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from app.storage.migration import Connection
from app.tools.files.postgres.database import PostgresDatabase, storable
from app.tools.files.postgres.schema import in_postgres
from app.tools.files.tables import Rows, Statement, Steps

T = TypeVar("T")


class PostgresTables:
    """Runs statements by the clock of the database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._db = database

    async def fetch(self, text: str, *values: object) -> Rows:
        return await self._db.fetch(in_postgres(text), *values, idempotent=True)

    async def run(self, steps: Callable[[], Steps[T]]) -> T:
        async def work(connection: Connection) -> T:
            running = steps()
            try:
                statement = next(running)
                while True:
                    statement = running.send(await _run(connection, statement))
            except StopIteration as end:
                result: T = end.value
                return result

        return await self._db.transaction(work)

    def lock_owner(self, owner: str) -> Steps[None]:
        yield Statement("SELECT pg_advisory_xact_lock(hashtextextended('antiphon files ' || $1, 0))", (owner,))


async def _run(connection: Connection, statement: Statement) -> Rows:
    text = in_postgres(statement.text)
    if statement.many is not None:
        # Sent together, without waiting for each result.
        await connection.executemany(text, [[*map(storable, values)] for values in statement.many])
        return []
    return await connection.fetch(text, *map(storable, statement.values))
