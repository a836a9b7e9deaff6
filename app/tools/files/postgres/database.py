from __future__ import annotations

from app.errors import APIError
from app.storage import Outage
from app.storage.postgres import PostgresClient, read_postgres_url
from app.storage.tables import Connection
from app.tools.files import FilesUnavailable
from app.tools.files.postgres.schema import NoVectorsError, migrate_files, migrate_vectors


class PostgresDatabase(PostgresClient):
    """The embeddings table, which needs the extension `vector`, is created on first use."""

    def __init__(self, url: str) -> None:
        address = read_postgres_url(url, timeout=30.0)
        outage = Outage(f"the file store in PostgreSQL at {address.name}", FilesUnavailable, FilesUnavailable)
        super().__init__(address, prepare=self._migrate, outage=outage, **address.options)
        self._has_vectors = False

    async def prepare_vectors(self) -> None:
        if self._has_vectors:
            return

        async def create(connection: Connection) -> NoVectorsError | None:
            try:
                await migrate_vectors(connection)
            except NoVectorsError as error:
                return error  # not an outage
            return None

        if error := await self.transaction(create):
            raise error
        self._has_vectors = True

    def unavailable(self, reason: str) -> APIError:
        return self._outage.begins(reason)

    async def _migrate(self, connection: Connection) -> None:
        self._has_vectors = False  # the tables may have been dropped
        await migrate_files(connection)


def storable(value: object) -> object:
    """Replace characters that PostgreSQL rejects in text: NUL and lone surrogates."""
    if isinstance(value, list):
        return [*map(storable, value)]
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
