"""
Monitors sandboxes in a thread: their total memory, and that code runs only during calls.

The sandbox's own limits (rlimits, file system sizes, seccomp) apply per process or folder.
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

BUSY_INTERVAL = 0.1  # seconds between checks during a call
IDLE_INTERVAL = 1.0  # seconds between checks otherwise
FILE_BYTES = 1536  # kernel memory per file or folder, in addition to its content
MAX_SOCKETS = 512  # the kernel may hold several hundred kilobytes for each
MAX_KILLS = 3  # consecutive kills before the sandbox is ended
FOLDERS = ("tmp", "mnt/data", "dev/shm")


@dataclass(eq=False, slots=True)
class MonitoredSandbox:
    memory: int  # bytes
    files: int  # limit, including folders
    root: int  # all other processes' ancestor
    supervisor: int = 0  # child of `root`; runs no code
    calls: int = 0
    busy: bool = False
    ended: bool = False
    exceeded: str = ""  # limit for which the latest call's code was killed: memory, files, sockets
    last_files: int = 0  # at the previous check
    kills: int = 0  # consecutive checks with a kill
    due: float = 0.0  # monotonic time


class SandboxMonitor:
    """Kills code that exceeds a limit. Files are retained."""

    def __init__(self) -> None:
        self._monitored: set[MonitoredSandbox] = set()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, sandbox: MonitoredSandbox) -> None:
        with self._wake:
            self._monitored.add(sandbox)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox-watch", daemon=True)
                self._thread.start()
            self._wake.notify()

    def discard(self, sandbox: MonitoredSandbox) -> None:
        with self._wake:
            sandbox.ended = True
            self._monitored.discard(sandbox)
            self._wake.notify()

    @contextlib.contextmanager
    def call(self, sandbox: MonitoredSandbox) -> Iterator[None]:
        """Let code run within this context."""
        with self._wake:
            sandbox.calls += 1
            sandbox.busy, sandbox.exceeded = True, ""
            sandbox.due = time.monotonic() + BUSY_INTERVAL
            self._wake.notify()
        try:
            yield
        finally:
            with self._wake:
                sandbox.busy = False

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._monitored:
                    self._thread = None
                    return
                now = time.monotonic()
                due = [sandbox for sandbox in self._monitored if sandbox.due <= now]
                if not due:
                    self._wake.wait(min(sandbox.due for sandbox in self._monitored) - now)
                    continue
            for sandbox in due:
                try:
                    poll(sandbox)
                except Exception:
                    logger.exception("sandbox monitoring failed")
                often = sandbox.busy or sandbox.kills
                sandbox.due = time.monotonic() + (BUSY_INTERVAL if often else IDLE_INTERVAL)


def poll(sandbox: MonitoredSandbox) -> None:
    """Kill a sandbox's code if it exceeds a limit or runs between calls."""
    calls, idle = sandbox.calls, not sandbox.busy
    pids = code_processes(sandbox)
    exceeded = exceeded_limit(sandbox, pids)
    not_frozen = idle and any(map(is_running, pids)) and sandbox.calls == calls
    if sandbox.ended or not (exceeded or not_frozen):
        sandbox.kills = 0
        return
    sandbox.exceeded = sandbox.exceeded or exceeded
    sandbox.kills += 1
    if sandbox.kills > MAX_KILLS:
        logger.warning("container killed: its code could not be stopped")
        kill((sandbox.root, *descendants(sandbox.root)))
        return
    if not exceeded:
        logger.warning("container code killed: it ran between calls")
    kill(code_processes(sandbox))


def code_processes(sandbox: MonitoredSandbox) -> Sequence[int]:
    return [pid for pid in descendants(sandbox.root) if pid != sandbox.supervisor]


def exceeded_limit(sandbox: MonitoredSandbox, pids: Sequence[int]) -> str:
    if sum(map(resident_bytes, pids)) > sandbox.memory:
        return "memory"
    with contextlib.suppress(OSError, ValueError):  # the sandbox has ended
        before, sandbox.last_files = sandbox.last_files, count_files(sandbox.supervisor)
        # Code may delete files until it is below the limit.
        if sandbox.last_files > max(sandbox.files, before):
            return "files"
        sockets = Path(f"/proc/{sandbox.supervisor}/net/sockstat").read_text().splitlines()[0]
        if int(sockets.split()[-1]) > MAX_SOCKETS:
            return "sockets"
    return ""


def count_files(pid: int) -> int:
    """Files and folders in the sandbox of any of its processes; raises `OSError`."""
    counts = [os.statvfs(f"/proc/{pid}/root/{folder}") for folder in FOLDERS]
    return sum(count.f_files - count.f_ffree for count in counts)


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> Sequence[int]:
    """Process ids, nearest first."""
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
    """Anonymous and shared memory; 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(sizes) * 1024


def is_running(pid: int) -> bool:
    """Ignores threads that are stopped, ended, or in uninterruptible sleep."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "TtZXD":
                    return True
    return False
