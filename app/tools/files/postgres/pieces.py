from __future__ import annotations

from collections.abc import Sequence

from app.storage.tables import Transaction, execute
from app.tools.files.contents.pieces import Pieces

SWEPT_CHUNKS = 500  # per transaction

_DELETE_CHUNKS = f"""
DELETE FROM antiphon_chunks WHERE (file, number) IN (
    SELECT file, number FROM antiphon_chunks
    WHERE file = ANY (ARRAY (SELECT chunks FROM antiphon_removed WHERE number = ANY ($1))) LIMIT {SWEPT_CHUNKS}
) RETURNING 1
"""


class PostgresPieces(Pieces):
    WRITE = """
    WITH upload AS (
        INSERT INTO antiphon_uploads VALUES ($1, {moment}) ON CONFLICT (file) DO UPDATE SET touched = excluded.touched
    )
    INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3)
    """

    def _delete_chunks(self, rows: Sequence[int]) -> Transaction[bool]:
        return len((yield execute(_DELETE_CHUNKS, rows))) < SWEPT_CHUNKS
