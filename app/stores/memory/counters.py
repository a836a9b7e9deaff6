"""Counts of one process, for itself."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from app.stores.counters import TokenResult, TokenTake

_MINUTE = 60.0


class MemoryCounters:
    """Counts of this process alone."""

    _MANY = 10_000  # buckets, beyond which those that are full are forgotten

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when a bucket will be full again
        self._rooms: defaultdict[str, set[str]] = defaultdict(set)

    async def take(self, owner: str, draws: Sequence[TokenTake]) -> TokenResult:
        now = self._clock()
        keys = [f"{owner}:{take.bucket}" for take in draws]
        missing = [
            max(0.0, self._full.get(key, now) - now) * take.most / _MINUTE
            for key, take in zip(keys, draws, strict=True)
        ]
        if any(take.needs and gone + take.needs > take.most for take, gone in zip(draws, missing, strict=True)):
            return TokenResult(False, missing)
        missing = [gone + take.amount for take, gone in zip(draws, missing, strict=True)]
        if len(self._full) > self._MANY:
            self._full = {key: full for key, full in self._full.items() if full > now}
        for key, take, gone in zip(keys, draws, missing, strict=True):
            self._full[key] = now + gone * _MINUTE / take.most
        return TokenResult(True, missing)

    async def acquire(self, room: str, guest: str, most: int) -> bool:
        if len(self._rooms[room]) >= most:
            return False
        self._rooms[room].add(guest)
        return True

    async def renew(self, guests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        # Those that are taken stay taken for as long as the process lives.
        return [(room, guest) for room, guest in guests if guest not in self._rooms.get(room, ())]

    async def release(self, room: str, guest: str) -> None:
        self._rooms[room].discard(guest)
        if not self._rooms[room]:
            del self._rooms[room]

    async def aclose(self) -> None:
        pass
