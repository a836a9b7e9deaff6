"""One contract for whoever counts: in memory, and in a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import pytest

from app.errors import StoreUnavailable
from app.stores import Counters, TokenCharge, redis
from app.stores.memory import MemoryCounters
from app.stores.postgres import PostgresStore
from app.stores.redis import RedisStore
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer, join

REQUEST = TokenCharge("requests", 2, amount=1, needs=1)


def redis_counts(url: str) -> Counters:
    store = RedisStore.from_url(url, ttl=60)
    return store.counters()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisServer]:
    with RedisServer(cluster=True) as one, RedisServer(cluster=True) as other:
        join([one, other])
        yield one


@pytest.fixture(params=["memory", "postgres", "redis", "cluster"])
async def counters(request: pytest.FixtureRequest) -> AsyncIterator[Counters]:
    match request.param:
        case "memory":
            counters: Counters = MemoryCounters()
        case "postgres":
            database: PostgresServer = request.getfixturevalue("postgres_server")
            counters = PostgresStore.from_url(database.url, ttl=60).counters()
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            counters = redis_counts(server.url)
        case _:
            counters = redis_counts(request.getfixturevalue("cluster").url)
    yield counters
    await counters.aclose()
    await counters.aclose()


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> str:
    """An owner or room name used by this test only."""
    return str(request.node.name)


def rounded(missing: object) -> list[int]:
    """Missing amounts without refills since then."""
    return [round(one) for one in cast(list[float], missing)]


async def test_counter_is_full_at_first_and_gives_what_it_holds(counters: Counters, owner: str) -> None:
    drawn = [await counters.consume(owner, [REQUEST]) for _ in range(3)]
    assert [one.granted for one in drawn] == [True, True, False]
    assert [rounded(one.missing) for one in drawn] == [[1], [2], [2]]


async def test_counters_of_owners_and_kinds_are_separate(counters: Counters, owner: str) -> None:
    for _ in range(2):
        await counters.consume(owner, [REQUEST])
    assert (await counters.consume(f"{owner}-2", [REQUEST])).granted
    assert (await counters.consume(owner, [REQUEST._replace(bucket="other")])).granted


async def test_counters_take_nothing_if_one_has_not_enough(counters: Counters, owner: str) -> None:
    tokens = TokenCharge("tokens", 1, amount=1)
    await counters.consume(owner, [tokens])
    drawn = await counters.consume(owner, [REQUEST, tokens._replace(amount=0, needs=1)])
    assert (drawn.granted, rounded(drawn.missing)) == (False, [0, 1])
    assert rounded((await counters.consume(owner, [REQUEST])).missing) == [1]


async def test_counter_that_is_asked_for_nothing_may_be_in_debt(counters: Counters, owner: str) -> None:
    charge, ask = TokenCharge("tokens", 1, amount=1000), TokenCharge("tokens", 1, amount=0, needs=1)
    assert (await counters.consume(owner, [ask])).granted
    assert rounded((await counters.consume(owner, [charge])).missing) == [1000]
    drawn = await counters.consume(owner, [ask])
    assert (drawn.granted, rounded(drawn.missing)) == (False, [1000])


async def test_short_debt_does_not_end_a_long_one(counters: Counters, owner: str) -> None:
    await counters.consume(owner, [REQUEST])
    await counters.consume(owner, [TokenCharge("tokens", 1_000_000, amount=1)])
    await asyncio.sleep(0.01)  # until the short debt is repaid
    assert rounded((await counters.consume(owner, [REQUEST])).missing) == [2]


async def test_slots_are_bounded(counters: Counters, owner: str) -> None:
    assert [await counters.acquire(owner, guest, 2) for guest in "abc"] == [True, True, False]
    assert await counters.acquire(f"{owner}-2", "c", 2)
    await counters.release(owner, "a")
    await counters.release(owner, "nobody")
    assert [await counters.acquire(owner, guest, 2) for guest in "cd"] == [True, False]


async def test_slot_that_is_renewed_is_kept(counters: Counters, owner: str) -> None:
    await counters.acquire(owner, "a", 1)
    await counters.acquire(f"{owner}-2", "b", 1)
    await counters.renew([(owner, "a"), (f"{owner}-2", "b")])
    assert not await counters.acquire(owner, "c", 1)
    assert not await counters.acquire(f"{owner}-2", "c", 1)


async def test_slot_that_was_released_is_not_renewed(counters: Counters, owner: str) -> None:
    """A renewal may be on its way while the slot is released."""
    await counters.acquire(owner, "a", 2)
    await counters.acquire(owner, "b", 2)
    await counters.release(owner, "a")
    assert await counters.renew([(owner, "a"), (owner, "b")]) == [(owner, "a")]
    assert [await counters.acquire(owner, guest, 2) for guest in "cd"] == [True, False]


async def test_memory_counter_refills_with_time_and_no_more() -> None:
    now = [0.0]
    counters = MemoryCounters(clock=lambda: now[0])
    for _ in range(2):
        await counters.consume("a", [REQUEST])
    now[0] = 29.9
    assert not (await counters.consume("a", [REQUEST])).granted
    now[0] = 30
    assert (await counters.consume("a", [REQUEST])).granted
    now[0] = 1000
    assert [(await counters.consume("a", [REQUEST])).granted for _ in range(3)] == [True, True, False]


async def test_memory_forgets_full_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    counters = MemoryCounters(clock=lambda: now[0])
    monkeypatch.setattr(MemoryCounters, "_MAX_BUCKETS", 10)
    for number in range(20):
        now[0] += 60
        await counters.consume(str(number), [REQUEST])
    assert len(counters._full) <= 11


async def test_redis_forgets_what_has_expired(redis_server: RedisServer, owner: str) -> None:
    counters = redis_counts(redis_server.url)
    await counters.consume(owner, [REQUEST])
    await counters.acquire(owner, "a", 1)
    with redis_server.client() as client:
        for key, most in ((f"antiphon:{{limit:{owner}}}", 30_001), (f"antiphon:{{room:{owner}}}", 30_000)):
            assert 0 < client.pttl(key) <= most
    await counters.aclose()


async def test_redis_frees_the_slots_of_a_dead_process(redis_server: RedisServer, owner: str) -> None:
    counters = redis_counts(redis_server.url)
    assert await counters.acquire(owner, "dead", 1)
    assert not await counters.acquire(owner, "alive", 1)
    with redis_server.client() as client:
        client.zadd(f"antiphon:{{room:{owner}}}", {"dead": 1})  # its lease has run out
    assert await counters.acquire(owner, "alive", 1)
    await counters.aclose()


@pytest.mark.parametrize("trouble", [RedisServer.stop, RedisServer.pause])
async def test_redis_that_is_unavailable_is_reported(
    trouble: Callable[[RedisServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "FAST_TIMEOUT", 0.5)
    with RedisServer() as server:
        counters = redis_counts(server.url)
        with contextlib.suppress(StoreUnavailable):  # a busy machine
            await counters.consume("a", [REQUEST])
        trouble(server)
        questions = (counters.consume("a", [REQUEST]), counters.acquire("r", "g", 1), counters.renew([("r", "g")]))
        results = await asyncio.gather(*questions, return_exceptions=True)
        assert [type(one) for one in results] == [StoreUnavailable] * 3
        await counters.aclose()


async def test_debt_may_grow(counters: Counters, owner: str) -> None:
    """Usage is recorded whatever the debt."""
    drawn = [await counters.consume(owner, [TokenCharge("tokens", 1, amount=1000)]) for _ in range(2)]
    assert [(one.granted, rounded(one.missing)) for one in drawn] == [(True, [1000]), (True, [2000])]
