"""The search index of a vector store in SQLite, beneath what all databases of files have in common."""

from __future__ import annotations

from pathlib import Path

from app.tools.files.sqlite.index import Index
from app.tools.files.vector_stores.records import Query, TextChunk


def found(index: Index, text: str) -> list[int]:
    return [chunk.file for chunk in index.search(Query(text), 10, None)]


def test_chunks_of_a_file_that_was_added_and_read_meanwhile_are_kept(tmp_path: Path) -> None:
    index = Index(tmp_path / "vs.db")
    index.replace(8, [TextChunk("Thirty days of vacation.")], "", alive={7, 8})
    index.replace(7, [TextChunk("Bread needs yeast.")], "", alive={7})  # asked for before the other one was there
    assert (found(index, "vacation"), found(index, "yeast")) == ([8], [7])


def test_chunks_of_a_file_that_is_gone_are_removed_with_the_next_one(tmp_path: Path) -> None:
    index = Index(tmp_path / "vs.db")
    index.replace(7, [TextChunk("Bread needs yeast.")], "", alive={7})
    index.replace(8, [TextChunk("Thirty days of vacation.")], "", alive={8})
    assert (found(index, "vacation"), found(index, "yeast")) == ([8], [])
