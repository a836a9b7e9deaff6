"""The activity contract for all stores: each process sees all processes' activity, for a day, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.errors import StoreUnavailable
from app.observability.activity import HOUR, HOURS, OTHER, Activity, ActivityHour, Durations, Refusal
from app.observability.lifecycle import ResponseLifecycle
from app.stores import Store
from app.stores.memory import MemoryStore
from tests.support.store_locations import Clock, StoreLocation

BUSY = {"name": "default", "queued": 1, "replicas": []}


@pytest.fixture
async def store(location: StoreLocation) -> AsyncIterator[Store]:
    store = location.open()
    yield store
    await store.aclose()


def lifecycle(key: str = "alice", **fields: Any) -> ResponseLifecycle:
    response = {"id": f"resp_{key}", "model": "qwen3", "status": "completed"}
    return ResponseLifecycle(response, "sse", owner=f"owner of {key}", key=key, **fields)


def answer(activity: Activity, key: str = "alice", seconds: float = 2.0, first: float = 0.5) -> None:
    """Let a response begin and end."""
    made = lifecycle(key, seconds_to_first=first, seconds=seconds)
    activity.on_start(made)
    activity.on_end(made)


def refusal(at: float, owner: str = "ada", **fields: Any) -> Refusal:
    return Refusal(at, owner, owner, "POST /v1/responses", 429, "too_many_requests", "c", None, "req", **fields)


async def counted(activity: Activity, hours: int = HOURS) -> dict[str, int]:
    """Return requests per key."""
    requests: dict[str, int] = {}
    for hour in await activity.hours(hours):
        for (_, key, _), counts in hour.counts.items():
            requests[key] = requests.get(key, 0) + counts.requests + counts.refused
    return requests


async def test_activity_of_all_processes_is_seen_by_each(store: Store) -> None:
    clock = Clock()
    one, two = Activity(store, clock=clock), Activity(store, clock=clock)
    for activity, key in ((one, "alice"), (one, "bob"), (two, "alice")):
        answer(activity, key)
    two.refused(refusal(clock.now))
    assert await counted(two) == {"alice": 1, "ada": 1}, "the other has not written yet"
    await one.aclose()
    await two.aclose()
    for activity in (one, two, Activity(store, clock=clock)):
        assert await counted(activity) == {"alice": 2, "bob": 1, "ada": 1}
    [found] = [each for hour in await one.hours(1) for each in hour.refusals]
    assert found == refusal(clock.now)


async def test_activity_of_an_hour_is_forgotten_a_day_later(store: Store) -> None:
    clock = Clock()
    dead, activity = Activity(store, clock=clock), Activity(store, clock=clock)
    answer(dead, "alice")
    await dead.aclose()
    clock.now += HOUR
    answer(activity, "bob")
    clock.now += HOUR
    answer(activity, "carol")
    assert await counted(activity) == {"alice": 1, "bob": 1, "carol": 1}, "also what is not stored yet"
    assert await counted(activity, 2) == {"bob": 1, "carol": 1}
    clock.now += (HOURS - 2) * HOUR
    answer(activity, "dave")
    await activity.aclose()
    assert await counted(activity) == {"bob": 1, "carol": 1, "dave": 1}
    assert len(await store.names("server:hours")) == 3, "the record of the day before is deleted"


async def test_running_responses_are_seen_by_all_until_their_process_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.observability.activity.PUBLISHING", 0.01)
    clock = Clock()
    one, two = Activity(store, backends=lambda: [dict(BUSY)], clock=clock), Activity(store, clock=clock)
    one.start()
    one.on_start(lifecycle())
    while len((await two.now())[0]) < 2:
        await asyncio.sleep(0.01)
    state = (await two.now())[0][1]
    assert state["backends"] == [BUSY]
    assert [(entry["id"], entry["key"], entry["owner"]) for entry in state["running"]] == [
        ("resp_alice", "alice", "owner of alice")
    ]
    later = Activity(store, clock=Clock(clock.now + 60))
    assert len((await later.now())[0]) == 1, "a process that is killed writes nothing any more"
    await one.aclose()
    assert len((await two.now())[0]) == 1


async def test_quantile_is_at_most_a_tenth_off() -> None:
    durations, others = Durations(), Durations()
    for number in range(1, 101):
        (durations if number % 2 else others).add(number / 10)
    assert durations.quantile(0.5) == pytest.approx(5.0, rel=0.1)
    durations.include(Durations(others.pairs()))
    assert durations.quantile(0.5) == pytest.approx(5.0, rel=0.1)
    assert durations.quantile(0.95) == pytest.approx(9.5, rel=0.1)
    assert Durations().quantile(0.5) is None
    durations.add(0)
    durations.add(10**9)
    assert durations.quantile(1) is not None


async def test_activity_of_an_hour_is_bounded() -> None:
    hour = ActivityHour(0)
    for number in range(1000):
        hour.of(1, f"key{number}", "m").requests += 1
        hour.of(1, "alice", f"model{number}").requests += 1
        hour.refuse(refusal(1.0, f"owner{number}"))
        hour.refuse(refusal(float(number), "flood"))
    read = ActivityHour.read(hour.record())
    assert len(read.counts) <= 250
    assert sum(counts.requests for counts in read.counts.values()) == 2000
    assert OTHER in {key for _, key, _ in read.counts} and OTHER in {model for _, _, model in read.counts}
    refusals = [*read.refusals]
    assert len(refusals) <= 100
    assert [each.at for each in refusals if each.owner == "flood"] == [float(n) for n in range(980, 1000)]


async def test_activity_without_the_store_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore.from_url("memory://", ttl=10)

    async def gone(*_: object) -> Any:
        raise StoreUnavailable

    for name in ("all", "put", "delete"):
        monkeypatch.setattr(store, name, gone)
    activity = Activity(store)
    activity.on_start(lifecycle())
    states, complete = await activity.now()
    assert not complete and len(states) == 1 and len(states[0]["running"]) == 1
    await activity.aclose()
