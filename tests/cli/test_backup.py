"""`antiphon backup`: a consistent copy of the SQLite files, also while a server writes."""

from __future__ import annotations

import stat
import threading
from contextlib import aclosing
from pathlib import Path

import apsw
import pytest

from app.cli.backup import back_up
from app.cli.options import CommandError
from app.settings import Settings
from app.stores.sqlite import SQLiteStore
from tests.cli.test_cli import run


def _settings(folder: Path, **fields: object) -> Settings:
    return Settings(store_url=f"sqlite:///{folder}/antiphon.db", **fields)  # type: ignore[call-arg, arg-type]


def _database(path: Path, *rows: str) -> None:
    path.parent.mkdir(exist_ok=True)
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE rows (value)")
    db.executemany("INSERT INTO rows VALUES (?)", [(row,) for row in rows])
    db.close()


def _rows(path: Path) -> list[str]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [value for (value,) in db.execute("SELECT value FROM rows")]
    finally:
        db.close()


async def test_backup_of_an_open_store_has_its_records(tmp_path: Path) -> None:
    async with aclosing(SQLiteStore(tmp_path / "antiphon.db", ttl=60)) as store:
        await store.put("bucket", "name", b"record")
        (copy,) = back_up(_settings(tmp_path), tmp_path / "backup.db")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    async with aclosing(SQLiteStore(copy, ttl=60)) as restored:
        assert await restored.get("bucket", "name") == b"record"


def test_backup_while_another_connection_writes_is_consistent(tmp_path: Path) -> None:
    """Each transaction inserts two rows, so every consistent copy has an even number."""
    _database(tmp_path / "antiphon.db")
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        db = apsw.Connection(str(tmp_path / "antiphon.db"))
        while not stop.is_set():
            with db:
                db.execute("INSERT INTO rows VALUES ('one')")
                db.execute("INSERT INTO rows VALUES (?)", ("two" * 1000,))
            wrote.set()
        db.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert wrote.wait(30)
        copies = [back_up(_settings(tmp_path), tmp_path / f"backup-{number}.db")[0] for number in range(3)]
    finally:
        stop.set()
        writer.join()
    counts = [len(_rows(copy)) for copy in copies]
    assert counts[0] > 0 and all(count % 2 == 0 for count in counts)


@pytest.mark.parametrize("named", [True, False])
def test_backup_includes_files_and_their_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    _database(tmp_path / "antiphon.db", "response")
    _database(tmp_path / "files.db", "file")
    _database(tmp_path / "files.db.indexes" / "vs_1.db", "chunk")
    url = f"sqlite:///{tmp_path}/files.db"
    monkeypatch.setenv("FILES_URL", url)
    table = {"store_url_env": "FILES_URL"} if named else {"store_url": url}
    copies = back_up(_settings(tmp_path, tools={"file_search": table}), tmp_path / "backup.db")
    names = ["backup.db", "backup.db-files", "backup.db-files.indexes/vs_1.db"]
    assert copies == [tmp_path / name for name in names]
    assert [_rows(copy) for copy in copies] == [["response"], ["file"], ["chunk"]]


def test_backup_to_a_file_that_exists_is_refused(tmp_path: Path) -> None:
    _database(tmp_path / "antiphon.db", "response")
    (tmp_path / "backup.db").write_text("an earlier backup")
    with pytest.raises(CommandError, match=r"File exists: .*backup\.db"):
        back_up(_settings(tmp_path), tmp_path / "backup.db")
    assert (tmp_path / "backup.db").read_text() == "an earlier backup"


def test_backup_of_a_file_that_is_not_a_database_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "antiphon.db").write_text("not a database" * 1000)
    with pytest.raises(CommandError, match="file is not a database"):
        back_up(_settings(tmp_path), tmp_path / "backup.db")
    assert [path.name for path in tmp_path.iterdir()] == ["antiphon.db"]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("memory://", "keeps nothing"),
        ("redis://127.0.0.1:1/0", "redis-cli --rdb"),
        ("postgresql://user:secret@127.0.0.1:1/db", "pg_dump"),
    ],
)
def test_backup_of_another_store_names_its_own_tool(tmp_path: Path, url: str, advice: str) -> None:
    settings = Settings(store_url=url)  # type: ignore[call-arg]
    with pytest.raises(CommandError, match=advice) as raised:
        back_up(settings, tmp_path / "backup.db")
    assert "secret" not in str(raised.value)


def test_backup_command_prints_each_file_and_its_size(tmp_path: Path) -> None:
    _database(tmp_path / "antiphon.db", "response")
    done = run(tmp_path, "backup", "backup.db", ANTIPHON_STORE_URL="sqlite:///antiphon.db")
    size = (tmp_path / "backup.db").stat().st_size
    assert (done.returncode, done.stdout) == (0, f"backup.db  {size} bytes\n"), done.stderr
    again = run(tmp_path, "backup", "backup.db", ANTIPHON_STORE_URL="sqlite:///antiphon.db")
    assert (again.returncode, again.stderr) == (1, "File exists: backup.db\n")
