"""The SQLite store: failures and recovery."""

# A test may block: nobody else is in its event loop.
# ruff: noqa: ASYNC240
from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from app.errors import StoreUnavailable
from app.stores import Change, EventSegment, RunKey, sqlite
from app.stores.sqlite import RECORD_PIECE, SQLiteStore
from tests.support.logs import records_of
from tests.support.store_locations import Clock

CHAIN = "2f1c9a:c0ffee"

WRITE = """
    import asyncio, itertools, sys
    from app.stores.sqlite import SQLiteStore

    async def write(path, bucket, prefix, count):
        store = SQLiteStore(path, ttl=1000)
        for number in itertools.islice(itertools.count(), int(count)):
            await store.put(bucket, f"{prefix}_{number}", b"%d" % number)
            print(f"{prefix}_{number}", flush=True)
        await store.aclose()

    asyncio.run(write(*sys.argv[1:]))
"""


# Earlier versions' tables.
FIRST_VERSION = """
CREATE TABLE buckets (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, expires REAL NOT NULL);
CREATE INDEX buckets_by_expiry ON buckets (expires);
CREATE TABLE records (
    bucket INTEGER NOT NULL REFERENCES buckets (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    record BLOB NOT NULL,
    UNIQUE (bucket, name)
);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    bucket TEXT NOT NULL,
    response TEXT NOT NULL,
    worker TEXT NOT NULL,
    leased REAL NOT NULL,
    expires REAL NOT NULL,
    cancelled INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,
    UNIQUE (bucket, response)
);
CREATE INDEX running_by_lease ON runs (leased) WHERE NOT ended;
CREATE INDEX ended_by_expiry ON runs (expires) WHERE ended;
CREATE TABLE batches (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    last INTEGER NOT NULL,
    first INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, last)
) WITHOUT ROWID;
"""
WITHOUT_PIECES = sqlite._TABLES.replace(sqlite._PIECES, "")
EARLIER = {1: FIRST_VERSION, 2: WITHOUT_PIECES.replace(sqlite._USAGE, ""), 3: WITHOUT_PIECES, 4: sqlite._TABLES}


def run(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "antiphon.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, ttl=1000, busy_timeout=0.05)
    yield store
    await store.aclose()


async def test_record_survives_the_kill_of_its_process(path: Path) -> None:
    with run(WRITE, path, CHAIN, "resp", 1_000_000) as writer:
        assert writer.stdout is not None
        written_ids = [writer.stdout.readline().strip() for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        written_ids += writer.stdout.read().split("\n")[:-1]
    store = SQLiteStore(path, ttl=1000)

    assert len(written_ids) >= 20
    assert set(written_ids) <= set(await store.all(CHAIN))
    await store.put(CHAIN, "resp_after", b"and goes on")
    await store.aclose()


async def test_concurrent_processes_lose_nothing(path: Path) -> None:
    writers = [run(WRITE, path, CHAIN, name, 50) for name in ("one", "two", "three")]
    for writer in writers:
        writer.communicate()
    store = SQLiteStore(path, ttl=1000)

    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert set(await store.all(CHAIN)) == {
        f"{name}_{number}" for name in ("one", "two", "three") for number in range(50)
    }
    await store.aclose()


async def test_concurrent_stores_make_the_file_once(tmp_path: Path) -> None:
    for attempt in range(10):
        stores = [SQLiteStore(tmp_path / f"{attempt}.db", ttl=1000) for _ in range(6)]
        calls = [store.put(CHAIN, f"resp_{number}", b"") for number, store in enumerate(stores)]
        await asyncio.gather(*calls, *(store.get(CHAIN, "resp_0") for store in stores))

        assert set(await stores[0].all(CHAIN)) == {f"resp_{number}" for number in range(6)}
        await asyncio.gather(*(store.aclose() for store in stores))


async def test_store_waits_for_another_that_makes_the_file(path: Path) -> None:
    """For this lock SQLite itself does not wait, but fails at once."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    store = SQLiteStore(path, ttl=1000, busy_timeout=60)
    waiting = asyncio.create_task(store.put(CHAIN, "resp_1", b"1"))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    other.execute("ROLLBACK")
    other.close()

    assert not done
    await waiting
    assert await store.all(CHAIN) == {"resp_1": b"1"}
    await store.aclose()


async def test_purge_of_an_unused_store_makes_no_file(path: Path, store: SQLiteStore) -> None:
    await store.delete_expired()
    assert not path.exists()


async def test_record_in_pieces_is_as_stored(path: Path, store: SQLiteStore) -> None:
    for length in (RECORD_PIECE - 1, RECORD_PIECE, RECORD_PIECE + 1, 5 * RECORD_PIECE // 2, 10, 3 * RECORD_PIECE, 0):
        record = random.Random(length).randbytes(length)
        await store.apply(Change(CHAIN, {"resp_1": record, "resp_2": b"2" * RECORD_PIECE}))
        assert await store.get(CHAIN, "resp_1") == record
        assert await store.all(CHAIN) == {"resp_1": record, "resp_2": b"2" * RECORD_PIECE}
        assert await store.names(CHAIN) == {"resp_1", "resp_2"}
    await store.put(CHAIN, "resp_1", b"1" * 2 * RECORD_PIECE)
    await store.delete_partition(CHAIN)
    assert (await store.get(CHAIN, "resp_1"), _pieces_in(path)) == (None, 0)


async def test_record_replaced_while_it_is_read_is_one_or_the_other(path: Path, store: SQLiteStore) -> None:
    first, second = b"1" * 3 * RECORD_PIECE, b"2" * 4 * RECORD_PIECE
    await store.put(CHAIN, "resp_1", first)
    assert await store.get(CHAIN, "resp_1") == first
    loop = asyncio.get_running_loop()
    replaced = []

    def replace(cursor: object, statement: str, values: object) -> bool:
        """Replace the record when its other pieces are to be read."""
        if "FROM pieces" in statement and not replaced:
            replaced.append(statement)
            asyncio.run_coroutine_threadsafe(store.put(CHAIN, "resp_1", second), loop).result()
        return True

    await store._tables.read(lambda db: setattr(db, "exec_trace", replace))
    assert await store.get(CHAIN, "resp_1") == first
    assert (await store.get(CHAIN, "resp_1"), len(replaced)) == (second, 1)


def _pieces_in(path: Path) -> int:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        return int(db.execute("SELECT count(*) FROM pieces").fetchone()[0])


async def test_restart_keeps_records_and_their_remaining_time(path: Path) -> None:
    clock = Clock()
    before = SQLiteStore(path, ttl=1000, clock=clock)
    await before.put(CHAIN, "resp_1", b"1")
    await before.aclose()
    clock.now += 600
    after = SQLiteStore(path, ttl=1000, clock=clock)

    assert await after.delete(CHAIN, "resp_2") is False
    clock.now += 300
    assert await after.get(CHAIN, "resp_1") == b"1"
    await after.aclose()
    clock.now += 1001
    later = SQLiteStore(path, ttl=1000, clock=clock)
    assert await later.get(CHAIN, "resp_1") is None
    await later.aclose()


async def test_lock_held_for_long_is_an_outage_of_writing_only(path: Path, store: SQLiteStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable) as unavailable:
        await store.put(CHAIN, "resp_2", b"2")
    with pytest.raises(StoreUnavailable):
        await store.check()
    assert await store.all(CHAIN) == {"resp_1": b"1"}
    assert unavailable.value.__notes__ == [
        f"SQLite store {path} (writing): BusyError: database is locked",
    ]

    other.execute("ROLLBACK")
    await store.put(CHAIN, "resp_2", b"2")
    await store.check()
    assert await store.all(CHAIN) == {"resp_1": b"1", "resp_2": b"2"}
    other.close()


async def test_record_whose_bucket_cannot_be_renewed_is_read(path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(path, ttl=1000, busy_timeout=0.05, clock=clock)
    await store.put(CHAIN, "resp_1", b"1")
    clock.now += 500
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    assert await store.get(CHAIN, "resp_1") == b"1"

    other.execute("ROLLBACK")
    other.close()
    clock.now += 400
    assert await store.get(CHAIN, "resp_1") == b"1"
    clock.now += 900
    assert await store.get(CHAIN, "resp_1") == b"1"
    await store.aclose()


async def test_event_loop_goes_on_while_sqlite_waits(path: Path) -> None:
    """The blocked loop itself would release the lock."""
    store = SQLiteStore(path, ttl=1000, busy_timeout=60)
    await store.check()
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(store.put(CHAIN, "resp_1", b"1"))
    assert await store.all(CHAIN) == {}
    assert not waiting.done()
    other.execute("ROLLBACK")
    await waiting

    assert await store.all(CHAIN) == {"resp_1": b"1"}
    other.close()
    await store.aclose()


async def test_reading_writes_only_when_the_expiry_moves_by_a_hundredth(path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(path, ttl=1000, clock=clock)
    await store.put(CHAIN, "resp_1", b"1")
    other = apsw.Connection(str(path))

    def version() -> int:
        """A number that changes with others' writes."""
        return int(other.execute("PRAGMA data_version").fetchone()[0])

    before = version()
    for _ in range(9):
        clock.now += 1
        await store.get(CHAIN, "resp_1")
        await store.all(CHAIN)
    assert version() == before
    clock.now += 2
    await store.get(CHAIN, "resp_1")
    assert version() != before
    other.close()
    await store.aclose()


async def test_expired_records_are_swept_from_the_file(path: Path) -> None:
    clock = Clock()
    store = SQLiteStore(path, ttl=1000, clock=clock)
    for number in range(50):
        await store.put(f"a:{number}", "resp_1", b"1")
    clock.now += 1001
    for number in range(5):
        await store.put(f"b:{number}", "resp_1", b"1")
    await store.delete_expired()
    await store.aclose()

    other = apsw.Connection(str(path))
    assert other.execute("SELECT count(*) FROM buckets").fetchone() == (5,)
    assert other.execute("SELECT count(*) FROM records").fetchone() == (5,)
    other.close()


async def test_corrupt_file_is_an_outage_until_replaced(path: Path, store: SQLiteStore) -> None:
    path.write_bytes(b"This is not a database." * 100)

    with pytest.raises(StoreUnavailable) as unavailable:
        await store.get(CHAIN, "resp_1")
    with pytest.raises(StoreUnavailable):
        await store.put(CHAIN, "resp_1", b"1")
    assert "file is not a database" in unavailable.value.__notes__[0]

    path.unlink()
    await store.put(CHAIN, "resp_1", b"1")
    assert await store.get(CHAIN, "resp_1") == b"1"


async def test_file_that_breaks_while_in_use_is_an_outage_until_replaced(path: Path, store: SQLiteStore) -> None:
    await store.put(CHAIN, "resp_1", b"1" * 100_000)
    reader = SQLiteStore(path, ttl=1000)
    await store.aclose()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))

    with pytest.raises(StoreUnavailable):
        await reader.all(CHAIN)
    path.write_bytes(whole)
    assert await reader.all(CHAIN) == {"resp_1": b"1" * 100_000}
    await reader.aclose()


async def test_file_of_a_newer_server_is_left_alone(path: Path, store: SQLiteStore) -> None:
    newer = apsw.Connection(str(path))
    newer.execute("PRAGMA user_version = 7")
    newer.close()

    with pytest.raises(StoreUnavailable) as unavailable:
        await store.put(CHAIN, "resp_1", b"1")

    assert "the tables have version 7, and this server knows 5" in unavailable.value.__notes__[0]


async def test_path_that_cannot_be_made_is_an_outage_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, and not a directory")
    store = SQLiteStore(tmp_path / "data" / "antiphon.db", ttl=1000)
    with pytest.raises(StoreUnavailable):
        await store.check()

    (tmp_path / "data").unlink()
    await store.check()
    await store.aclose()


FILL = """
    import asyncio, resource, sys
    from app.errors import StoreUnavailable
    from app.stores.sqlite import SQLiteStore

    async def fill(path):
        store = SQLiteStore(path, ttl=1000)
        await store.put("a:1", "resp_1", b"1")
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
        try:
            await store.put("a:1", "resp_2", bytes(1_000_000))
        except StoreUnavailable:
            print("full", await store.all("a:1"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        await store.put("a:1", "resp_2", b"2")
        print("again", await store.all("a:1"))
        await store.aclose()

    asyncio.run(fill(sys.argv[1]))
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY, reason="files are limited")
def test_full_disk_is_an_outage_until_there_is_room(path: Path) -> None:
    """A file with a size limit stands for the disk."""
    output, _ = run(FILL, path).communicate()

    assert output.splitlines() == [
        "full {'resp_1': b'1'}",
        "again {'resp_1': b'1', 'resp_2': b'2'}",
    ]


async def test_outage_and_its_end_are_logged_once_each(
    path: Path, store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="app.storage")
    path.write_bytes(b"This is not a database." * 100)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.check()
    path.unlink()
    for _ in range(3):
        await store.check()

    begin, end = records_of(caplog, "app.storage")
    assert (begin.levelname, begin.getMessage()) == ("WARNING", "store unavailable")
    assert begin.reason == "NotADBError: file is not a database"  # type: ignore[attr-defined]
    assert (end.levelname, end.getMessage()) == ("INFO", "store recovered")
    assert {record.__dict__["store"] for record in (begin, end)} == {f"SQLite store {path} (writing)"}


async def test_files_can_be_read_by_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "antiphon.db"
    store = SQLiteStore.from_url(f"sqlite:///{path}", ttl=1000)
    await store.put(CHAIN, "resp_1", b"1")

    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"antiphon.db": 0o600, "antiphon.db-wal": 0o600, "antiphon.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.aclose()


async def test_url_with_three_slashes_is_relative_and_with_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///here.db", f"sqlite:///{tmp_path}/there%20too.db?synchronous=FULL&busy_timeout=0.5"):
        store = SQLiteStore.from_url(url, ttl=1000)
        await store.check()
        await store.aclose()

    assert {file.name for file in tmp_path.iterdir()} == {"here.db", "there too.db"}


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite://", "must be sqlite:///relative.db (three slashes)"),
        ("sqlite:///", "must be sqlite:///relative.db (three slashes)"),
        ("sqlite://antiphon.db", "must be sqlite:///relative.db (three slashes)"),
        ("sqlite:////var/lib/", "must be sqlite:///relative.db (three slashes)"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///a.db?timeout=1", "unknown option 'timeout'. Known options: busy_timeout, synchronous."),
        ("sqlite:///a.db?busy_timeout=-1", "'busy_timeout' is malformed: expected a positive number of seconds"),
        ("sqlite:///a.db?busy_timeout=soon", "'busy_timeout' is malformed"),
        ("sqlite:///a.db?synchronous=off", "'synchronous' is malformed: expected one of normal, full"),
    ],
)
def test_url_that_is_invalid_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError) as refused:
        SQLiteStore.from_url(url, ttl=1000)

    assert complaint in str(refused.value)


def database_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("antiphon-sqlite")]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_closing_releases_the_file_and_the_threads(path: Path) -> None:
    before = {*database_threads()}
    store = SQLiteStore(path, ttl=1000)
    await store.put("bucket", "name", b"record")
    await store.get("bucket", "name")
    started = {*database_threads()} - before
    assert len(started) == 2
    assert open_descriptors(path)
    await store.aclose()
    assert not any(thread.is_alive() for thread in started)
    assert open_descriptors(path) == []


def open_descriptors(path: Path) -> list[str]:
    """The descriptors of this process for a database and its other files."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the directory's own descriptor
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in links if link.startswith(str(path))]


@pytest.mark.parametrize("version", EARLIER)
async def test_file_of_an_earlier_version_is_migrated(path: Path, version: int) -> None:
    columns = ("", "") if version == 1 else ("padding, ", "x'00', ")
    old = apsw.Connection(str(path))
    old.execute(EARLIER[version])
    old.execute("INSERT INTO buckets VALUES (1, ?, 1e12)", (CHAIN,))
    insert = "INSERT INTO records (bucket, name, {}record) VALUES (1, ?, {}zeroblob(?))".format(*columns)
    old.execute(insert, ("resp_1", 3 * RECORD_PIECE))
    old.execute("INSERT INTO runs VALUES (1, 'a:run', 'resp_1', 'worker', 1e12, 1e12, 0, 1)")
    insert = "INSERT INTO batches (run, last, first, ends, {}data) VALUES (1, 8, 0, 1, {}x'6576')".format(*columns)
    old.execute(insert)
    old.pragma("user_version", version)
    old.close()

    stores = [SQLiteStore(path, ttl=1000) for _ in range(3)]
    assert await asyncio.gather(*(store.all(CHAIN) for store in stores)) == [{"resp_1": bytes(3 * RECORD_PIECE)}] * 3
    assert await stores[0].log(ttl=9, lease=9).read(RunKey("a:run", "resp_1"), -1) == [EventSegment(0, 8, b"ev", True)]
    await stores[1].put(CHAIN, "resp_2", b"2")
    assert (await stores[2].all(CHAIN))["resp_2"] == b"2"
    await asyncio.gather(*(store.aclose() for store in stores))
