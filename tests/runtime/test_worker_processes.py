"""Calls in separate processes: limits and queueing."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from app.runtime.worker_processes import IsolatedCallFailed, IsolatedCalls

GIB = 1024**3


def isolated(slots: int = 2, *, seconds: float = 60) -> IsolatedCalls:
    return IsolatedCalls(slots, seconds=seconds, memory=GIB)


def runs(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def report_and_block(pipe: str) -> None:
    """Write this process's id, and compute for hours; no signal but SIGKILL is noticed meanwhile."""
    Path(pipe).write_text(str(os.getpid()))
    (b"\xe9-" + b"a" * 20_000_000).decode("punycode", "replace")


async def test_call_returns_its_result_and_raises_its_errors() -> None:
    calls = isolated()
    assert await calls.run("ada", os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        await calls.run("ada", divmod, 1, 0)


async def test_call_that_takes_too_long_is_ended() -> None:
    with pytest.raises(IsolatedCallFailed, match="too long"):
        await isolated(seconds=0.5).run("ada", time.sleep, 3600)


def children() -> set[str]:
    """The ids of processes that the main thread started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.05, 0.1])
async def test_call_that_takes_too_long_while_its_process_starts_leaves_no_other(seconds: float) -> None:
    before = children()
    with pytest.raises(IsolatedCallFailed, match="too long"):
        await isolated(seconds=seconds).run("ada", time.sleep, 3600)
    # If the call was not yet sent, the process is idle, and serves the next call.
    process = await isolated().run("ada", os.getpid)
    assert children() - before == {str(process)}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_cancelled_call_ends_its_process(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pid")
    call = asyncio.create_task(isolated().run("ada", report_and_block, str(pipe)))
    pid = int(await asyncio.to_thread(pipe.read_text))
    assert runs(pid)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while runs(pid):
        await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit the address space")
async def test_call_that_takes_too_much_memory_ends_without_the_server() -> None:
    calls = isolated()
    with pytest.raises(IsolatedCallFailed, match="memory"):
        await calls.run("ada", bytes, 2 * GIB)
    assert await calls.run("ada", len, "abc") == 3


async def test_call_whose_process_dies_is_reported() -> None:
    calls = isolated()
    with pytest.raises(IsolatedCallFailed, match="memory"):
        await calls.run("ada", os._exit, 3)
    assert await calls.run("ada", len, "abc") == 3


class Calls:
    """Calls that hold a slot until ended; `began` lists the calls with a slot, in order."""

    def __init__(self, slots: int) -> None:
        self._calls = isolated(slots)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self.began: list[str] = []

    async def begin(self, *names: str) -> None:
        """Begin calls; the owner is the name's first letter."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name))
        await settled()

    async def _call(self, name: str) -> None:
        async with self._calls.slot(name[0]):
            self.began.append(name)
            await self._ends[name].wait()

    def end(self, name: str) -> None:
        self._ends[name].set()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_owner_leaves_a_slot_to_others() -> None:
    calls = Calls(3)
    await calls.begin("a1", "a2", "a3", "b1", "b2")
    assert calls.began == ["a1", "a2", "b1"]
    calls.end("a1")
    await settled()
    assert calls.began == ["a1", "a2", "b1", "b2"]


async def test_owners_take_turns() -> None:
    calls = Calls(1)
    await calls.begin("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    for _ in range(7):
        calls.end(calls.began[-1])
        await settled()
    assert calls.began == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


async def test_slot_of_a_cancelled_call_goes_to_the_next() -> None:
    calls = Calls(1)
    await calls.begin("a1", "a2", "b1")
    calls.cancel("a2")
    await settled()
    calls.end("a1")
    await settled()
    assert calls.began == ["a1", "b1"]


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_slot_given_to_a_call_that_is_cancelled_is_free_again(cancelled_first: bool) -> None:
    calls = Calls(1)
    await calls.begin("a1", "b1")
    if cancelled_first:
        calls.cancel("b1")
        calls.end("a1")
    else:
        calls.end("a1")
        await asyncio.sleep(0)  # the call ends, and gives its slot to the other, which has not noticed yet
        calls.cancel("b1")
    await settled()
    await calls.begin("c1")
    assert calls.began == ["a1", "c1"]
