from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from app.stores.counters import TokenCharge, TokenResult

_MINUTE = 60.0


class MemoryCounters:
    _MAX_BUCKETS = 10_000  # above this, full buckets are dropped

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when each bucket will be full again
        self._pools: defaultdict[str, set[str]] = defaultdict(set)

    async def consume(self, owner: str, charges: Sequence[TokenCharge]) -> TokenResult:
        now = self._clock()
        keys = [f"{owner}:{charge.bucket}" for charge in charges]
        missing = [
            max(0.0, self._full.get(key, now) - now) * charge.capacity / _MINUTE
            for key, charge in zip(keys, charges, strict=True)
        ]
        if any(
            charge.needs and lacking + charge.needs > charge.capacity
            for charge, lacking in zip(charges, missing, strict=True)
        ):
            return TokenResult(False, missing)
        missing = [lacking + charge.amount for charge, lacking in zip(charges, missing, strict=True)]
        if len(self._full) > self._MAX_BUCKETS:
            self._full = {key: full for key, full in self._full.items() if full > now}
        for key, charge, lacking in zip(keys, charges, missing, strict=True):
            self._full[key] = now + lacking * _MINUTE / charge.capacity
        return TokenResult(True, missing)

    async def acquire(self, pool: str, holder: str, limit: int) -> bool:
        if len(self._pools[pool]) >= limit:
            return False
        self._pools[pool].add(holder)
        return True

    async def renew(self, slots: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """In a single process, held slots need no renewal."""
        return [(pool, holder) for pool, holder in slots if holder not in self._pools.get(pool, ())]

    async def release(self, pool: str, holder: str) -> None:
        self._pools[pool].discard(holder)
        if not self._pools[pool]:
            del self._pools[pool]

    async def aclose(self) -> None: ...
