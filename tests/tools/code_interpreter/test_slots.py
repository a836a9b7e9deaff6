"""Which containers run: who gets a slot, and whose is vacated."""

from __future__ import annotations

import asyncio

import pytest

from app.errors import TooManyRequests
from app.tools.code_interpreter.slots import ContainerSlot, ContainerSlots


class Desk:
    """Slots that are left when they are to be vacated, one turn of the event loop later."""

    def __init__(self, total: int, per_owner: int) -> None:
        self.slots = ContainerSlots(total, lambda owner: per_owner)
        self.vacated: list[ContainerSlot] = []

    async def take(self, owner: str, within: float = 20) -> ContainerSlot:
        taken: list[ContainerSlot] = []

        def vacate() -> None:
            self.vacated += taken
            asyncio.get_running_loop().call_soon(self.slots.leave, taken[0])

        taken.append(await self.slots.take(owner, vacate, within))
        return taken[0]

    async def idle(self, owner: str, since: float) -> ContainerSlot:
        slot = await self.take(owner)
        self.slots.rest(slot, since)
        return slot


async def test_longest_idle_slot_is_vacated() -> None:
    desk = Desk(2, 2)
    new, old = await desk.idle("ada", 20), await desk.idle("ada", 10)
    await desk.take("ada")
    assert desk.vacated == [old]
    await desk.take("ada")
    assert desk.vacated == [old, new]


async def test_owner_with_the_most_slots_gives_one_up() -> None:
    desk = Desk(3, 3)
    await desk.idle("bob", 1)
    second, first = await desk.idle("ada", 3), await desk.idle("ada", 2)
    await desk.take("eve")
    assert desk.vacated == [first]
    await desk.take("ada")
    assert desk.vacated == [first, second]  # not bob's, although it has been idle for longer


async def test_slot_in_use_is_not_vacated() -> None:
    desk = Desk(2, 2)
    used, idle = await desk.idle("ada", 1), await desk.idle("ada", 2)
    desk.slots.use(used)
    await desk.take("bob")
    assert desk.vacated == [idle]


async def test_slots_are_not_all_given_to_one_owner() -> None:
    desk = Desk(4, 3)
    slots = [await desk.take("ada") for _ in range(3)]
    waiting = asyncio.create_task(desk.take("ada"))
    await desk.take("bob")
    assert not waiting.done()
    desk.slots.rest(slots[0], 1)
    await waiting
    assert desk.vacated == [slots[0]]


async def test_owner_at_its_limit_vacates_its_own_slot() -> None:
    desk = Desk(4, 2)
    others = await desk.idle("bob", 1)
    own = await desk.idle("ada", 2)
    await desk.take("ada")
    await desk.take("ada")
    assert desk.vacated == [own]
    assert others.idle_since == 1


async def test_owner_with_the_fewest_slots_is_next() -> None:
    desk = Desk(3, 3)
    first, second = await desk.take("ada"), await desk.take("ada")
    await desk.take("bob")
    order: list[str] = []

    async def wait(name: str, owner: str) -> None:
        await desk.take(owner)
        order.append(name)

    tasks = [asyncio.create_task(wait(name, owner)) for name, owner in (("1", "ada"), ("2", "bob"), ("3", "eve"))]
    await asyncio.sleep(0)
    desk.slots.leave(first)
    await tasks[2]
    desk.slots.leave(second)
    await tasks[0]  # ada has none left, and bob one
    assert order == ["3", "1"]
    tasks[1].cancel()


async def test_waiting_too_long_for_a_slot_is_a_429() -> None:
    desk = Desk(1, 1)
    slot = await desk.take("ada")
    with pytest.raises(TooManyRequests) as error:
        await desk.take("bob", within=0.01)
    assert (error.value.code, error.value.retry_after) == ("too_many_containers", 10)
    desk.slots.leave(slot)
    await desk.take("bob")


async def test_cancelled_waiter_leaves_its_slot_to_others() -> None:
    desk = Desk(1, 1)
    slot = await desk.take("ada")
    cancelled, waiting = asyncio.create_task(desk.take("bob")), asyncio.create_task(desk.take("eve"))
    await asyncio.sleep(0)
    desk.slots.leave(slot)  # grants it to bob, who does not know yet
    cancelled.cancel()
    await waiting


async def test_waiter_cancelled_just_before_a_slot_is_left_is_skipped() -> None:
    desk = Desk(1, 1)
    slot = await desk.take("ada")
    cancelled, waiting = asyncio.create_task(desk.take("bob")), asyncio.create_task(desk.take("eve"))
    await asyncio.sleep(0)
    cancelled.cancel()  # its task has not run yet when the slot is left
    desk.slots.leave(slot)
    assert (await waiting).owner == "eve"
    with pytest.raises(asyncio.CancelledError):
        await cancelled
