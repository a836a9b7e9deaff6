"""This machine's present speed, for bounds in CPU seconds: a busy neighbour can halve it for minutes."""

from __future__ import annotations

import time

_ORDINARY = 0.04  # seconds on an ordinary machine


def slowness() -> float:
    """Return the present CPU time of this machine relative to an ordinary machine; at least 1."""
    return max(1.0, min(_counting() for _ in range(3)) / _ORDINARY)


def _counting() -> float:
    began = time.thread_time()
    count = 0
    for number in range(1_000_000):
        count += number
    return time.thread_time() - began
