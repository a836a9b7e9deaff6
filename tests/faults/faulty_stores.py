"""Store locations and their failures: `harm` and `heal` them."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import apsw

from app.core.history.turns import Turn
from tests.support.postgres_server import PATIENCE as POSTGRES_PATIENCE
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import PATIENCE, RedisServer

IMPATIENT = "socket_timeout=2&socket_connect_timeout=2"


def _server() -> RedisServer:
    return RedisServer(persistent=True, options=["--repl-diskless-sync-delay", "0"])


class FaultyStore:
    """A store location and a failure."""

    url = ""
    alone = False  # Its failure needs a separate server process.
    pid = 0  # this process's id

    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        """Create the location; cleanup is registered on the stack."""
        raise NotImplementedError

    async def harm(self) -> None:
        """Let it happen."""
        raise NotImplementedError

    async def heal(self) -> None:
        """Let it be over, if it is not so by itself."""


class _Redis(FaultyStore):
    server: RedisServer

    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        self.server = stack.enter_context(_server())
        self.url = self.server.patient_url

    def _configure(self, **values: object) -> None:
        with self.server.client() as client:
            for name, value in values.items():
                client.config_set(name, str(value))


class Killed(_Redis):
    async def harm(self) -> None:
        await asyncio.to_thread(self.server.stop, signal.SIGKILL)

    async def heal(self) -> None:
        await asyncio.to_thread(self.server.start)


class Restarted(_Redis):
    async def harm(self) -> None:
        await asyncio.to_thread(self.server.restart)


class Hung(_Redis):
    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        await super().open(stack, directory)
        self.url = f"{self.server.url}?{IMPATIENT}"

    async def harm(self) -> None:
        self.server.pause()

    async def heal(self) -> None:
        self.server.resume()


class Full(_Redis):
    async def harm(self) -> None:
        self._configure(maxmemory=1)

    async def heal(self) -> None:
        self._configure(maxmemory=0)


class Slow(_Redis):
    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        await super().open(stack, directory)
        self._wire = await stack.enter_async_context(wire(self.server.port))
        self.url = f"{self._wire.url}?{PATIENCE}"

    async def harm(self) -> None:
        self._wire.delay = 0.05

    async def heal(self) -> None:
        self._wire.delay = 0.0


class Leaderless(_Redis):
    """During a failover, only a replica is reachable."""

    async def harm(self) -> None:
        with self.server.client() as client:
            client.replicaof("127.0.0.1", 1)

    async def heal(self) -> None:
        with self.server.client() as client:
            client.replicaof("NO", "ONE")


class FailedOver(Slow):
    """One address reaches the current primary; open connections stay with their server."""

    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        await super().open(stack, directory)
        self._other = stack.enter_context(_server())
        await self._follow(self._other, self.server)

    async def harm(self) -> None:
        with self.server.client() as primary:
            # Writes wait until the replica takes over, and are then refused: acknowledged writes are not lost.
            primary.execute_command("CLIENT PAUSE", 60_000, "WRITE")
            offset = primary.info("replication")["master_repl_offset"]
        await self._until(self._other, lambda info: info["slave_repl_offset"] >= offset)
        with self._other.client() as successor:
            successor.replicaof("NO", "ONE")
        self._wire.port = self._other.port
        await self._follow(self.server, self._other)
        with self.server.client() as demoted:
            demoted.execute_command("CLIENT UNPAUSE")
        self.server, self._other = self._other, self.server

    async def heal(self) -> None:
        """It is over."""

    async def _follow(self, follower: RedisServer, leader: RedisServer) -> None:
        with follower.client() as client:
            client.replicaof("127.0.0.1", leader.port)
        await self._until(follower, lambda info: info["master_link_status"] == "up")

    async def _until(self, server: RedisServer, condition: Callable[[dict[str, Any]], bool]) -> None:
        async with asyncio.timeout(60):
            with server.client() as client:
                while not condition(client.info("replication")):
                    await asyncio.sleep(0.02)


class _Postgres(FaultyStore):
    options = POSTGRES_PATIENCE

    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        self.server = await asyncio.to_thread(stack.enter_context, PostgresServer())
        self.url = f"{self.server.url}?{self.options}"


class PostgresKilled(_Postgres):
    async def harm(self) -> None:
        await asyncio.to_thread(self.server.stop, signal.SIGQUIT)

    async def heal(self) -> None:
        await asyncio.to_thread(self.server.start)


class PostgresRestarted(_Postgres):
    async def harm(self) -> None:
        await asyncio.to_thread(self.server.restart)


class PostgresHung(_Postgres):
    options = "timeout=2&connect_timeout=2"

    async def harm(self) -> None:
        self.server.pause()

    async def heal(self) -> None:
        self.server.resume()


class _SQLite(FaultyStore):
    options = ""

    async def open(self, stack: AsyncExitStack, directory: Path) -> None:
        self.path = directory / "antiphon.db"
        self.url = f"sqlite:///{self.path}{self.options}"


class Locked(_SQLite):
    options = "?busy_timeout=0.1"

    async def harm(self) -> None:
        self._other = apsw.Connection(str(self.path))
        self._other.execute("BEGIN EXCLUSIVE")

    async def heal(self) -> None:
        self._other.close()


class LockedForAMoment(Locked):
    options = "?busy_timeout=60"

    async def harm(self) -> None:
        await super().harm()
        asyncio.get_running_loop().call_later(0.5, self._other.close)


class DiskFull(_SQLite):
    """No file may grow beyond a page, like on a full disk."""

    alone = True

    async def harm(self) -> None:
        _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (4096, most))

    async def heal(self) -> None:
        _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most, most))


def kept(directory: Path) -> list[dict[str, Any]]:
    """Return stored responses by id."""
    if not (directory / "antiphon.db").exists():
        return []
    db = apsw.Connection(str(directory / "antiphon.db"))
    rows = db.execute("SELECT bucket, name, record FROM records WHERE name LIKE 'resp%' ORDER BY name").fetchall()
    more = "SELECT piece FROM pieces WHERE bucket = ? AND name = ? ORDER BY number"
    records = [record + b"".join(piece for (piece,) in db.execute(more, row)) for *row, record in rows]
    db.close()
    return [Turn.of(record).response for record in records]


class Wire:
    """A forwarding port: each read is passed on `delay` seconds late."""

    def __init__(self, port: int) -> None:
        self.port = port  # where new connections lead
        self.delay = 0.0
        self.url = ""
        self._piping: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        for pipe in (self._pipe(reader, back), self._pipe(there, writer)):
            self._piping.add(asyncio.create_task(pipe))

    async def aclose(self) -> None:
        for task in self._piping:
            task.cancel()
        await asyncio.gather(*self._piping, return_exceptions=True)

    async def _pipe(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await asyncio.sleep(self.delay)
                target.write(data)
        finally:
            target.close()


@contextlib.asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    """A wire to a Redis server."""
    wire = Wire(port)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
    wire.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        await wire.aclose()
