from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable

_SHORTEST = 0.001  # seconds
_GROWTH = 2**0.25  # ratio between bucket limits: quantiles are at most 10 % off
_CLASSES = 100  # the last bucket starts at nine hours
# Upper limits of all buckets but the last.
_LIMITS = [_SHORTEST * _GROWTH ** (number + 0.5) for number in range(_CLASSES - 1)]


class Durations:
    """A histogram with a fixed number of buckets, merged across processes and hours."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        """`counts` comes from `pairs`."""
        self._counts = Counter(dict(counts))

    def add(self, seconds: float) -> None:
        self._counts[bisect(_LIMITS, seconds)] += 1

    def include(self, others: Durations) -> None:
        self._counts.update(others._counts)

    def quantile(self, share: float) -> float | None:
        """The quantile in seconds; None without durations."""
        left = math.ceil(share * self._counts.total())
        for number in sorted(self._counts):
            left -= self._counts[number]
            if left <= 0:
                return float(f"{_SHORTEST * _GROWTH**number:.3g}")
        return None

    def pairs(self) -> list[tuple[int, int]]:
        """The non-empty buckets as (number, count)."""
        return sorted(self._counts.items())
