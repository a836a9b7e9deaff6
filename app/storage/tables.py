"""
Tables with the same columns and statements in SQLite and PostgreSQL, and their migrations.

Statements are written for PostgreSQL: parameters are `$1`, `$2`, ..., tables are named `antiphon_...`, and `= ANY ($1)`
compares with a list. Placeholders: `{now}` is the time in seconds, `{moment}` the time in time columns, and `{second}`
the unit to add to `{moment}`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
S = TypeVar("S", bound="Records")
P = ParamSpec("P")
Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]
Connection: TypeAlias = Any  # asyncpg has no types


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

    async def execute(self, text: str, *values: object, idempotent: bool = False) -> Rows:
        """Run a single statement that writes; return its rows. Otherwise like `run`."""

    async def run(self, transaction: Callable[[], Transaction[T]], *, idempotent: bool = False) -> T:
        """
        Run a transaction; it can be called more than once. An `APIError` rolls it back.

        `idempotent` transactions are repeated if the connection breaks.
        """

    def advisory_lock(self, key: str) -> Transaction[None]:
        """Lock a key, such as an owner, until the transaction ends."""

    async def check(self) -> None:
        """The database must accept writes."""

    async def aclose(self) -> None:
        """Close all connections, after running calls have ended."""


class Records:
    """Reads and writes rows in tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables


def in_transaction(
    method: Callable[Concatenate[S, P], Transaction[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Run a method of `Records` as a transaction; see `Tables.run`."""

    @wraps(method)
    async def run(self: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        return await self._tables.run(lambda: method(self, *arguments, **named))

    return run


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


class UnpreparedError(Exception):
    """The tables cannot be created or migrated. The message contains the reason."""


class Migrations(NamedTuple):
    """Version 0 is an empty database."""

    statements: Sequence[str]
    first: int = 1  # the version created by the first statements
    earlier: Mapping[int, str] = MappingProxyType({})  # from each version before `first` to `first`

    @property
    def newest(self) -> int:
        return self.first + len(self.statements) - 1

    def pending(self, version: int) -> Sequence[str]:
        """Statements that migrate from a version; raises `UnpreparedError`."""
        if version > self.newest:
            raise UnpreparedError(f"the tables have version {version}, and this server knows {self.newest}")
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
