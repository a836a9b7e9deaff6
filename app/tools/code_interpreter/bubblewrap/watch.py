"""
Watches sandboxes, in a thread: what a container takes of memory as a whole, and that its code runs only during calls.

The sandbox has limits of its own (rlimits, sizes of its file systems, a filter of system calls), which hold for each
process or folder. Only the whole of it is measured here, from outside, where its code has no influence.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

BUSY_INTERVAL = 0.1  # seconds between two looks at a sandbox during a call
IDLE_INTERVAL = 1.0  # and otherwise
FILE_BYTES = 1536  # of kernel memory, for a file or folder of any size
MAX_SOCKETS = 512  # open in a sandbox: the kernel may hold some hundred kilobytes for each
TRIES = 3  # times in a row that the code is killed, before the sandbox is ended
FOLDERS = ("tmp", "mnt/data", "dev/shm")  # the file systems that code can write to


@dataclass(eq=False, slots=True)
class Watched:
    """A sandbox that is watched."""

    memory: int  # the limit, in bytes
    files: int  # the most files and folders
    root: int  # the process that all others descend from
    supervisor: int  # its child, which runs no code
    calls: int = 0  # begun so far
    busy: bool = False  # whether a call is running
    ended: bool = False  # whether it is watched no more
    exceeded: str = ""  # the limit for which code of the running or latest call was killed: memory, files, sockets
    last_files: int = 0  # how many there were at the latest look
    kills: int = 0  # looks in a row at which the code was killed
    due: float = 0.0  # when to look next


class Watch:
    """A thread that looks at sandboxes, and kills the code of those that exceed a limit. Their files remain."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def add(self, sandbox: Watched) -> None:
        """Begin to watch a sandbox."""
        with self._lock:
            self._watched.add(sandbox)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox-watch", daemon=True)
                self._thread.start()
            self._wake.notify()

    def discard(self, sandbox: Watched) -> None:
        """Watch it no more."""
        with self._lock:
            sandbox.ended = True
            self._watched.discard(sandbox)
            self._wake.notify()

    @contextlib.contextmanager
    def call(self, sandbox: Watched) -> Iterator[None]:
        """Let its code run meanwhile."""
        with self._lock:
            sandbox.calls += 1
            sandbox.busy, sandbox.exceeded = True, ""
            sandbox.due = time.monotonic() + BUSY_INTERVAL
            self._wake.notify()
        try:
            yield
        finally:
            with self._lock:
                sandbox.busy = False

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                now = time.monotonic()
                due = [sandbox for sandbox in self._watched if sandbox.due <= now]
                if not due:
                    self._wake.wait(min(sandbox.due for sandbox in self._watched) - now)
                    continue
            for sandbox in due:
                try:
                    look(sandbox)
                except Exception:
                    logger.exception("a sandbox could not be watched")
                often = sandbox.busy or sandbox.kills
                sandbox.due = time.monotonic() + (BUSY_INTERVAL if often else IDLE_INTERVAL)


def look(sandbox: Watched) -> None:
    """Look at a sandbox once, and kill its code if it exceeds a limit, or runs between calls."""
    calls, idle = sandbox.calls, not sandbox.busy
    pids = code_processes(sandbox)
    exceeded = exceeded_limit(sandbox, pids)
    restless = idle and any(map(runs, pids)) and sandbox.calls == calls
    if sandbox.ended or not (exceeded or restless):
        sandbox.kills = 0
        return
    sandbox.exceeded = sandbox.exceeded or exceeded
    sandbox.kills += 1
    if sandbox.kills > TRIES:
        logger.warning("a container whose code could not be stopped was ended")
        kill((sandbox.root, *descendants(sandbox.root)))
        return
    if not exceeded:
        logger.warning("code in a container ran between calls, and was ended")
    kill(code_processes(sandbox))


def code_processes(sandbox: Watched) -> Sequence[int]:
    """Return the processes that run code."""
    return [pid for pid in descendants(sandbox.root) if pid != sandbox.supervisor]


def exceeded_limit(sandbox: Watched, pids: Sequence[int]) -> str:
    """Return the limit that a sandbox exceeds, or an empty string."""
    if sum(map(resident_bytes, pids)) > sandbox.memory:
        return "memory"
    with contextlib.suppress(OSError, ValueError):  # it has ended
        before, sandbox.last_files = sandbox.last_files, count_files(sandbox.supervisor)
        # Code may delete files until there are few enough.
        if sandbox.last_files > max(sandbox.files, before):
            return "files"
        sockets = Path(f"/proc/{sandbox.supervisor}/net/sockstat").read_text().splitlines()[0]
        if int(sockets.split()[-1]) > MAX_SOCKETS:
            return "sockets"
    return ""


def count_files(pid: int) -> int:
    """Return how many files and folders there are in a sandbox, given one of its processes; raises `OSError`."""
    counts = [os.statvfs(f"/proc/{pid}/root/{folder}") for folder in FOLDERS]
    return sum(count.f_files - count.f_ffree for count in counts)


def kill(pids: Sequence[int]) -> None:
    """Kill processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> Sequence[int]:
    """Return the ids of all descendant processes, nearest first."""
    pids: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{parent}/task/{task}/children").read_text().split()
                pids += map(int, children)
                queue += map(int, children)
    return pids


def resident_bytes(pid: int) -> int:
    """Return the anonymous and shared resident memory of a process, in bytes; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(sizes) * 1024


def runs(pid: int) -> bool:
    """Whether a thread of a process runs: has neither stopped nor ended, and does not wait uninterruptibly."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "TtZXD":
                    return True
    return False
