"""The vector store's search index in SQLite, below the common interface."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from app.storage.sqlite import SQLiteTables
from app.tools.files import FilesUnavailable, Page
from app.tools.files.sqlite import _MIGRATIONS, SQLITE_NAMES, SQLiteFileStore, SQLiteVectorStores
from app.tools.files.sqlite.index import Index
from app.tools.files.vector_stores.records import EmbeddedText, NewStoreFile, VectorStore
from tests.tools.files.conftest import add_file, claim_next

T = TypeVar("T")


def found(index: Index, text: str) -> list[int]:
    return [chunk.file for chunk in index.search(EmbeddedText(text), 10, None)]


def test_chunks_of_a_file_that_was_added_and_read_meanwhile_are_kept(tmp_path: Path) -> None:
    index = Index(tmp_path / "vs.db")
    index.replace(8, [EmbeddedText("Thirty days of vacation.")], alive={7, 8})
    index.replace(7, [EmbeddedText("Bread needs yeast.")], alive={7})  # requested before the other existed
    assert (found(index, "vacation"), found(index, "yeast")) == ([8], [7])


def test_chunks_of_a_file_that_is_gone_are_removed_with_the_next_one(tmp_path: Path) -> None:
    index = Index(tmp_path / "vs.db")
    index.replace(7, [EmbeddedText("Bread needs yeast.")], alive={7})
    index.replace(8, [EmbeddedText("Thirty days of vacation.")], alive={8})
    assert (found(index, "vacation"), found(index, "yeast")) == ([8], [])


class PausingTables(SQLiteTables):
    """Awaits `pause` between a read and its result."""

    pause: Callable[[], Awaitable[None]] | None = None

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        rows = await super().read(work)
        pause, self.pause = self.pause, None
        if pause:
            await pause()
        return rows


async def test_vector_store_refilled_during_the_sweep_keeps_its_index(tmp_path: Path) -> None:
    files = SQLiteFileStore(tmp_path / "files.db")
    tables = PausingTables(tmp_path / "files.db", _MIGRATIONS, SQLITE_NAMES, time.time)
    stores = SQLiteVectorStores(tables)
    store = VectorStore("vs_1", "ada", "", None, None, None, 0, 0)

    async def add(file_id: str, text: str) -> None:
        await add_file(files, file_id)
        await files.vector_stores.add(store, [NewStoreFile(file_id)])
        assert await files.vector_stores.complete(await claim_next(files), [EmbeddedText(text)])

    async def refill() -> None:
        await add("file-2", "Bread needs yeast.")

    await files.vector_stores.create(store)
    await add("file-1", "Thirty days of vacation.")
    await files.vector_stores.remove(store, "file-1")
    tables.pause = refill
    await stores.sweep()
    assert tables.pause is None
    assert [chunk.text for chunk in await files.vector_stores.search(store, EmbeddedText("yeast"), 10)] == [
        "Bread needs yeast."
    ]
    await stores.aclose()
    await tables.aclose()
    await files.aclose()


async def test_time_is_a_parameter_so_that_statements_are_cached(tmp_path: Path) -> None:
    files = SQLiteFileStore(tmp_path / "files.db", clock=lambda: 1234.5)
    assert await files._tables.fetch("SELECT {now}, CAST({now} AS bigint) + $1", 1) == [(1234.5, 1235)]
    statistics = await files._tables.read(lambda db: db.cache_stats(include_entries=True))
    assert not [entry["query"] for entry in statistics["entries"] if "1234.5" in entry["query"]]
    await files.aclose()


async def test_pages_of_a_list_share_one_statement(tmp_path: Path) -> None:
    files = SQLiteFileStore(tmp_path / "files.db")
    for number in range(5):
        await add_file(files, f"file-{number}")
    texts = set()
    for number in range(3):
        page = Page(number + 1, descending=False, after=f"file-{number}")
        found, _ = await files.files("ada", page)
        assert found[0].id == f"file-{number + 1}"
        statistics = await files._tables.read(lambda db: db.cache_stats(include_entries=True))
        texts |= {entry["query"] for entry in statistics["entries"] if "LIMIT" in entry["query"]}
    assert len(texts) == 1
    await files.aclose()


async def test_index_of_a_newer_server_makes_the_store_unavailable(tmp_path: Path) -> None:
    files = SQLiteFileStore(tmp_path / "files.db")
    await files.vector_stores.create(store := VectorStore("vs_1", "ada", "", None, None, None, 0, 0))
    index = Index(tmp_path / "files.db.indexes" / "vs_1.db")
    index.replace(1, [EmbeddedText("Bread needs yeast.")], alive={1})
    with index._open() as db:
        db.pragma("user_version", 1000)
    with pytest.raises(FilesUnavailable):
        await files.vector_stores.search(store, EmbeddedText("yeast"), 10)
    await files.aclose()


def test_index_of_version_1_is_migrated_and_searched(tmp_path: Path) -> None:
    path = tmp_path / "vs.db"
    vector = array("f", [1.0, 0.0]).tobytes()
    index = Index(path)
    index.replace(1, [EmbeddedText("Bread needs yeast.", vector, "toy")], alive={1})
    with closing(apsw.Connection(str(path))) as db:
        db.execute(
            "CREATE TABLE codes (id INTEGER PRIMARY KEY, code BLOB NOT NULL); INSERT INTO codes VALUES (1, x'01')"
        )
        db.pragma("user_version", 1)
    (chunk,) = index.search(EmbeddedText("", vector, "toy"), 10, None)
    assert (chunk.file, chunk.similarity) == (1, 1.0)
    with closing(apsw.Connection(str(path))) as db:
        assert not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'codes'").fetchall()


def database_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("antiphon-")]


async def test_closing_ends_the_threads_of_the_store(tmp_path: Path) -> None:
    before = {*database_threads()}
    store = SQLiteFileStore(tmp_path / "files.db")
    await store.check()
    await store.file("ada", "file-missing")
    started = {*database_threads()} - before
    assert started  # the writer and a reader
    await store.aclose()
    assert not any(thread.is_alive() for thread in started)
