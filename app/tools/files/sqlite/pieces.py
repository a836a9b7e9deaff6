from __future__ import annotations

from app.tools.files.contents.pieces import Pieces


class SQLitePieces(Pieces):
    WRITE = """
    INSERT INTO antiphon_pieces (file, number, data) VALUES ($1, $2, $3);
    INSERT OR REPLACE INTO antiphon_uploads VALUES ($1, {moment})
    """
