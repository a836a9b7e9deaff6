"""
Content in the database: a row per piece, about 1 MiB each.

Deleted content is first listed in `antiphon_removed`, then deleted in small transactions, so that other writes do not
wait for long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import ClassVar

from app.storage.tables import Row, Statement, Transaction, execute, execute_many
from app.tools.files import ABANDONED_AFTER
from app.tools.files.contents import Owner
from app.tools.files.tables import FileTables

_REMOVED = 100  # rows per transaction
SWEPT_PIECES = 64  # per transaction

_LIST_REMOVED = f"""
SELECT {{row}}, content FROM antiphon_removed ORDER BY {{row}} LIMIT {_REMOVED} FOR UPDATE SKIP LOCKED
"""
_DELETE_PIECES = f"""
DELETE FROM antiphon_pieces WHERE (file, number) IN (
    SELECT file, number FROM antiphon_pieces WHERE file = ANY ($1) LIMIT {SWEPT_PIECES}
) RETURNING 1
"""
_DELETE_ABANDONED = f"""
DELETE FROM antiphon_uploads WHERE file IN (
    SELECT file FROM antiphon_uploads WHERE touched <= {{moment}} - $1 * {{second}}
    LIMIT {_REMOVED} FOR UPDATE SKIP LOCKED
) RETURNING file
"""


class Pieces:
    WRITE: ClassVar[str]  # (content id, number, piece): also renews the claim

    def __init__(self, tables: FileTables) -> None:
        self._tables = tables

    async def write(self, content_id: str, number: int, data: bytes) -> None:
        await self._tables.execute(self.WRITE, content_id, number, data)

    async def finish(self, content_id: str) -> None:
        """All pieces are already stored."""

    async def discard(self, content_id: str) -> None:
        unclaim = execute("DELETE FROM antiphon_uploads WHERE file = $1 RETURNING file", content_id)
        await self._tables.run(lambda: _remove(unclaim))
        await self.delete_removed()

    async def read(self, content_id: str, owner: Owner) -> AsyncIterator[bytes]:
        statement = f"SELECT data FROM antiphon_pieces WHERE file = $2 AND number = $3 AND {owner.exists}"
        for number in count():
            rows = await self._tables.fetch(statement, owner.id, content_id, number)
            if not rows:
                return
            yield rows[0][0]

    async def delete_abandoned(self) -> None:
        """Mark abandoned uploads as removed."""
        abandoned = execute(_DELETE_ABANDONED, ABANDONED_AFTER)
        while await self._tables.run(lambda: _remove(abandoned)) == _REMOVED:
            pass

    async def delete_removed(self) -> None:
        while await self._tables.run(self._delete_some):
            pass

    def _delete_some(self) -> Transaction[bool]:
        """Return False if nothing remains."""
        removed = yield execute(_LIST_REMOVED)
        if not removed:
            return False
        pieces = yield execute(_DELETE_PIECES, [content for _, content in removed if content is not None])
        rows = [row for row, _ in removed]
        if (yield from self._delete_chunks(rows)) and len(pieces) < SWEPT_PIECES:
            yield execute("DELETE FROM antiphon_removed WHERE {row} = ANY ($1)", rows)
        return True

    def _delete_chunks(self, rows: Sequence[int]) -> Transaction[bool]:
        """Also delete chunks listed in `antiphon_removed`; return whether none remain."""
        yield from ()
        return True


def _remove(delete: Statement) -> Transaction[int]:
    """Mark contents as removed; `delete` returns their ids. Return their number."""
    deleted: Sequence[Row] = yield delete
    yield execute_many("INSERT INTO antiphon_removed (content) VALUES ($1)", [(*row,) for row in deleted])
    return len(deleted)
