from __future__ import annotations

import asyncio

import pytest

from app.errors import TooManyRequests
from app.tools.code_interpreter.slots import ContainerSlot, ContainerSlots


class Desk:
    """Slots released an event loop iteration after their eviction."""

    def __init__(self, total: int, per_owner: int) -> None:
        self.slots = ContainerSlots(total, lambda owner: per_owner)
        self.evicted: list[ContainerSlot] = []

    async def acquire(self, owner: str, within: float = 20) -> ContainerSlot:
        taken: list[ContainerSlot] = []

        def evict() -> None:
            self.evicted += taken
            asyncio.get_running_loop().call_soon(self.slots.release, taken[0])

        taken.append(await self.slots.acquire(owner, evict, within))
        return taken[0]

    async def idle(self, owner: str, since: float) -> ContainerSlot:
        slot = await self.acquire(owner)
        self.slots.mark_idle(slot, since)
        return slot


async def test_longest_idle_slot_is_evicted() -> None:
    desk = Desk(2, 2)
    new, old = await desk.idle("ada", 20), await desk.idle("ada", 10)
    await desk.acquire("ada")
    assert desk.evicted == [old]
    await desk.acquire("ada")
    assert desk.evicted == [old, new]


async def test_owner_with_the_most_slots_gives_one_up() -> None:
    desk = Desk(3, 3)
    await desk.idle("bob", 1)
    second, first = await desk.idle("ada", 3), await desk.idle("ada", 2)
    await desk.acquire("eve")
    assert desk.evicted == [first]
    await desk.acquire("ada")
    assert desk.evicted == [first, second]  # not bob's, although it has been idle for longer


async def test_slot_in_use_is_not_evicted() -> None:
    desk = Desk(2, 2)
    used, idle = await desk.idle("ada", 1), await desk.idle("ada", 2)
    desk.slots.mark_busy(used)
    await desk.acquire("bob")
    assert desk.evicted == [idle]


async def test_slots_are_not_all_given_to_one_owner() -> None:
    desk = Desk(4, 3)
    slots = [await desk.acquire("ada") for _ in range(3)]
    waiting = asyncio.create_task(desk.acquire("ada"))
    await desk.acquire("bob")
    assert not waiting.done()
    desk.slots.mark_idle(slots[0], 1)
    await waiting
    assert desk.evicted == [slots[0]]


async def test_owner_at_its_limit_vacates_its_own_slot() -> None:
    desk = Desk(4, 2)
    others = await desk.idle("bob", 1)
    own = await desk.idle("ada", 2)
    await desk.acquire("ada")
    await desk.acquire("ada")
    assert desk.evicted == [own]
    assert others.idle_since == 1


async def test_owner_with_the_fewest_slots_is_next() -> None:
    desk = Desk(3, 3)
    first, second = await desk.acquire("ada"), await desk.acquire("ada")
    await desk.acquire("bob")
    order: list[str] = []

    async def wait(name: str, owner: str) -> None:
        await desk.acquire(owner)
        order.append(name)

    tasks = [asyncio.create_task(wait(name, owner)) for name, owner in (("1", "ada"), ("2", "bob"), ("3", "eve"))]
    await asyncio.sleep(0)
    desk.slots.release(first)
    await tasks[2]
    desk.slots.release(second)
    await tasks[0]  # ada has no slot left, bob has one
    assert order == ["3", "1"]
    tasks[1].cancel()


async def test_waiting_too_long_for_a_slot_is_a_429() -> None:
    desk = Desk(1, 1)
    slot = await desk.acquire("ada")
    with pytest.raises(TooManyRequests) as error:
        await desk.acquire("bob", within=0.01)
    assert (error.value.code, error.value.retry_after) == ("too_many_containers", 10)
    desk.slots.release(slot)
    await desk.acquire("bob")


async def test_cancelled_waiter_leaves_its_slot_to_others() -> None:
    desk = Desk(1, 1)
    slot = await desk.acquire("ada")
    cancelled, waiting = asyncio.create_task(desk.acquire("bob")), asyncio.create_task(desk.acquire("eve"))
    await asyncio.sleep(0)
    desk.slots.release(slot)  # grants it to bob, who does not know yet
    cancelled.cancel()
    await waiting


async def test_waiter_cancelled_just_before_a_slot_is_left_is_skipped() -> None:
    desk = Desk(1, 1)
    slot = await desk.acquire("ada")
    cancelled, waiting = asyncio.create_task(desk.acquire("bob")), asyncio.create_task(desk.acquire("eve"))
    await asyncio.sleep(0)
    cancelled.cancel()  # its task has not run yet when the slot is left
    desk.slots.release(slot)
    assert (await waiting).owner == "eve"
    with pytest.raises(asyncio.CancelledError):
        await cancelled
