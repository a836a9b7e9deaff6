"""CPU time and memory of a server process and its children. 0 outside Linux."""

from __future__ import annotations

import os
import time
from contextlib import suppress


def _tree(pid: int) -> list[int]:
    pids = [pid]
    for one in pids:
        with suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children", encoding="ascii") as children:
                    pids += map(int, children.read().split())
    return pids


def cpu(pid: int) -> float:
    """CPU seconds, user and system, used by a process and its living children."""
    used = 0.0
    for one in _tree(pid):
        with suppress(AttributeError, OSError):
            # Another process's clock, in nanoseconds: the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
            used += time.clock_gettime(~one << 3 | 2)
    return used


def memory(pid: int) -> float:
    """Bytes in use by a process and its children."""
    pages = 0
    for one in _tree(pid):
        with suppress(OSError):
            with open(f"/proc/{one}/statm", encoding="ascii") as statm:
                pages += int(statm.read().split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE")) if pages else 0.0
