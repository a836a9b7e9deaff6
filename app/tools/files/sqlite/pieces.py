from __future__ import annotations

from collections.abc import Callable

import apsw

from app.storage.sqlite import Database, query
from app.tools.files.contents.pieces import Pieces
from app.tools.files.tables import FileTables


class SQLitePieces(Pieces):
    def __init__(self, db: Database, tables: FileTables, clock: Callable[[], float]) -> None:
        super().__init__(tables)
        self._db, self._clock = db, clock

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute("INSERT INTO pieces (file, number, data) VALUES (?, ?, ?)", (content_id, number, data))
            db.execute("INSERT OR REPLACE INTO uploads VALUES (?, ?)", (content_id, self._clock()))

        await self._db.write(work)

    async def discard(self, content_id: str) -> None:
        def work(db: apsw.Connection) -> None:
            if query(db, "DELETE FROM uploads WHERE file = ? RETURNING file", (content_id,)):
                db.execute("DELETE FROM pieces WHERE file = ?", (content_id,))

        await self._db.write(work)
