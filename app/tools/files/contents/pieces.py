"""Content in the database: a row per piece, about 1 MiB each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

from app.tools.files.contents import Owner
from app.tools.files.tables import FileTables


class Pieces:
    def __init__(self, tables: FileTables) -> None:
        self._tables = tables

    async def finish(self, content_id: str) -> None:
        """All pieces are already stored."""

    async def read(self, content_id: str, owner: Owner) -> AsyncIterator[bytes]:
        statement = f"SELECT data FROM antiphon_pieces WHERE file = $2 AND number = $3 AND {owner.exists}"
        for number in count():
            rows = await self._tables.fetch(statement, owner.id, content_id, number)
            if not rows:
                return
            yield rows[0][0]
