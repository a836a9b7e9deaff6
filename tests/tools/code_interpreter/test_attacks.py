"""Each attack of the tables in `attacks.py` is refused or bounded, and the sandbox can be used afterwards."""

from __future__ import annotations

import asyncio
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from app.tools.code_interpreter.bubblewrap.process import Sandbox
from app.tools.code_interpreter.bubblewrap.watch import descendants
from tests.tools.code_interpreter.attacks import GREEDY, LINGERING, REFUSED

BETWEEN = 0.5  # seconds without a call, in which leftovers may try to run
# Rounding error in ticks of 10 ms, when processes end or the supervisor waits again. Running code gains dozens.
ROUNDING = 2


async def python(sandbox: Sandbox, code: str, timeout: float = 60) -> dict[str, Any]:  # noqa: ASYNC109
    return await sandbox.request("python", within=timeout, code=textwrap.dedent(code), timeout=timeout, limit=10_000)


async def assert_usable(sandbox: Sandbox) -> None:
    assert (await python(sandbox, "40 + 2"))["logs"] == "42\n"


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED)
async def test_attempt_to_escape_is_refused(sandbox: Sandbox, attempt: str) -> None:
    os.environ["ANTIPHON_CANARY"] = "secret"
    try:
        answer = await python(sandbox, attempt)
    finally:
        del os.environ["ANTIPHON_CANARY"]
    assert answer["ended"] == "done"
    assert answer["logs"].strip()
    assert not any(line.startswith("escaped") for line in answer["logs"].splitlines())
    await assert_usable(sandbox)


@pytest.mark.parametrize("attempt", LINGERING.values(), ids=LINGERING)
async def test_processes_left_behind_do_not_run_between_calls(frozen: Sandbox, attempt: str) -> None:
    assert (await python(frozen, f"kept = 42\n{attempt}"))["ended"] == "done"
    before = cpu_ticks(frozen)
    await asyncio.sleep(BETWEEN)
    assert cpu_ticks(frozen) - before <= ROUNDING
    answer = await python(frozen, "kept")
    assert (answer["logs"], answer["lost"]) == ("42\n", "")  # it was paused, and not ended


@pytest.mark.parametrize(("limit", "attempt"), GREEDY.values(), ids=GREEDY)
async def test_container_beyond_a_limit_is_bounded_as_a_whole(sandbox: Sandbox, limit: str, attempt: str) -> None:
    assert (await python(sandbox, attempt))["exceeded"] == limit
    await python(sandbox, "import os; os.system('rm -rf /mnt/data /tmp /dev/shm')")
    await assert_usable(sandbox)


@pytest.mark.parametrize("operation", ["python", "shell"])
async def test_code_that_closes_its_output_does_not_keep_the_supervisor_busy(sandbox: Sandbox, operation: str) -> None:
    code = "import os, time; os.close(1); os.close(2); time.sleep(1)"
    options = {"code": code} if operation == "python" else {"command": "exec >&- 2>&-; sleep 1"}
    supervisor = descendants(sandbox._process.pid)[0]
    before = ticks_of(supervisor)
    answer = await sandbox.request(operation, within=20, timeout=20, limit=1000, **options)
    assert answer["ended"] == "done"
    assert ticks_of(supervisor) - before <= 20  # ticks of 10 ms; a busy supervisor has up to 100


def cpu_ticks(sandbox: Sandbox) -> int:
    """CPU ticks of all processes in a sandbox."""
    return sum(map(ticks_of, (sandbox._process.pid, *descendants(sandbox._process.pid))))


def ticks_of(pid: int) -> int:
    """CPU ticks of a process and its ended children."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
