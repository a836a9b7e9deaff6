"""
Slots limit how many containers run at once, in total and per owner.

If none is free, the owner with the most slots loses its longest idle container. Owners at their own limit only evict
their own containers. If no container is idle, the next slot goes to the owner with the fewest slots.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import TooManyRequests


@dataclass(eq=False, slots=True)
class ContainerSlot:
    owner: str
    evict: Callable[[], None]  # starts a suspension, which ends with `release`
    granted: asyncio.Future[None]
    idle_since: float | None = None  # None while in use or being evicted
    evicting: ContainerSlot | None = None  # evicted for this slot, which waits


class ContainerSlots:
    def __init__(self, total: int, limit_of: Callable[[str], int]) -> None:
        """`limit_of` returns an owner's maximum."""
        self._total, self._limit_of = total, limit_of
        self._held: set[ContainerSlot] = set()
        self._waiting: list[ContainerSlot] = []

    async def acquire(self, owner: str, evict: Callable[[], None], within: float) -> ContainerSlot:
        """Wait up to `within` seconds; raises `TooManyRequests`."""
        slot = ContainerSlot(owner, evict, asyncio.get_running_loop().create_future())
        self._waiting.append(slot)
        self._serve()
        try:
            async with asyncio.timeout(within):
                await slot.granted
        except BaseException as error:
            if slot in self._waiting:
                self._waiting.remove(slot)
            else:
                self.release(slot)
            if isinstance(error, TimeoutError):
                message = "All containers are in use. Try again, or delete containers you no longer need."
                raise TooManyRequests(message, code="too_many_containers", retry_after=10) from None
            raise
        return slot

    def release(self, slot: ContainerSlot) -> None:
        self._held.discard(slot)
        for other in self._waiting:
            if other.evicting is slot:
                other.evicting = None
        self._serve()

    def mark_busy(self, slot: ContainerSlot) -> None:
        slot.idle_since = None

    def mark_idle(self, slot: ContainerSlot, now: float) -> None:
        slot.idle_since = now
        self._serve()

    def _serve(self) -> None:
        while slot := next(filter(self._can_grant, self._in_order()), None):
            self._waiting.remove(slot)
            self._held.add(slot)
            slot.granted.set_result(None)
        for slot in self._in_order():
            if slot.evicting is None and (candidate := self._eviction_candidate(slot.owner)):
                candidate.idle_since, slot.evicting = None, candidate
                candidate.evict()

    def _in_order(self) -> list[ContainerSlot]:
        """Owners with the fewest slots first, then by arrival."""
        held = self._counts()
        waiting = [slot for slot in self._waiting if not slot.granted.done()]  # some may be cancelled
        return sorted(waiting, key=lambda slot: held[slot.owner])

    def _can_grant(self, slot: ContainerSlot) -> bool:
        return len(self._held) < self._total and self._counts()[slot.owner] < self._limit_of(slot.owner)

    def _counts(self) -> Counter[str]:
        return Counter(slot.owner for slot in self._held)

    def _eviction_candidate(self, owner: str) -> ContainerSlot | None:
        held = self._counts()
        full = held[owner] >= self._limit_of(owner)
        held[owner] += 1  # with the waiting slot
        idle = [slot for slot in self._held if slot.idle_since is not None and (slot.owner == owner or not full)]
        return min(idle, key=lambda slot: (-held[slot.owner], slot.idle_since or 0.0), default=None)
