"""The store contract: memory, SQLite, Redis and Redis Cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.stores import LISTED, Change, ServerStore, Store, images_partition
from tests.support.store_locations import SHARED, TTL, Memory, StoreLocation

CHAIN = "2f1c9a:c0ffee"
CONVERSATION = f"{CHAIN}:conversation"


@pytest.fixture
async def store(location: StoreLocation) -> AsyncIterator[Store]:
    store = location.open()
    yield store
    await store.aclose()


@pytest.fixture
async def another(location: StoreLocation) -> AsyncIterator[Store]:
    """Another store at the same location, as another process has it."""
    store = location.open()
    yield store
    await store.aclose()


async def test_record_comes_back_byte_for_byte(store: Store) -> None:
    for bucket, record in {
        "a:empty": b"",
        "a:null": b"\x00",
        "a:nulls": b"a\x00b\x00\x00",
        "a:bytes": bytes(range(256)),
        "a:protocol": b"\r\n$5\r\n*3\r\n",
        "a:unicode": "naïve ☕ \u2028".encode(),
        "a:json": b'{"id": null}',
        "a:large": bytes(range(256)) * 4096,
    }.items():
        await store.put(bucket, "resp_1", record)

        assert await store.get(bucket, "resp_1") == record
        assert await store.all(bucket) == {"resp_1": record}


async def test_record_replaces_the_one_of_its_name(store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"in_progress")
    await store.put(CHAIN, "resp_2", b"other")
    await store.put(CHAIN, "resp_1", b"completed")

    assert await store.all(CHAIN) == {"resp_1": b"completed", "resp_2": b"other"}


async def test_record_that_was_never_put_is_not_found(store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")

    assert await store.get(CHAIN, "resp_2") is None
    assert await store.get("2f1c9a:other", "resp_1") is None
    assert await store.all("2f1c9a:other") == {}
    assert await store.delete(CHAIN, "resp_2") is False
    assert await store.delete("2f1c9a:other", "resp_1") is False
    assert await store.all(CHAIN) == {"resp_1": b"1"}


async def test_names_of_a_bucket_are_those_of_its_records(store: Store) -> None:
    assert await store.names(CHAIN) == set()
    await store.apply(Change(CHAIN, {"resp_1": b"1", "resp_2": b"2"}, entries={"resp_1": b"entry"}))
    await store.put(CONVERSATION, "other", b"3")
    assert await store.names(CHAIN) == {"resp_1", "resp_2"}
    await store.delete(CHAIN, "resp_1")
    assert await store.names(CHAIN) == {"resp_2"}


async def test_buckets_never_mix(store: Store) -> None:
    buckets = ["a:b", "a:bc", "a", "b", "A:B", "a:b ", "*", "a:*", "{a}:b", "a}:b", "%", "a:_", "b:a", "a:b:c"]
    for bucket in buckets:
        await store.put(bucket, "resp_1", bucket.encode())
    await store.delete("*", "resp_1")
    await store.delete("%", "resp_1")

    kept = {bucket: await store.all(bucket) for bucket in buckets}

    assert kept == {bucket: {} if bucket in "*%" else {"resp_1": bucket.encode()} for bucket in buckets}


async def test_delete_forgets_one_record_once(store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    await store.put(CHAIN, "resp_2", b"2")

    assert await store.delete(CHAIN, "resp_1") is True
    assert await store.delete(CHAIN, "resp_1") is False
    assert await store.get(CHAIN, "resp_1") is None
    assert await store.all(CHAIN) == {"resp_2": b"2"}


async def test_bucket_can_be_emptied_and_filled_again(store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    await store.delete(CHAIN, "resp_1")
    assert await store.all(CHAIN) == {}

    await store.put(CHAIN, "resp_1", b"again")
    assert await store.all(CHAIN) == {"resp_1": b"again"}


async def test_changes_of_several_buckets_are_made_together(store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    await store.put(CONVERSATION, "added_1", b"1")
    changes = (
        Change(CHAIN, {"resp_2": b"2", "resp_3": bytes(range(256))}, delete=["resp_1", "resp_never"]),
        Change(CONVERSATION, {"added_2": b"2"}, requires="added_1"),
        Change(f"{CHAIN}:other", {"new": b""}),
    )

    assert await store.apply(*changes) is True
    assert await store.all(CHAIN) == {"resp_2": b"2", "resp_3": bytes(range(256))}
    assert await store.all(CONVERSATION) == {"added_1": b"1", "added_2": b"2"}
    assert await store.all(f"{CHAIN}:other") == {"new": b""}


@pytest.mark.parametrize("missing", ["never there", "deleted", "dropped", "expired", "of another bucket"])
async def test_change_that_depends_on_a_missing_record_is_not_made(
    location: StoreLocation, store: Store, missing: str
) -> None:
    if missing != "never there":
        await store.put(CONVERSATION if missing != "of another bucket" else CHAIN, "itself", b"0")
    match missing:
        case "deleted":
            await store.delete(CONVERSATION, "itself")
        case "dropped":
            await store.delete_partition(CONVERSATION)
        case "expired":
            location.advance(1.1 * TTL)
    await store.put(CHAIN, "resp_1", b"1")
    before = await store.all(CHAIN), await store.all(CONVERSATION)
    changes = (
        Change(CHAIN, {"resp_2": b"2"}, delete=["resp_1"]),
        Change(CONVERSATION, {"added_1": b"1"}, requires="itself"),
    )

    assert await store.apply(*changes) is False
    assert await store.apply(*reversed(changes)) is False
    assert (await store.all(CHAIN), await store.all(CONVERSATION)) == before


@pytest.mark.parametrize("how", ["delete", "drop", "change", "expire"])
async def test_index_entries_of_a_record_go_with_it(location: StoreLocation, store: Store, how: str) -> None:
    await store.apply(Change(CHAIN, {"resp_1": b"record"}, entries={"resp_1": b"c4n4ry"}))
    assert b"c4n4ry" in location.contents()
    match how:
        case "delete":
            await store.delete(CHAIN, "resp_1")
        case "drop":
            await store.delete_partition(CHAIN)
        case "change":
            await store.apply(Change(CHAIN, {}, delete=["resp_1"]))
        case "expire":
            for _ in range(3):  # while others are listed
                location.advance(0.5 * TTL)
                await store.apply(Change("2f1c9a:other", {"resp_2": b"record"}, entries={"resp_2": b"entry"}))
            await store.delete_expired()
    gone = Change(CHAIN, {"resp_1": b"record"}, requires="resp_1", entries={"resp_1": b"c4n4ry"})
    assert await store.apply(gone) is False
    assert b"c4n4ry" not in location.contents()
    assert b"c4n4ry" not in (await store.recent("2f1c9a", limit=10) or [])


async def test_record_is_replaced_under_another_name_by_one_of_many(store: Store) -> None:
    """Replacing an already rewritten record must not restore its removed parts."""
    await store.put(CHAIN, "version_0", b"ab")
    changes = [
        Change(CHAIN, {f"version_{n}": b"%d" % n}, delete=["version_0"], requires="version_0") for n in range(1, 20)
    ]
    made = await asyncio.gather(*(store.apply(change) for change in changes))

    assert sum(made) == 1
    assert await store.all(CHAIN) == dict(changes[made.index(True)].put)


async def test_change_renews_the_bucket(location: StoreLocation, store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    for _ in range(3):
        location.advance(0.6 * TTL)
        assert await store.apply(Change(CHAIN, {"resp_2": b"2"}, requires="resp_1"))
    assert await store.all(CHAIN) == {"resp_1": b"1", "resp_2": b"2"}


async def test_record_is_added_once(location: StoreLocation, store: Store) -> None:
    assert await store.add(CHAIN, "used", b"1") is True
    assert await store.add(CHAIN, "used", b"2") is False
    assert await store.add(CHAIN, "other", b"3") is True
    assert await store.all(CHAIN) == {"used": b"1", "other": b"3"}
    for _ in range(3):  # rejected additions renew the bucket, too
        location.advance(0.6 * TTL)
        assert await store.add(CHAIN, "used", b"4") is False
    location.advance(1.1 * TTL)
    assert await store.add(CHAIN, "used", b"5") is True
    assert await store.all(CHAIN) == {"used": b"5"}


async def test_record_added_by_many_at_once_is_added_by_one(
    location: StoreLocation, store: Store, another: Store
) -> None:
    stores = [store] if isinstance(location, Memory) else [store, another]
    for attempt in range(5):
        added = await asyncio.gather(
            *(which.add(f"{CHAIN}:{attempt}", "used", b"%d" % n) for n, which in enumerate(stores * 5))
        )
        assert sorted(added) == [*[False] * (len(added) - 1), True]
        assert await store.get(f"{CHAIN}:{attempt}", "used") == b"%d" % added.index(True)


async def test_bucket_without_records_does_not_exist(store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    assert await store.apply(Change(CHAIN, {}, delete=["resp_1"])) is True
    assert await store.apply(Change(CHAIN, {}, delete=["resp_1"])) is True
    assert await store.delete_partition(CHAIN) is False
    await store.put(CHAIN, "resp_1", b"1")
    await store.delete(CHAIN, "resp_1")
    assert await store.delete_partition(CHAIN) is False
    assert await store.all(CHAIN) == {}


async def test_bucket_is_dropped_once_and_no_other_with_it(store: Store) -> None:
    for bucket in (CHAIN, CONVERSATION, "2f1c9a:other"):
        for number in range(3):
            await store.put(bucket, f"resp_{number}", b"1")

    assert await store.delete_partition(CHAIN) is True
    assert await store.delete_partition(CHAIN) is False
    assert await store.delete_partition("2f1c9a:never") is False
    assert await store.all(CHAIN) == {}
    assert len(await store.all(CONVERSATION)) == len(await store.all("2f1c9a:other")) == 3


async def test_bucket_that_has_expired_cannot_be_dropped(location: StoreLocation, store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    location.advance(1.1 * TTL)
    assert await store.delete_partition(CHAIN) is False


@pytest.mark.parametrize("how", ["delete", "drop"])
async def test_records_added_during_a_deletion_are_not_kept(
    location: StoreLocation, store: Store, another: Store, how: str
) -> None:
    """Joining and deleting agree, in whatever order they come, also from two processes where these share the store."""
    deleting = store if isinstance(location, Memory) else another
    for attempt in range(20):
        bucket = f"{CONVERSATION}:{attempt}"
        await store.put(bucket, "itself", b"0")
        change = Change(bucket, {"itself" if how == "delete" else "added": b"1"}, requires="itself")
        adding = [asyncio.create_task(store.apply(change)) for _ in range(10)]
        for _ in range(attempt):
            await asyncio.sleep(0)
        assert (
            await (deleting.delete(bucket, "itself") if how == "delete" else deleting.delete_partition(bucket)) is True
        )
        assert await store.all(bucket) == {}
        await asyncio.gather(*adding)
        assert await store.all(bucket) == {}


async def test_thousands_of_records_fit_in_one_bucket(store: Store) -> None:
    records = {f"resp_{number}": b"%d" % number for number in range(3000)}
    names = iter(records)
    tens = [{name: records[name] for name in ten} for ten in zip(*[names] * 10, strict=True)]
    await asyncio.gather(*(store.apply(Change(CHAIN, ten)) for ten in tens))

    assert await store.all(CHAIN) == records


async def test_bucket_that_is_unused_expires_as_a_whole(location: StoreLocation, store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    await store.put(CHAIN, "resp_2", b"2")
    location.advance(1.1 * TTL)

    assert await store.get(CHAIN, "resp_1") is None
    assert await store.all(CHAIN) == {}
    assert await store.delete(CHAIN, "resp_2") is False


async def test_expired_records_are_gone_before_a_sweep(location: StoreLocation, store: Store) -> None:
    for number in range(10):
        await store.put(f"a:{number}", "resp_1", b"1")
    location.advance(1.1 * TTL)

    assert [await store.get(f"a:{number}", "resp_1") for number in reversed(range(10))] == [None] * 10


async def add(store: Store, bucket: str, name: str, entry: bytes) -> None:
    """Put a listed record."""
    await store.apply(Change(bucket, {name: b"record"}, entries={name: entry}))


async def test_records_of_an_owner_are_listed_newest_first(store: Store) -> None:
    for number in range(5):
        await add(store, f"a:{number % 2}", f"resp_{number}", b"entry %d" % number)
    await add(store, "b:0", "resp_9", b"another's")
    await store.put("a:0", "added_1", b"not listed")

    assert await store.recent("a", limit=10) == [b"entry 4", b"entry 3", b"entry 2", b"entry 1", b"entry 0"]
    assert await store.recent("a", limit=2) == [b"entry 4", b"entry 3"]
    assert await store.recent("a", limit=2, after="resp_3") == [b"entry 2", b"entry 1"]
    assert await store.recent("a", limit=2, after="resp_0") == []
    assert await store.recent("b", limit=10) == [b"another's"]
    assert await store.recent("c", limit=10) == []


async def test_list_after_an_unknown_record_is_empty(store: Store) -> None:
    await add(store, "a:1", "resp_1", b"entry")
    await add(store, "b:1", "resp_2", b"entry")

    for stranger in ("resp_0", "resp_2", "added_1"):
        assert await store.recent("a", limit=10, after=stranger) is None


async def test_replaced_record_keeps_its_place_in_the_list(store: Store) -> None:
    await add(store, "a:1", "resp_1", b"queued")
    await add(store, "a:2", "resp_2", b"other")
    await add(store, "a:1", "resp_1", b"completed")

    assert await store.recent("a", limit=10) == [b"other", b"completed"]


async def test_deleted_record_is_not_listed(store: Store) -> None:
    for number in range(3):
        await add(store, "a:1", f"resp_{number}", b"entry %d" % number)
    await store.delete("a:1", "resp_1")

    assert await store.recent("a", limit=10) == [b"entry 2", b"entry 0"]
    assert await store.recent("a", limit=10, after="resp_1") is None


async def test_expired_record_is_not_listed(location: StoreLocation, store: Store) -> None:
    await add(store, "a:1", "resp_1", b"old")
    await add(store, "a:2", "resp_2", b"renewed")
    location.advance(0.6 * TTL)
    await store.get("a:2", "resp_2")
    await add(store, "a:3", "resp_3", b"new")
    location.advance(0.6 * TTL)

    assert await store.recent("a", limit=10) == [b"new", b"renewed"]


async def test_listing_renews_nothing(location: StoreLocation, store: Store) -> None:
    await add(store, "a:1", "resp_1", b"entry")
    for _ in range(3):
        location.advance(0.4 * TTL)
        await store.recent("a", limit=10)

    assert await store.recent("a", limit=10) == []
    assert await store.all("a:1") == {}


async def test_newest_of_many_records_are_listed(store: Store) -> None:
    for bucket in range(LISTED // 20):
        old = {f"old_{bucket}_{number}": b"old" for number in range(20)}
        await store.apply(Change(f"a:{bucket % 7}", old, entries=old))
    for number in range(110):
        await add(store, f"a:{number % 7}", f"resp_{number}", b"%d" % number)

    assert await store.recent("a", limit=100) == [b"%d" % (109 - number) for number in range(100)]


async def test_every_process_lists_the_same(location: StoreLocation, store: Store) -> None:
    if isinstance(location, Memory):
        return
    other = location.open()
    await add(store, "a:1", "resp_1", b"first")
    await add(other, "a:1", "resp_2", b"second")

    assert await store.recent("a", limit=10) == await other.recent("a", limit=10) == [b"second", b"first"]
    await other.aclose()


@pytest.mark.parametrize("use", ["put", "add", "add again", "get", "get what is not there", "all", "names"])
async def test_any_use_renews_the_whole_bucket(location: StoreLocation, store: Store, use: str) -> None:
    """And its images' bucket."""
    await store.put(CHAIN, "resp_1", b"1")
    await store.put(images_partition(CHAIN), "resp_1", b"an image")
    await store.put(CHAIN, "resp_2", b"2")
    for n in range(3, 7):
        location.advance(0.6 * TTL)
        match use:
            case "put":
                await store.put(CHAIN, "resp_2", b"2")
            case "add":
                await store.add(CHAIN, f"resp_{n}", b"3")
            case "add again":
                await store.add(CHAIN, "resp_2", b"3")
            case "get":
                await store.get(CHAIN, "resp_2")
            case "get what is not there":
                await store.get(CHAIN, "resp_3")
            case "all":
                await store.all(CHAIN)
            case "names":
                await store.names(CHAIN)
    location.advance(0.6 * TTL)

    assert await store.all(images_partition(CHAIN)) == {"resp_1": b"an image"}
    assert (await store.all(CHAIN)).items() >= {"resp_1": b"1", "resp_2": b"2"}.items()
    location.advance(1.1 * TTL)
    assert await store.all(CHAIN) == await store.all(images_partition(CHAIN)) == {}


async def test_images_last_as_long_as_what_is_often_added_to(location: StoreLocation, store: Store) -> None:
    await store.apply(Change(CHAIN, {"resp_1": b"1"}), Change(images_partition(CHAIN), {"resp_1": b"an image"}))
    for n in range(20):
        location.advance(0.008 * TTL)
        await store.names(CHAIN)
        await store.put(CHAIN, f"resp_{n}", b"1")
    location.advance(0.9 * TTL)

    assert await store.get(images_partition(CHAIN), "resp_1") == b"an image"


async def test_frequent_use_renews_too(location: StoreLocation, store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    for _ in range(20):
        location.advance(0.008 * TTL)
        await store.get(CHAIN, "resp_1")
    location.advance(0.9 * TTL)

    assert await store.get(CHAIN, "resp_1") == b"1"


async def test_delete_does_not_renew(location: StoreLocation, store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    await store.put(CHAIN, "resp_2", b"2")
    location.advance(0.6 * TTL)
    await store.delete(CHAIN, "resp_2")
    location.advance(0.6 * TTL)

    assert await store.all(CHAIN) == {}


async def test_question_for_a_record_does_not_renew(location: StoreLocation, store: ServerStore) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    location.advance(0.6 * TTL)
    assert await store.exists(CHAIN, "resp_1")
    assert not await store.exists(CHAIN, "resp_2")
    location.advance(0.6 * TTL)
    assert not await store.exists(CHAIN, "resp_1")


async def test_use_of_one_bucket_does_not_renew_another(location: StoreLocation, store: Store) -> None:
    await store.put("a:1", "resp_1", b"1")
    await store.put("a:2", "resp_2", b"2")
    location.advance(0.6 * TTL)
    await store.all("a:2")
    location.advance(0.6 * TTL)

    assert await store.all("a:1") == {}
    assert await store.all("a:2") == {"resp_2": b"2"}


async def test_expired_records_do_not_come_back(location: StoreLocation, store: Store) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    location.advance(1.1 * TTL)
    await store.put(CHAIN, "resp_2", b"2")

    assert await store.all(CHAIN) == {"resp_2": b"2"}
    assert await store.get(CHAIN, "resp_1") is None


async def test_ttl_may_have_a_fraction(location: StoreLocation) -> None:
    store = location.open(ttl=100.75)
    await store.put(CHAIN, "resp_1", b"1")
    location.advance(90)
    assert await store.get(CHAIN, "resp_1") == b"1"
    location.advance(100.8)
    assert await store.get(CHAIN, "resp_1") is None
    await store.aclose()


async def test_concurrent_callers_get_their_own_records(store: Store) -> None:
    async def converse(bucket: str) -> dict[str, bytes]:
        for turn in range(3):
            await store.put(bucket, f"resp_{turn}", f"{bucket} {turn}".encode())
            assert await store.get(bucket, f"resp_{turn}") == f"{bucket} {turn}".encode()
        await store.delete(bucket, "resp_0")
        return await store.all(bucket)

    buckets = [f"a:{number}" for number in range(100)]
    chains = await asyncio.gather(*map(converse, buckets))

    assert chains == [{f"resp_{turn}": f"{bucket} {turn}".encode() for turn in range(1, 3)} for bucket in buckets]


async def test_cancelled_caller_leaves_nothing_to_the_next(store: Store) -> None:
    """Clients disconnect at any time; their pending results must not reach anybody else."""
    buckets = [f"a:{number}" for number in range(10)]
    for bucket in buckets:
        await store.put(bucket, "resp_1", bucket.encode() * 2000)

    async def go_after(steps: int, bucket: str) -> None:
        calls = [store.get(bucket, "resp_1"), store.all(bucket), store.put(bucket, "resp_2", b"2"), store.check()]
        tasks = [asyncio.create_task(call) for call in calls]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for steps in range(40):
        await asyncio.gather(*(go_after(steps, bucket) for bucket in buckets[:3]))
        records = await asyncio.gather(*(store.get(bucket, "resp_1") for bucket in buckets))
        assert records == [bucket.encode() * 2000 for bucket in buckets], f"cancelled after {steps} steps"


@pytest.mark.parametrize("location", SHARED, indirect=True)
async def test_stores_at_one_location_see_each_other_at_once(
    location: StoreLocation, store: Store, another: Store
) -> None:
    await store.put(CHAIN, "resp_1", b"1")
    assert await another.get(CHAIN, "resp_1") == b"1"

    await another.put(CHAIN, "resp_2", b"2")
    assert await store.all(CHAIN) == {"resp_1": b"1", "resp_2": b"2"}

    assert await store.delete(CHAIN, "resp_1") is True
    assert await another.get(CHAIN, "resp_1") is None

    location.advance(0.6 * TTL)
    await another.get(CHAIN, "resp_2")
    location.advance(0.6 * TTL)
    assert await store.get(CHAIN, "resp_2") == b"2"


@pytest.mark.parametrize("location", SHARED, indirect=True)
async def test_stores_at_one_location_lose_nothing_of_each_other(store: Store, another: Store) -> None:
    records = {f"resp_{number}": b"%d" % number for number in range(200)}
    await asyncio.gather(
        *(which.put(CHAIN, name, records[name]) for which, name in zip(itertools.cycle([store, another]), records))
    )

    assert await store.all(CHAIN) == records


async def test_purge_leaves_only_what_is_in_use(location: StoreLocation, store: Store) -> None:
    for number in range(50):
        await store.put(f"a:{number}", "resp_1", b"expired")
    location.advance(0.6 * TTL)
    await store.put("b:1", "resp_1", b"in use")
    location.advance(0.6 * TTL)
    await store.delete_expired()
    await store.delete_expired()

    assert b"expired" not in location.contents()
    assert await store.all("b:1") == {"resp_1": b"in use"}


async def test_purge_of_an_unused_store_purges_nothing(location: StoreLocation) -> None:
    store = location.open()
    await store.delete_expired()
    await store.aclose()


async def test_healthy_store_says_so(store: Store) -> None:
    await store.check()
    await store.put(CHAIN, "resp_1", b"1")
    await store.check()

    assert await store.all(CHAIN) == {"resp_1": b"1"}


async def test_closing_twice_is_accepted(location: StoreLocation) -> None:
    store = location.open()
    await store.put(CHAIN, "resp_1", b"1")
    await store.aclose()
    await store.aclose()


async def test_closing_an_unused_store_is_accepted(location: StoreLocation) -> None:
    await location.open().aclose()


# Steps of 0.3 TTL never come near an expiry: after three steps a bucket still exists, after four it is gone.
STEP = 0.3
names = st.sampled_from(["resp_1", "resp_2", "resp_3"])
chains = st.sampled_from(["1", "2"])
moves = st.one_of(
    st.tuples(st.just("put"), chains, names, st.binary(max_size=20)),
    st.tuples(st.just("get"), chains, names),
    st.tuples(st.just("delete"), chains, names),
    st.tuples(st.just("apply"), chains, names, st.binary(max_size=20), st.lists(names), st.none() | names),
    st.tuples(st.just("all"), chains),
    st.tuples(st.just("drop"), chains),
    st.tuples(st.just("advance"), st.integers(1, 3)),
)
fresh = itertools.count()


@given(moves=st.lists(moves, min_size=5, max_size=25))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_store_behaves_as_a_dict_that_forgets(location: StoreLocation, store: Store, moves: list[tuple]) -> None:
    example = next(fresh)
    kept: dict[str, dict[str, bytes]] = {}
    used: dict[str, int] = {}
    now = 0
    for move in moves:
        for chain in [chain for chain in kept if now - used[chain] >= 4]:
            del kept[chain]
        match move:
            case "advance", steps:
                location.advance(steps * STEP * TTL)
                now += steps
            case "put", chain, name, record:
                await store.put(f"{example}:{chain}", name, record)
                kept.setdefault(chain, {})[name] = record
                used[chain] = now
            case "get", chain, name:
                assert await store.get(f"{example}:{chain}", name) == kept.get(chain, {}).get(name)
                used[chain] = now
            case "apply", chain, name, record, delete, given:
                delete = [one for one in delete if one != name]
                made = given is None or given in kept.get(chain, {})
                change = Change(f"{example}:{chain}", {name: record}, delete, given)
                assert await store.apply(change) is made
                if made:
                    left = {one: what for one, what in kept.get(chain, {}).items() if one not in delete}
                    kept[chain] = {**left, name: record}
                    used[chain] = now
            case "drop", chain:
                assert await store.delete_partition(f"{example}:{chain}") is bool(kept.pop(chain, None))
            case "all", chain:
                assert await store.all(f"{example}:{chain}") == kept.get(chain, {})
                used[chain] = now
            case "delete", chain, name:
                there = kept.get(chain, {}).pop(name, None) is not None
                assert await store.delete(f"{example}:{chain}", name) is there
