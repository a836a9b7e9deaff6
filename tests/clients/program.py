"""Run a client program to its end, and read its output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
PACKAGES = HERE / "node_modules"
ENVIRONMENTS = HERE.parent.parent / ".venv-clients"
SCENARIOS = HERE / "drive"


class Ended(NamedTuple):
    """A finished program."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output as a JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines()]


def installed(package: str) -> Path:
    """Return the folder of an installed package. A missing client is a failure, never a skipped test."""
    if not (PACKAGES / package).is_dir():
        pytest.fail(f"The package {package} is not installed. Run `make test-clients`.")
    return PACKAGES / package


def interpreter(environment: str) -> Path:
    """Return the `bin` directory of an environment in `requirements/`."""
    programs = ENVIRONMENTS / environment / "bin"
    if not (programs / "python").exists():
        pytest.fail(f"There is no environment {environment}. Run `make test-clients`.")
    return programs


async def node(driver: Path, package: str, *arguments: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run a Node.js driver for an installed package."""
    installed(package)
    return await run("node", str(driver), *arguments, env=env, cwd=cwd)


async def python(driver: Path, environment: str, *arguments: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run a driver with an environment's Python."""
    idle = _idle[driver, environment]
    forking = idle.pop() if idle else Forking(driver, environment, env)
    try:
        ended = await forking.run(*arguments, env=env, cwd=cwd)
    except BaseException:
        forking.close()
        raise
    idle.append(forking)
    return ended


class Forking:
    """Runs a driver in processes with warm imports: see `drive/forking.py`."""

    def __init__(self, driver: Path, environment: str, env: Mapping[str, str]) -> None:
        """`env` is the environment for imports."""
        self._child: int | None = None  # the running driver
        self._home = TemporaryDirectory()
        self._process = subprocess.Popen(
            [str(interpreter(environment) / "python"), str(SCENARIOS / "forking.py"), str(driver)],
            cwd=self._home.name,
            env=_environment(Path(self._home.name), {"PYTHONPATH": str(SCENARIOS), **env}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def run(self, *arguments: str, env: Mapping[str, str], cwd: Path, patience: float = 120) -> Ended:
        """Run the driver as `run` runs a program."""
        out, err = (Path(self._home.name, name) for name in ("out", "err"))
        request = {
            "arguments": arguments,
            "env": _environment(cwd, {"PYTHONPATH": str(SCENARIOS), **env}),
            "cwd": str(cwd),
            "out": str(out),
            "err": str(err),
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self._child = await self._answer()
        try:
            async with asyncio.timeout(patience):
                code = await self._answer()
        except TimeoutError:
            pytest.fail(f"The driver did not end within {patience} seconds.")
        self._child = None
        return Ended(code, out.read_text(), err.read_text())

    async def _answer(self) -> int:
        assert self._process.stdout
        line = await asyncio.to_thread(self._process.stdout.readline)
        if not line:
            pytest.fail("The packages of the driver cannot be imported.")
        return int(line)

    def close(self) -> None:
        """Kill the process and its children, skipping exit hooks of its packages."""
        if self._child:
            os.killpg(self._child, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
        self._home.cleanup()


_idle: defaultdict[tuple[Path, str], list[Forking]] = defaultdict(list)  # by driver and environment


def end_drivers() -> None:
    """Stop driver processes."""
    for forking in chain(*_idle.values()):
        forking.close()
    _idle.clear()


async def run(*command: str, env: Mapping[str, str], cwd: Path, patience: float = 120) -> Ended:
    """
    Run a program without input; its only link to this machine is the PATH, with Node.js first.

    After `patience` seconds, it fails and is killed with its children.
    """
    async with running(*command, env=env, cwd=cwd) as process:
        try:
            async with asyncio.timeout(patience):
                out, err = await process.communicate()
        except TimeoutError:
            pytest.fail(f"{command[0]} did not end within {patience} seconds.")
    return Ended(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def running(*command: str, env: Mapping[str, str], cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program like `run`, in a new process group; it is killed with its children at the end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=_environment(cwd, env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _environment(home: Path, env: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": f"{ENVIRONMENTS / 'node' / 'bin'}:{os.environ['PATH']}",
        "HOME": str(home),
        "NODE_COMPILE_CACHE": str(ENVIRONMENTS / "node" / "compiled"),
        **env,
    }
