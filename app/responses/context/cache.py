"""
A cache of decoded conversations, so that only new turns are decoded.

Before each use, the store must confirm that all responses of the entry still exist, because other processes can delete
them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.core.bounded_json import size_of
from app.core.history.past import Past
from app.core.history.turns import Turn

HISTORY_CACHE = 64 * 1024 * 1024  # bytes

_TURN = 500  # estimated bytes per turn, without its items
MAX_AGE = 600.0  # seconds since the last use
_SHARE = 4  # an entry is at most 1/4 of the cache


@dataclass(slots=True)
class CachedPast:
    past: Past
    size: int  # bytes
    base: str | None = None  # response id of the extended entry
    used: float = 0.0


def past_after(turns: Sequence[Turn], base: CachedPast | None = None) -> CachedPast:
    """The last turn's entry, after `base`. The turns must not be modified later."""
    size = sum(_TURN + size_of([turn.input, turn.response["output"], turn.upstream]) for turn in turns)
    if base is None:
        return CachedPast(Past.of(turns), size)
    return CachedPast(base.past.extended(turns), base.size + size, base.past.response_ids[-1])


class HistoryCache:
    """
    Pasts by owner and response id, evicted by least recent use.

    `max_bytes` limits the measurable memory; 0 disables the cache.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], CachedPast] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def has(self, owner: str, response_id: str) -> bool:
        return (owner, response_id) in self._entries

    def get(self, owner: str, response_id: str) -> CachedPast | None:
        """The caller must check that `past.response_ids` are still stored."""
        if entry := self._entries.get((owner, response_id)):
            self._entries.move_to_end((owner, response_id))
            entry.used = self._clock()
        return entry

    def put(self, owner: str, entry: CachedPast) -> None:
        response_id = entry.past.response_ids[-1]
        self.remove(owner, response_id)
        if entry.size * _SHARE <= self.max_bytes:
            self._entries[owner, response_id] = entry
            entry.used = self._clock()
            self.bytes += entry.size
            while self.bytes > self.max_bytes:
                self.remove(*next(iter(self._entries)))

    def supersede(self, owner: str, entry: CachedPast) -> None:
        """Remove the entries that `entry` extends: the conversation continues from it."""
        base, entry.base = entry.base, None
        while base and (earlier := self._entries.get((owner, base))):
            self.remove(owner, base)
            base = earlier.base

    def remove(self, owner: str, response_id: str) -> None:
        if entry := self._entries.pop((owner, response_id), None):
            self.bytes -= entry.size

    def remove_with(self, owner: str, response_id: str) -> None:
        for key, entry in [*self._entries.items()]:
            if key[0] == owner and response_id in entry.past.response_ids:
                self.remove(*key)

    def delete_expired(self) -> None:
        """Remove entries unused for `MAX_AGE`, including those deleted by other processes."""
        oldest = self._clock() - MAX_AGE
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self.remove(*next(iter(self._entries)))

    def clear(self) -> None:
        self._entries.clear()
        self.bytes = 0
