"""
A real PostgreSQL for the tests: one server for the session (`postgres_server`), and private ones to stop and restart.

The executables are those of the PATH, of Debian's or Homebrew's packages, or of the PyPI package `pgserver`. Without
any the tests fail: a store that was not tested is not known to work. Those that have pgvector come first.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from glob import glob
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.server_process import ServerProcess

PATIENCE = "timeout=60&connect_timeout=60"  # options of a store's URL
_PLACES = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin")


@cache
def find_executables() -> Path:
    """Return the folder that has the executables; fail the test if there is none."""
    folders = [Path(found).resolve().parent for found in [shutil.which("initdb")] if found]
    folders += [Path(folder) for place in _PLACES for folder in sorted(glob(place), reverse=True)]
    package = importlib.util.find_spec("pgserver")  # which is not imported: it would begin a server of its own
    folders += [Path(folder) / "pginstall" / "bin" for folder in (package and package.submodule_search_locations) or []]
    complete = [
        folder
        for folder in folders
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres", "psql"))
    ]
    for folder in [*filter(has_pgvector, complete), *complete]:
        return folder
    pytest.fail(
        "The tests need PostgreSQL. Install it (`apt install postgresql`, `brew install postgresql`), or the package "
        "`pgserver` (part of the `test` extra), which brings it.",
        pytrace=False,
    )


@cache
def has_pgvector(folder: Path) -> bool:
    """Tell whether the installation with these executables has the extension `vector`."""
    shared = subprocess.run([folder / "pg_config", "--sharedir"], capture_output=True, text=True).stdout.strip()
    return (Path(shared) / "extension" / "vector.control").exists()


@cache
def _user() -> str | None:
    """Return the user that a server runs as, where it cannot be this one: PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _children(process: int) -> list[int]:
    """Return the processes that a process has begun."""
    if Path("/proc/self/stat").exists():
        statuses = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has just gone
                statuses.append((file.parent.name, file.read_text().rpartition(")")[2].split()[1]))
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        statuses = [(line.split()[0], line.split()[1]) for line in listed.splitlines()]
    return [int(child) for child, parent in statuses if int(parent) == process]


class PostgresServer(ServerProcess):
    """
    A private server with a database `antiphon`, in a directory of its own.

    What it has been told is committed survives `stop`, whichever way, but no power cut.
    """

    name, stopping, killing = "postgres", signal.SIGINT, signal.SIGQUIT
    slow_options = PATIENCE

    def __init__(self) -> None:
        self.port = free_port()
        super().__init__()

    @property
    def url(self) -> str:
        return f"postgresql://antiphon@127.0.0.1:{self.port}/antiphon"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        if not (self._directory / "data").exists():
            self._make()
        command = [find_executables() / "postgres", "-D", self._directory / "data", "-p", str(self.port)]
        if not self._launch(command, user=_user()):
            self._not_started()

    def answers(self) -> bool:
        """Tell whether the server answers a query."""
        return self._run("psql", "-qAtc", "SELECT 1", check=False).returncode == 0

    def sql(self, query: str) -> str:
        """Run a query from outside; return what `psql` prints, a line for each row."""
        return self._run("psql", "-qAtc", query).stdout

    def clear(self) -> None:
        """Forget all that a store has there; what a cancelled call has left behind is ended first."""
        left = "application_name = 'antiphon' AND state <> 'idle'"
        ours = "tablename LIKE 'antiphon%' AND tablename NOT LIKE '%schema'"
        tables = f"SELECT 'TRUNCATE ' || string_agg(tablename, ', ') FROM pg_tables WHERE {ours}"
        self.sql(f"""DO $$ BEGIN
            PERFORM pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {left};
            EXECUTE coalesce(({tables}), 'SELECT 1');
        END $$""")

    def _make(self) -> None:
        if user := _user():
            shutil.chown(self._directory, user)
        self._run("initdb", "-D", "data", "-U", "antiphon", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        with (self._directory / "data" / "postgresql.conf").open("a") as settings:
            settings.write(
                f"listen_addresses = '127.0.0.1'\nunix_socket_directories = '{self._directory}'\n"
                "fsync = off\nfull_page_writes = off\nshared_buffers = 32MB\nmax_connections = 200\n"
            )
        single = ["--single", "-D", "data", "postgres"]
        self._run("postgres", *single, input="CREATE DATABASE antiphon\n")

    def _run(self, name: str, *arguments: str, input: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self._directory)}
        if name == "psql":
            arguments = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "antiphon", "-d", "antiphon", *arguments)
        done = subprocess.run(
            [find_executables() / name, *arguments],
            cwd=self._directory,
            env=environment,
            user=_user(),
            input=input,
            capture_output=True,
            text=True,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def _signal(self, how: signal.Signals) -> None:
        """Send a signal to the server and to its children, which serve the connections."""
        assert self._process is not None
        for process in (self._process.pid, *_children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):  # it has just gone
                os.kill(process, how)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server for all tests of the session: use names of your own, and do not stop it."""
    with PostgresServer() as server:
        yield server
