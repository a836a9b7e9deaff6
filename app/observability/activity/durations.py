"""Durations, counted so that their quantiles can be told for any processes and hours together."""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable

_SHORTEST = 0.001  # seconds
_GROWTH = 2**0.25  # of the limit of a class from one to the next, so that a quantile is at most a tenth off
_CLASSES = 100  # the last one has all that is longer than nine hours
_LIMITS = [_SHORTEST * _GROWTH ** (number + 0.5) for number in range(_CLASSES - 1)]  # of each class but the last


class Durations:
    """How many durations there are in each of a fixed number of classes."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        """`counts` are those of `pairs`."""
        self._counts = Counter(dict(counts))

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect(_LIMITS, seconds)] += 1

    def include(self, others: Durations) -> None:
        """Count other durations too."""
        self._counts.update(others._counts)

    def quantile(self, share: float) -> float | None:
        """Return the seconds that this share of the durations does not exceed; None if there are none."""
        left = math.ceil(share * self._counts.total())
        for number in sorted(self._counts):
            left -= self._counts[number]
            if left <= 0:
                return float(f"{_SHORTEST * _GROWTH**number:.3g}")
        return None

    def pairs(self) -> list[tuple[int, int]]:
        """Return the numbers of the classes that have any, with how many they have."""
        return sorted(self._counts.items())
