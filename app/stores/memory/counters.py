"""Counters for a single process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from app.stores.counters import TokenResult, TokenTake

_MINUTE = 60.0


class MemoryCounters:
    _MAX_BUCKETS = 10_000  # above this, full buckets are dropped

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when each bucket will be full again
        self._pools: defaultdict[str, set[str]] = defaultdict(set)

    async def take(self, owner: str, takes: Sequence[TokenTake]) -> TokenResult:
        now = self._clock()
        keys = [f"{owner}:{take.bucket}" for take in takes]
        missing = [
            max(0.0, self._full.get(key, now) - now) * take.capacity / _MINUTE
            for key, take in zip(keys, takes, strict=True)
        ]
        if any(
            take.needs and lacking + take.needs > take.capacity for take, lacking in zip(takes, missing, strict=True)
        ):
            return TokenResult(False, missing)
        missing = [lacking + take.amount for take, lacking in zip(takes, missing, strict=True)]
        if len(self._full) > self._MAX_BUCKETS:
            self._full = {key: full for key, full in self._full.items() if full > now}
        for key, take, lacking in zip(keys, takes, missing, strict=True):
            self._full[key] = now + lacking * _MINUTE / take.capacity
        return TokenResult(True, missing)

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        if len(self._pools[pool]) >= limit:
            return False
        self._pools[pool].add(holder)
        return True

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return slots that are not held; others need no renewal in a single process."""
        return [(pool, holder) for pool, holder in slots if holder not in self._pools.get(pool, ())]

    async def release(self, pool: str, holder: str) -> None:
        self._pools[pool].discard(holder)
        if not self._pools[pool]:
            del self._pools[pool]

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""
