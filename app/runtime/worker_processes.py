"""
Run parsers of untrusted documents in worker processes, which, unlike threads, can be killed.

    calls = IsolatedCalls(3, seconds=15, memory=1024**3)
    text = await calls.run(owner, read_document, data)
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import to_process

T = TypeVar("T")

MAX_OUTPUT = 2 * 1024**3  # file size in bytes


class IsolatedCallFailed(Exception):
    """The call did not return: it `takes too long to read`, or its process died, most likely at the memory limit."""


class IsolatedCalls:
    """
    Calls functions in at most `slots` worker processes at once, first come, first served.

    At most `max(1, slots - 1)` calls per owner hold or await a slot. An owner's further calls do not delay others.
    """

    def __init__(self, slots: int, *, seconds: float, memory: int) -> None:
        """`seconds` is the time limit per call, without the start of a process; `memory` the address space in bytes."""
        self._seconds, self._memory = seconds, memory
        self._slots = asyncio.Semaphore(slots)
        self._slots_per_owner = max(1, slots - 1)
        self._owners: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        slots_of_owner = self._owners.setdefault(owner, asyncio.Semaphore(self._slots_per_owner))
        async with slots_of_owner, self._slots:
            yield

    async def run(self, owner: str, function: Callable[..., T], *args: object) -> T:
        """
        Call a module-level function in a worker process; return its result.

        Raises `IsolatedCallFailed`, and the function's exceptions. Cancellation kills the call.
        """
        async with self.slot(owner):
            limiter = anyio.CapacityLimiter(1)  # anyio's default limit is the number of CPUs
            try:
                with anyio.CancelScope(shield=True):  # anyio leaves a process that is cancelled while it starts
                    await to_process.run_sync(os.getpid, limiter=limiter)
                with anyio.fail_after(self._seconds):
                    return await to_process.run_sync(
                        _run_limited,
                        self._seconds,
                        self._memory,
                        function,
                        *args,
                        cancellable=True,
                        limiter=limiter,
                    )
            except TimeoutError:
                raise IsolatedCallFailed("takes too long to read") from None
            except (MemoryError, anyio.BrokenWorkerProcess):
                raise IsolatedCallFailed("takes too much memory to read") from None


def _run_limited(seconds: float, memory: int, function: Callable[..., T], *args: object) -> T:
    _limit_this_process(seconds, memory)
    return function(*args)


def _limit_this_process(seconds: float, memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal; the server ends this process
    try:
        import resource
    except ImportError:  # on Windows
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    # A backstop for a dead server: a running server kills the process earlier.
    cpu = int(usage.ru_utime + usage.ru_stime + seconds) + 2
    for limit, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, cpu), (resource.RLIMIT_FSIZE, MAX_OUTPUT)):
        _, hard = resource.getrlimit(limit)
        with suppress(ValueError, OSError):
            resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    with suppress(OSError):
        os.nice(max(0, 5 - os.nice(0)))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # without free memory, the system kills this process, not the server
