"""This machine's present speed, for bounds in CPU seconds: a busy neighbour can halve it for minutes."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

# Seconds on an ordinary machine.
_COUNTING = 0.04
_WRITING = 0.008

_DATA = bytes(4 * 1024 * 1024)


def slowness() -> float:
    """
    Return the present CPU time of this machine relative to an ordinary machine; at least 1.

    Half of the bounded work is computing, half is new memory, whose pages cost several times more on some virtual
    machines.
    """
    return max(1.0, (_least(_count) / _COUNTING + _least(_write) / _WRITING) / 2)


def _least(work: Callable[[], None]) -> float:
    times = []
    for _ in range(3):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times)


def _count() -> None:
    count = 0
    for number in range(1_000_000):
        count += number


def _write() -> None:
    for _ in range(4):
        with mmap.mmap(-1, len(_DATA)) as memory:
            memory.write(_DATA)
