"""Table migrations; version 0 is an empty database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol


class Connection(Protocol):
    def transaction(self) -> Any: ...

    async def execute(self, query: str, *arguments: object) -> object: ...

    async def executemany(self, query: str, arguments: Any) -> None: ...

    async def fetch(self, query: str, *arguments: object) -> list[Any]: ...

    async def fetchval(self, query: str, *arguments: object) -> Any: ...


class UnpreparedError(Exception):
    """The message contains the reason."""


class SchemaTooNewError(UnpreparedError):
    """A later version of this server created the tables."""


class Migrations(NamedTuple):
    statements: Sequence[str]
    first: int = 1  # the version created by the first statements
    earlier: Mapping[int, str] = MappingProxyType({})  # from each version before `first` to `first`

    @property
    def newest(self) -> int:
        return self.first + len(self.statements) - 1

    def pending(self, version: int) -> Sequence[str]:
        """Statements that migrate from a version; raises `UnpreparedError`."""
        if version > self.newest:
            raise SchemaTooNewError(f"the tables have version {version}, and this server knows {self.newest}")
        if version == 0:
            return self.statements
        if version < self.first:
            return [self.earlier[version], *self.statements[1:]]
        return self.statements[version - self.first + 1 :]


async def migrate(connection: Connection, versions: str, lock: int, migrations: Migrations) -> None:
    """
    Concurrent calls wait. Raises `UnpreparedError`.

    `versions` is the table with the current version, `lock` an advisory lock.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", lock)
        await connection.execute(f"CREATE TABLE IF NOT EXISTS {versions} (version integer NOT NULL)")
        version = await connection.fetchval(f"SELECT max(version) FROM {versions}") or 0
        if statements := migrations.pending(version):
            for statement in statements:
                await connection.execute(statement)
            await connection.execute(f"DELETE FROM {versions}")
            await connection.execute(f"INSERT INTO {versions} VALUES ($1)", migrations.newest)
