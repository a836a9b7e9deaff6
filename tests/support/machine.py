"""How fast this machine is now, for bounds in seconds of CPU: a busy neighbour makes one half as fast for minutes."""

from __future__ import annotations

import time

_ORDINARY = 0.04  # seconds that an ordinary machine takes to count


def slowness() -> float:
    """Return how many times the CPU of an ordinary machine this one takes now; at least 1."""
    return max(1.0, min(_counting() for _ in range(3)) / _ORDINARY)


def _counting() -> float:
    began = time.thread_time()
    count = 0
    for number in range(1_000_000):
        count += number
    return time.thread_time() - began
