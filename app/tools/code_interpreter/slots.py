"""
Limits how many containers run at once, in total and per owner.

Each running container holds a slot. If none is free, the owner with the most slots loses its longest idle container.
Owners at their own limit only evict their own containers. If no container is idle, the next slot goes to the owner with
the fewest slots.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from app.errors import TooManyRequests


@dataclass(eq=False, slots=True)
class ContainerSlot:
    owner: str
    evict: Callable[[], None]  # starts a suspension, which ends with `release`
    idle_since: float | None = None  # None while in use or being evicted


@dataclass(eq=False, slots=True)
class _Waiter:
    slot: ContainerSlot
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    evicting: ContainerSlot | None = None  # evicted for this waiter


class ContainerSlots:
    def __init__(self, total: int, limit_of: Callable[[str], int]) -> None:
        """`limit_of` returns an owner's maximum."""
        self._total, self._limit_of = total, limit_of
        self._held: set[ContainerSlot] = set()
        self._waiters: list[_Waiter] = []

    async def acquire(self, owner: str, evict: Callable[[], None], within: float) -> ContainerSlot:
        """Wait up to `within` seconds; raises `TooManyRequests`."""
        waiter = _Waiter(ContainerSlot(owner, evict))
        self._waiters.append(waiter)
        self._serve()
        try:
            async with asyncio.timeout(within):
                await waiter.granted
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:
                self.release(waiter.slot)
            if isinstance(error, TimeoutError):
                message = "All containers are in use. Try again, or delete containers you no longer need."
                raise TooManyRequests(message, code="too_many_containers", retry_after=10) from None
            raise
        return waiter.slot

    def release(self, slot: ContainerSlot) -> None:
        self._held.discard(slot)
        for waiter in self._waiters:
            if waiter.evicting is slot:
                waiter.evicting = None
        self._serve()

    def mark_busy(self, slot: ContainerSlot) -> None:
        slot.idle_since = None

    def mark_idle(self, slot: ContainerSlot, now: float) -> None:
        slot.idle_since = now
        self._serve()

    def _serve(self) -> None:
        while waiter := next(filter(self._can_grant, self._in_order()), None):
            self._waiters.remove(waiter)
            self._held.add(waiter.slot)
            waiter.granted.set_result(None)
        for waiter in self._in_order():
            if waiter.evicting is None and (candidate := self._eviction_candidate(waiter.slot.owner)):
                candidate.idle_since, waiter.evicting = None, candidate
                candidate.evict()

    def _in_order(self) -> list[_Waiter]:
        """Owners with the fewest slots first, then by arrival."""
        held = self._counts()
        waiting = [waiter for waiter in self._waiters if not waiter.granted.done()]  # some may be cancelled
        return sorted(waiting, key=lambda waiter: held[waiter.slot.owner])

    def _can_grant(self, waiter: _Waiter) -> bool:
        owner = waiter.slot.owner
        return len(self._held) < self._total and self._counts()[owner] < self._limit_of(owner)

    def _counts(self) -> Counter[str]:
        return Counter(slot.owner for slot in self._held)

    def _eviction_candidate(self, owner: str) -> ContainerSlot | None:
        held = self._counts()
        full = held[owner] >= self._limit_of(owner)

        def priority(slot: ContainerSlot) -> tuple[int, float]:
            return -held[slot.owner] - (slot.owner == owner), slot.idle_since or 0.0

        idle = [slot for slot in self._held if slot.idle_since is not None and (slot.owner == owner or not full)]
        return min(idle, key=priority, default=None)
