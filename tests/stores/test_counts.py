"""One contract for whoever counts: in memory, and in a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import pytest

from app.errors import StoreUnavailable
from app.stores import CountingStore, Counts, Draw, redis
from app.stores.memory.counters import MemoryCounts
from app.stores.redis import RedisStore
from tests.support.redis_server import RedisServer, join

REQUEST = Draw("requests", 2, amount=1, needs=1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is late is away: not in these tests, on a machine with much else to do."""
    monkeypatch.setattr(redis, "HASTE", 2.0)


def redis_counts(url: str) -> Counts:
    store = RedisStore.from_url(url, ttl=60)
    assert isinstance(store, CountingStore)
    return store.counts()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    with RedisServer(cluster=True) as one, RedisServer(cluster=True) as other:
        join([one, other])
        yield one


@pytest.fixture(params=["memory", "redis", "cluster"])
async def counts(request: pytest.FixtureRequest) -> AsyncIterator[Counts]:
    match request.param:
        case "memory":
            counts: Counts = MemoryCounts()
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            counts = redis_counts(server.url)
        case _:
            counts = redis_counts(request.getfixturevalue("cluster").url)
    yield counts
    await counts.aclose()
    await counts.aclose()


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> str:
    """An owner, or the name of a room, that no other test has."""
    return str(request.node.name)


def rounded(missing: object) -> list[int]:
    """What is missing, without what has flowed in since."""
    return [round(one) for one in cast(list[float], missing)]


async def test_a_bucket_is_full_at_first_and_gives_what_it_holds(counts: Counts, owner: str) -> None:
    drawn = [await counts.draw(owner, [REQUEST]) for _ in range(3)]
    assert [one.granted for one in drawn] == [True, True, False]
    assert [rounded(one.missing) for one in drawn] == [[1], [2], [2]]


async def test_owners_and_buckets_do_not_know_of_each_other(counts: Counts, owner: str) -> None:
    for _ in range(2):
        await counts.draw(owner, [REQUEST])
    assert (await counts.draw(f"{owner}-2", [REQUEST])).granted
    assert (await counts.draw(owner, [REQUEST._replace(bucket="other")])).granted


async def test_where_one_bucket_has_not_enough_nothing_is_taken_from_any(counts: Counts, owner: str) -> None:
    tokens = Draw("tokens", 1, amount=1)
    await counts.draw(owner, [tokens])
    drawn = await counts.draw(owner, [REQUEST, tokens._replace(amount=0, needs=1)])
    assert (drawn.granted, rounded(drawn.missing)) == (False, [0, 1])
    assert rounded((await counts.draw(owner, [REQUEST])).missing) == [1]


async def test_what_needs_nothing_may_be_owed(counts: Counts, owner: str) -> None:
    charge, ask = Draw("tokens", 1, amount=1000), Draw("tokens", 1, amount=0, needs=1)
    assert (await counts.draw(owner, [ask])).granted
    assert rounded((await counts.draw(owner, [charge])).missing) == [1000]
    drawn = await counts.draw(owner, [ask])
    assert (drawn.granted, rounded(drawn.missing)) == (False, [1000])


async def test_a_short_debt_does_not_let_a_long_one_be_forgotten(counts: Counts, owner: str) -> None:
    await counts.draw(owner, [REQUEST])
    await counts.draw(owner, [Draw("tokens", 1_000_000, amount=1)])
    await asyncio.sleep(0.01)  # until after the short one is paid back
    assert rounded((await counts.draw(owner, [REQUEST])).missing) == [2]


async def test_a_room_has_only_so_many_places(counts: Counts, owner: str) -> None:
    assert [await counts.enter(owner, guest, 2) for guest in "abc"] == [True, True, False]
    assert await counts.enter(f"{owner}-2", "c", 2)
    await counts.leave(owner, "a")
    await counts.leave(owner, "nobody")
    assert [await counts.enter(owner, guest, 2) for guest in "cd"] == [True, False]


async def test_who_stays_keeps_its_place(counts: Counts, owner: str) -> None:
    await counts.enter(owner, "a", 1)
    await counts.enter(f"{owner}-2", "b", 1)
    await counts.stay([(owner, "a"), (f"{owner}-2", "b")])
    assert not await counts.enter(owner, "c", 1)
    assert not await counts.enter(f"{owner}-2", "c", 1)


async def test_who_has_left_does_not_come_back_by_staying(counts: Counts, owner: str) -> None:
    """A renewal may be on its way while the place is given back."""
    await counts.enter(owner, "a", 2)
    await counts.enter(owner, "b", 2)
    await counts.leave(owner, "a")
    assert await counts.stay([(owner, "a"), (owner, "b")]) == [(owner, "a")]
    assert [await counts.enter(owner, guest, 2) for guest in "cd"] == [True, False]


async def test_memory_lets_flow_in_what_time_brings_and_no_more() -> None:
    now = [0.0]
    counts = MemoryCounts(clock=lambda: now[0])
    for _ in range(2):
        await counts.draw("a", [REQUEST])
    now[0] = 29.9
    assert not (await counts.draw("a", [REQUEST])).granted
    now[0] = 30
    assert (await counts.draw("a", [REQUEST])).granted
    now[0] = 1000
    assert [(await counts.draw("a", [REQUEST])).granted for _ in range(3)] == [True, True, False]


async def test_memory_forgets_buckets_that_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    counts = MemoryCounts(clock=lambda: now[0])
    monkeypatch.setattr(MemoryCounts, "_MANY", 10)
    for number in range(20):
        now[0] += 60
        await counts.draw(str(number), [REQUEST])
    assert len(counts._full) <= 11


async def test_redis_forgets_what_is_over(redis_server: RedisServer, owner: str) -> None:
    counts = redis_counts(redis_server.url)
    await counts.draw(owner, [REQUEST])
    await counts.enter(owner, "a", 1)
    with redis_server.client() as client:
        for key, most in ((f"antiphon:{{limit:{owner}}}", 30_001), (f"antiphon:{{room:{owner}}}", 30_000)):
            assert 0 < client.pttl(key) <= most
    await counts.aclose()


async def test_redis_frees_the_places_of_a_process_that_has_died(redis_server: RedisServer, owner: str) -> None:
    counts = redis_counts(redis_server.url)
    assert await counts.enter(owner, "dead", 1)
    assert not await counts.enter(owner, "alive", 1)
    with redis_server.client() as client:
        client.zadd(f"antiphon:{{room:{owner}}}", {"dead": 1})  # its lease has run out
    assert await counts.enter(owner, "alive", 1)
    await counts.aclose()


@pytest.mark.parametrize("trouble", [RedisServer.stop, RedisServer.pause])
async def test_a_redis_that_is_away_is_told_as_such(trouble: Callable[[RedisServer], None]) -> None:
    with RedisServer() as server:
        counts = redis_counts(server.url)
        await counts.draw("a", [REQUEST])
        trouble(server)
        questions = (counts.draw("a", [REQUEST]), counts.enter("r", "g", 1), counts.stay([("r", "g")]))
        told = await asyncio.gather(*questions, return_exceptions=True)
        assert [type(one) for one in told] == [StoreUnavailable] * 3
        await counts.aclose()


async def test_a_debt_may_grow(counts: Counts, owner: str) -> None:
    """What was used is used, however much is owed already."""
    drawn = [await counts.draw(owner, [Draw("tokens", 1, amount=1000)]) for _ in range(2)]
    assert [(one.granted, rounded(one.missing)) for one in drawn] == [(True, [1000]), (True, [2000])]
