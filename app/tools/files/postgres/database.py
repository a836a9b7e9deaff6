"""The database of files in PostgreSQL: its URL, calls and pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from app.errors import APIError
from app.storage.migration import Connection
from app.storage.outage import Outage
from app.storage.postgres import PostgresClient, read_postgres_url
from app.tools.files import FilesUnavailable, Page, UnknownCursor
from app.tools.files.postgres.schema import NoVectorsError, migrate_files, migrate_vectors
from app.tools.files.tables import Row

T = TypeVar("T")

_WRITABLE = "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'"


class PostgresDatabase:
    """
    Calls to the database; each raises `FilesUnavailable` if it cannot be reached.

    The table of embeddings, which needs the extension `vector`, is created when it is first used.
    """

    def __init__(self, url: str) -> None:
        """Raises `ValueError` for an invalid URL."""
        address = read_postgres_url(url, timeout=30.0)
        self._outage = Outage(f"the file store in PostgreSQL at {address.name}", FilesUnavailable)
        self._client = PostgresClient(address, prepare=self._prepare, outage=self._outage, **address.options)
        self._has_vectors = False

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """Return the rows of a query."""
        return await self._client.fetch(query, *map(storable, arguments))

    async def transaction(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` in a transaction and return its result; `work` may be repeated."""
        return await self._client.transaction(work)

    async def prepare_vectors(self) -> None:
        """Create the table of embeddings, unless it exists; raises `NoVectorsError`."""
        if self._has_vectors:
            return

        async def create(connection: Connection) -> NoVectorsError | None:
            try:
                await migrate_vectors(connection)
            except NoVectorsError as error:
                return error  # which is no outage
            return None

        if error := await self._client.transaction(create):
            raise error
        self._has_vectors = True

    def unavailable(self, reason: str) -> APIError:
        """Return the error to raise, after logging the reason."""
        return self._outage.begins(reason)

    async def check(self) -> None:
        """Check that the server accepts writes, which a replica does not."""
        if not (await self.fetch(_WRITABLE))[0][0]:
            raise self.unavailable("it cannot be written to: is it a replica?")

    async def listed(
        self, select: str, table: str, where: str, values: tuple[object, ...], page: Page
    ) -> tuple[list[Row], bool]:
        """
        Return the rows of a page, and whether more rows follow; raises `UnknownCursor`.

        `table` is ordered by its column `number`, and `id` holds the ids of its entries; `where` and `values` select
        entries.
        """
        bounds = []
        for name, row_id, comparison in page.cursors():
            cursor = f"SELECT number FROM {table} WHERE {where} AND id = ${len(values) + 1}"
            rows = await self.fetch(cursor, *values, row_id)
            if not rows:
                raise UnknownCursor(name, row_id)
            bounds.append(f"number {comparison} {rows[0][0]}")
        conditions = " AND ".join([where, *bounds])
        statement = f"{select} WHERE {conditions} ORDER BY number {page.order} LIMIT {page.limit + 1}"
        return page.cut(await self.fetch(statement, *values))

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _prepare(self, connection: Connection) -> None:
        self._has_vectors = False  # the tables may have been dropped
        await migrate_files(connection)


def storable(value: object) -> object:
    """Return a value in a form that PostgreSQL can store: it takes neither NUL nor lone surrogates in a text."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
