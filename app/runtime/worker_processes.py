"""
Run parsers of untrusted documents in worker processes, which, unlike threads, can be killed.

    calls = IsolatedCalls(3, seconds=15, memory=1024**3)
    text = await calls.run(owner, read_document, data)
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
from anyio import to_process

T = TypeVar("T")

MAX_OUTPUT = 2 * 1024**3  # file size in bytes


class IsolatedCallFailed(Exception):
    """The call did not return: it `takes too long to read`, or its process died, most likely at the memory limit."""


class FairSemaphore:
    """Serves waiting owners in turn; a single owner never holds all of several slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: Counter[str] = Counter()  # by owner
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by owner, next in turn first

    @asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        await self._acquire(owner)
        try:
            yield
        finally:
            self._release(owner)

    def _has_slot_for(self, owner: str) -> bool:
        return self._held.total() < self._slots and self._held[owner] < max(1, self._slots - 1)

    async def _acquire(self, owner: str) -> None:
        if owner not in self._waiting and self._has_slot_for(owner):
            self._held[owner] += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._give()  # also removes the future
            else:
                self._release(owner)
            raise

    def _release(self, owner: str) -> None:
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._give()

    def _give(self) -> None:
        """Grant free slots; an owner with a new slot moves to the end."""
        for owner in [*self._waiting]:
            futures = self._waiting[owner]
            while futures and futures[0].done():  # cancelled
                futures.popleft()
            if futures and self._has_slot_for(owner):
                self._held[owner] += 1
                futures.popleft().set_result(None)
                self._waiting[owner] = self._waiting.pop(owner)
            if not futures:
                del self._waiting[owner]


class IsolatedCalls:
    """Calls functions in at most `slots` worker processes at once, fairly between owners."""

    def __init__(self, slots: int, *, seconds: float, memory: int) -> None:
        """`seconds` is the time limit per call, without the start of a process; `memory` the address space in bytes."""
        self._slots, self._seconds, self._memory = slots, seconds, memory
        self._turns = FairSemaphore(slots)
        self._limiter: anyio.CapacityLimiter | None = None  # anyio's default limit is the number of CPUs

    async def run(self, owner: str, function: Callable[..., T], *args: object) -> T:
        """
        Call a module-level function in a worker process; return its result.

        Raises `IsolatedCallFailed`, and the function's exceptions. Cancellation kills the call.
        """
        async with self._turns.slot(owner):
            self._limiter = self._limiter or anyio.CapacityLimiter(self._slots)
            try:
                with anyio.CancelScope(shield=True):  # anyio leaves a process that is cancelled while it starts
                    await to_process.run_sync(os.getpid, limiter=self._limiter)
                with anyio.fail_after(self._seconds):
                    return await to_process.run_sync(
                        _run_limited,
                        self._seconds,
                        self._memory,
                        function,
                        *args,
                        cancellable=True,
                        limiter=self._limiter,
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
