"""
A cache of loaded conversations, so that a turn decodes only the turns before it that are not cached.

An entry is the decoded past of one stored response. Before each use, the store must confirm that all responses of the
past still exist, so responses that were deleted or have expired in any process are never returned.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from app.core.bounded_json import size_of
from app.core.history.past import Past
from app.core.history.turns import Turn

HISTORY_CACHE = 64 * 1024 * 1024  # bytes, by default

_TURN = 500  # bytes of a turn besides its items: ids, and slots in lists and dicts
MAX_AGE = 600.0  # seconds that an entry stays after its last use
_SHARE = 4  # one conversation may take 1/4 of the cache


@dataclass(slots=True)
class CachedPast:
    """The past of a response."""

    past: Past
    size: int  # bytes of memory
    base: str | None = None  # the response whose entry it extends
    used: float = 0.0  # time of the last use


def past_after(turns: Sequence[Turn], base: CachedPast | None = None) -> CachedPast:
    """Return the entry of the last of some turns, which follow `base`; nothing in the turns may be changed later."""
    size = sum(_TURN + size_of([turn.input, turn.response["output"], turn.upstream]) for turn in turns)
    if base is None:
        return CachedPast(Past.of(turns), size)
    return CachedPast(base.past.extended(turns), base.size + size, base.past.response_ids[-1])


class _Responses(Container[str]):
    def __init__(self, entries: Container[tuple[str, str]], owner: str) -> None:
        self._entries = entries
        self._owner = owner

    def __contains__(self, response_id: object) -> bool:
        return (self._owner, response_id) in self._entries


class HistoryCache:
    """
    The pasts of responses, by owner and response id; the least recently used are evicted.

    `max_bytes` bounds the memory of all of them, as far as it can be measured; with 0 there are none. `clock` returns
    seconds.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], CachedPast] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def responses_of(self, owner: str) -> Container[str]:
        """Return the ids of an owner's responses that have an entry."""
        return _Responses(self._entries, owner)

    def get(self, owner: str, response_id: str) -> CachedPast | None:
        """Return the entry of a response; valid only if the store still has all of its `past.response_ids`."""
        if entry := self._entries.get((owner, response_id)):
            self._entries.move_to_end((owner, response_id))
            entry.used = self._clock()
        return entry

    def put(self, owner: str, entry: CachedPast) -> None:
        """Add the entry of a response, if it is not too large."""
        response_id = entry.past.response_ids[-1]
        self.remove(owner, response_id)
        if entry.size * _SHARE <= self.max_bytes:
            self._entries[owner, response_id] = entry
            entry.used = self._clock()
            self.bytes += entry.size
            self._evict()

    def supersede(self, owner: str, entry: CachedPast) -> None:
        """Remove the entries that an entry extends, because the conversation continues from it."""
        base, entry.base = entry.base, None
        while base and (earlier := self._entries.get((owner, base))):
            self.remove(owner, base)
            base = earlier.base

    def remove(self, owner: str, response_id: str) -> None:
        """Remove the entry of a response, if there is one."""
        if entry := self._entries.pop((owner, response_id), None):
            self.bytes -= entry.size

    def remove_with(self, owner: str, response_id: str) -> None:
        """Remove all entries that contain a response."""
        for key, entry in [*self._entries.items()]:
            if key[0] == owner and response_id in entry.past.response_ids:
                self.remove(*key)

    def purge(self) -> None:
        """Remove entries that were not used for `MAX_AGE`, which also frees those that were deleted elsewhere."""
        oldest = self._clock() - MAX_AGE
        while self._entries and next(iter(self._entries.values())).used < oldest:
            self.remove(*next(iter(self._entries)))

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self.bytes = 0

    def _evict(self) -> None:
        while self.bytes > self.max_bytes:
            _, entry = self._entries.popitem(last=False)
            self.bytes -= entry.size
