"""The memory store's bounds and its eviction order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StoreUnavailable
from app.stores.memory import MemoryStore
from tests.support.store_locations import Clock


async def test_least_recently_used_chain_is_evicted_first_and_whole() -> None:
    store = MemoryStore(ttl=100, max_records=4)
    await store.put("a:1", "resp_1", b"1")
    await store.put("a:1", "resp_2", b"2")
    await store.put("a:2", "resp_3", b"3")
    await store.put("a:3", "resp_4", b"4")

    await store.put("a:4", "resp_5", b"5")

    assert await store.all("a:1") == {}
    assert await store.all("a:2") == {"resp_3": b"3"}
    assert await store.all("a:3") == {"resp_4": b"4"}
    assert await store.all("a:4") == {"resp_5": b"5"}


async def test_use_protects_a_chain() -> None:
    store = MemoryStore(ttl=100, max_records=2)
    await store.put("a:1", "resp_1", b"1")
    await store.put("a:2", "resp_2", b"2")
    await store.get("a:1", "resp_1")

    await store.put("a:3", "resp_3", b"3")

    assert await store.all("a:2") == {}
    assert await store.all("a:1") == {"resp_1": b"1"}


async def test_bytes_are_bounded() -> None:
    store = MemoryStore(ttl=100, max_bytes=100_000)
    for number in range(10):
        await store.put(f"a:{number}", "resp_1", bytes(40_000))

    assert [number for number in range(10) if await store.all(f"a:{number}")] == [8, 9]
    assert store.records == 2
    assert 80_000 < store.bytes <= 100_000


async def test_small_records_count_with_their_overhead() -> None:
    store = MemoryStore(ttl=100, max_bytes=100_000)
    for number in range(1000):
        await store.put(f"a:{number}", "resp_1", b"")

    assert store.records < 500


async def test_record_that_is_replaced_counts_once() -> None:
    store = MemoryStore(ttl=100, max_records=2, max_bytes=10_000)
    await store.put("a:other", "resp_0", b"0")
    before = store.bytes
    for size in (5000, 100, 8000, 3000):
        await store.put("a:1", "resp_1", bytes(size))
    await store.delete("a:1", "resp_1")

    assert store.bytes == before
    assert store.records == 1
    assert await store.all("a:other") == {"resp_0": b"0"}


async def test_record_beyond_the_bound_is_refused_and_evicts_nothing() -> None:
    store = MemoryStore(ttl=100, max_bytes=10_000)
    await store.put("a:1", "resp_1", b"1")
    await store.put("a:2", "resp_2", b"2")

    with pytest.raises(StoreUnavailable, match="larger than the response store allows"):
        await store.put("a:3", "resp_3", bytes(10_000))

    assert await store.all("a:1") == {"resp_1": b"1"}
    assert await store.all("a:2") == {"resp_2": b"2"}
    assert await store.all("a:3") == {}


async def test_chain_beyond_the_bound_is_refused_and_keeps_its_records() -> None:
    store = MemoryStore(ttl=100, max_records=3)
    await store.put("a:other", "resp_0", b"0")
    for number in (1, 2, 3):
        await store.put("a:1", f"resp_{number}", b"%d" % number)

    with pytest.raises(StoreUnavailable, match="larger than the response store allows"):
        await store.put("a:1", "resp_4", b"4")
    await store.put("a:1", "resp_3", b"new")

    assert await store.all("a:1") == {"resp_1": b"1", "resp_2": b"2", "resp_3": b"new"}


async def test_expired_records_do_not_accumulate() -> None:
    """Most chains are left without a word: nothing but new ones comes to sweep them out."""
    clock = Clock()
    store = MemoryStore(ttl=100, clock=clock)
    for number in range(1000):
        await store.put(f"a:{number}", "resp_1", b"1")
    clock.now += 101
    for number in range(1000):
        await store.put(f"b:{number}", "resp_1", b"1")

    assert store.records == 1000


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("memory://", 100),
        ("memory:", 100),
        ("memory://?max_records=7", 7),
        ("memory://?max_records=9&max_bytes=3000", 5),
    ],
)
async def test_bounds_are_in_the_url(url: str, kept: int) -> None:
    store = MemoryStore.from_url(url, ttl=100)
    for number in range(100):
        await store.put(f"a:{number}", "resp_1", b"1")

    assert store.records == kept


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("memory://localhost", "neither host nor path"),
        ("memory:///a/file", "neither host nor path"),
        ("memory://?max_record=1", "unknown option 'max_record'. Known options: max_bytes, max_records."),
        ("memory://?max_records=many", "'max_records' is malformed: expected a positive whole number"),
        ("memory://?max_records=0", "'max_records' is malformed"),
        ("memory://?max_bytes=", "'max_bytes' is malformed"),
        ("memory://?max_bytes=1e9", "'max_bytes' is malformed"),
    ],
)
def test_url_that_is_invalid_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(ValueError) as refused:
        MemoryStore.from_url(url, ttl=100)

    assert complaint in str(refused.value)


CHAINS = [f"a:{number}" for number in range(6)]


@given(
    puts=st.lists(
        st.tuples(st.sampled_from(CHAINS), st.integers(0, 3), st.integers(0, 3000), st.sampled_from([0, 1, 60, 120])),
        max_size=50,
    )
)
async def test_bounds_hold_for_any_changes_and_chains_stay_whole(puts: list[tuple[str, int, int, int]]) -> None:
    clock = Clock()
    store = MemoryStore(ttl=100, max_records=6, max_bytes=9000, clock=clock)
    kept: dict[str, dict[str, bytes]] = {chain: {} for chain in CHAINS}
    for turn, (chain, name, size, seconds) in enumerate(puts):
        clock.now += seconds
        if seconds > 100:
            kept = {chain: {} for chain in CHAINS}
        record = bytes([turn]) * size
        try:
            await store.put(chain, f"resp_{name}", record)
        except StoreUnavailable:
            expected = kept[chain]
        else:
            expected = kept[chain] | {f"resp_{name}": record}
        found = {chain: await store.all(chain) for chain in CHAINS}

        assert store.records == sum(map(len, found.values())) <= 6
        assert store.bytes <= 9000
        assert found[chain] == expected
        assert all(found[other] in ({}, kept[other]) for other in CHAINS if other != chain)
        kept = found


async def test_expired_records_go_faster_than_others_come() -> None:
    clock = Clock()
    store = MemoryStore(ttl=100, clock=clock)
    for number in range(1000):
        await store.put(f"a:{number}", "resp_1", b"1")
    clock.now += 101
    for number in range(500):
        await store.put(f"b:{number}", "resp_1", b"1")

    assert store.records == 500
