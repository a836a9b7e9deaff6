"""Migrations of the tables in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Connection(Protocol):
    """A connection of asyncpg."""

    def transaction(self) -> Any: ...

    async def execute(self, query: str, *arguments: object) -> object: ...

    async def executemany(self, query: str, arguments: Any) -> None: ...

    async def fetch(self, query: str, *arguments: object) -> list[Any]: ...

    async def fetchval(self, query: str, *arguments: object) -> Any: ...


class UnpreparedError(Exception):
    """The database cannot be used; the message says why."""


class SchemaTooNewError(UnpreparedError):
    """The tables were created by a later version of this server."""


async def migrate(connection: Connection, versions: str, lock: int, migrations: Sequence[str]) -> None:
    """
    Create or migrate tables; of several concurrent calls, one does it and the others wait.

    `versions` is the table with the current version, `lock` an advisory lock. Each migration leads from the version
    that is its index to the next; version 0 is an empty database. Raises `SchemaTooNewError`.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", lock)
        await connection.execute(f"CREATE TABLE IF NOT EXISTS {versions} (version integer NOT NULL)")
        version = await connection.fetchval(f"SELECT max(version) FROM {versions}") or 0
        if version > len(migrations):
            raise SchemaTooNewError(f"the tables have version {version}, and this server knows {len(migrations)}")
        for migration in migrations[version:]:
            await connection.execute(migration)
        if version < len(migrations):
            await connection.execute(f"DELETE FROM {versions}")
            await connection.execute(f"INSERT INTO {versions} VALUES ($1)", len(migrations))
