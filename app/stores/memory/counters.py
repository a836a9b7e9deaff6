"""Counts of one process, for itself."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from app.stores import Draw, Drawn

MINUTE = 60.0


class MemoryCounts:
    """Counts of this process alone."""

    _MANY = 10_000  # buckets, beyond which those that are full are forgotten

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}  # when a bucket will be full again
        self._rooms: defaultdict[str, set[str]] = defaultdict(set)

    async def draw(self, owner: str, draws: Sequence[Draw]) -> Drawn:
        now = self._clock()
        keys = [f"{owner}:{draw.bucket}" for draw in draws]
        missing = [
            max(0.0, self._full.get(key, now) - now) * draw.most / MINUTE for key, draw in zip(keys, draws, strict=True)
        ]
        if any(draw.needs and gone + draw.needs > draw.most for draw, gone in zip(draws, missing, strict=True)):
            return Drawn(False, missing)
        missing = [gone + draw.amount for draw, gone in zip(draws, missing, strict=True)]
        if len(self._full) > self._MANY:
            self._full = {key: full for key, full in self._full.items() if full > now}
        for key, draw, gone in zip(keys, draws, missing, strict=True):
            self._full[key] = now + gone * MINUTE / draw.most
        return Drawn(True, missing)

    async def enter(self, room: str, guest: str, most: int) -> bool:
        if len(self._rooms[room]) >= most:
            return False
        self._rooms[room].add(guest)
        return True

    async def stay(self, guests: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        # Those that are taken stay taken for as long as the process lives.
        return [(room, guest) for room, guest in guests if guest not in self._rooms.get(room, ())]

    async def leave(self, room: str, guest: str) -> None:
        self._rooms[room].discard(guest)
        if not self._rooms[room]:
            del self._rooms[room]

    async def aclose(self) -> None:
        pass
