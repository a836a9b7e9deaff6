"""Run a client's program to its end, and see what it says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
PACKAGES = HERE / "node_modules"
ENVIRONMENTS = HERE.parent.parent / ".venv-clients"
SCENARIOS = HERE / "drive"


class Ended(NamedTuple):
    """A program that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """What it said, as one JSON document for each line."""
        return [json.loads(line) for line in self.out.splitlines()]


def installed(package: str) -> Path:
    """Return where a package is installed; a client that cannot be run is a failure, never a test that is left out."""
    if not (PACKAGES / package).is_dir():
        pytest.fail(f"The package {package} is not installed. Run `make test-clients`.")
    return PACKAGES / package


def interpreter(environment: str) -> Path:
    """Return the directory of programs of one of the environments that are made of `requirements/`."""
    programs = ENVIRONMENTS / environment / "bin"
    if not (programs / "python").exists():
        pytest.fail(f"There is no environment {environment}. Run `make test-clients`.")
    return programs


async def node(driver: Path, package: str, *arguments: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run a driver, a script for Node, of a package that has to be installed."""
    installed(package)
    return await run("node", str(driver), *arguments, env=env, cwd=cwd)


async def python(driver: Path, environment: str, *arguments: str, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run a driver, a script for the Python of an environment."""
    program = interpreter(environment) / "python"
    return await run(str(program), str(driver), *arguments, env={"PYTHONPATH": str(SCENARIOS), **env}, cwd=cwd)


async def run(*command: str, env: Mapping[str, str], cwd: Path, patience: float = 120) -> Ended:
    """
    Run a program that is not asked anything, and knows nothing of this machine but its PATH, where Node comes first.

    It is ended, with all that it has started, after `patience` seconds, as a failure.
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
    """Run a program as `run` does, in a group of its own; it is ended, with all that it has started, at the end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={"PATH": f"{ENVIRONMENTS / 'node' / 'bin'}:{os.environ['PATH']}", "HOME": str(cwd), **env},
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
