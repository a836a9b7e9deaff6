"""Servers in processes of their own: they can be stopped, started again where they were, and looked at from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Self

from tests.bench.cost import cpu, memory
from tests.support import fork_server
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
READY = 120.0  # seconds to start
ENDED = 120.0  # seconds to end

KEY = "a key that all replicas share"


class Program:
    """A module on a given port: `python -m module --port 9100`."""

    def __init__(self, module: str, log: IO[bytes] | int = subprocess.DEVNULL) -> None:
        self.port = free_port()
        self._command = [sys.executable, "-m", module, "--port", str(self.port)]
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        self._environment["ANTIPHON_USAGE_JOURNAL"] = "off"  # tests clear the stores of killed servers
        self._log = log
        self._process: fork_server.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start, and return when it accepts connections."""
        self._process = self._started()
        async with asyncio.timeout(READY):
            while True:
                assert self._process.poll() is None, "the server does not start"
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.05)

    def _started(self) -> fork_server.Process:
        return subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Tell it to end, and return when it has ended."""
        if self._process is None:
            return
        self._process.send_signal(how)
        async with asyncio.timeout(ENDED):
            while self._process.poll() is None:
                await asyncio.sleep(0.02)
        self._process = None

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process is None:
            return
        self._process.terminate()  # its workers end with it only if it can tell them
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


class Replica(Program):
    """An `antiphon serve`; `settings` are by field name. A `forked` process starts with less work."""

    def __init__(
        self, settings: dict[str, object], log: IO[bytes] | int = subprocess.DEVNULL, *, forked: bool = False
    ) -> None:
        super().__init__("app", log)
        self._forked = forked
        self._command.insert(3, "serve")
        given = {"log_level": "warning", "secret_key": KEY, **settings}
        self._environment |= {f"ANTIPHON_{name.upper()}": str(value) for name, value in given.items()}

    def _started(self) -> fork_server.Process:
        if not self._forked:
            return super()._started()
        arguments, log = self._command[3:], self._log
        return fork_server.start(*arguments, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    # Usage, from Linux's /proc; elsewhere 0 and empty.

    @property
    def pids(self) -> list[int]:
        """The serving processes: its workers, or itself."""
        assert self._process
        return [pid for pid in _children(self._process.pid) if b"spawn_main" in _command(pid)] or [self._process.pid]

    @property
    def cpu(self) -> float:
        """CPU seconds used by the processes."""
        return sum(map(cpu, self.pids))

    @property
    def memory(self) -> float:
        """Bytes in use by the processes; shared memory is counted per process."""
        return sum(map(memory, self.pids))

    @property
    def files(self) -> list[int]:
        """Open files and sockets per process."""
        return [files(pid) for pid in self.pids]


def files(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@contextlib.asynccontextmanager
async def replicas(
    number: int, log: IO[bytes] | int = subprocess.DEVNULL, *, forked: bool = False, **settings: object
) -> AsyncIterator[list[Replica]]:
    """Run `count` servers with the same settings."""
    with contextlib.ExitStack() as stack:
        servers = [Replica(settings, log, forked=forked) for _ in range(number)]
        for server in servers:
            stack.callback(server.end)
        await asyncio.gather(*(server.start() for server in servers))
        yield servers


@contextlib.contextmanager
def shown_if_it_fails(log: IO[bytes]) -> Iterator[None]:
    """Print servers' logs if the block fails."""
    try:
        yield
    except BaseException:
        log.seek(0)
        sys.stderr.buffer.write(log.read())
        raise
