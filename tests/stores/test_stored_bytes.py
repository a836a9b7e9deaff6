"""Every store measures the bytes of an owner's records: deleted and expired ones do not count."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.stores import Change, Store, images_partition
from tests.support.store_locations import SHARED, TTL, StoreLocation

OWNER, OTHER = "2f1c9a", "2f1c9"
CHAIN = f"{OWNER}:c0ffee"
MEGABYTE = 1_000_000
OVERHEAD = 300_000  # per megabyte: Redis counts its allocations


@pytest.fixture
async def store(location: StoreLocation) -> AsyncIterator[Store]:
    store = location.open()
    assert await store.stored_bytes(OWNER) == 0
    yield store
    await store.aclose()


async def megabytes(store: Store, owner: str = OWNER) -> float:
    """The owner's megabytes, without the store's overhead."""
    stored = await store.stored_bytes(owner)
    whole = stored // MEGABYTE
    assert stored - whole * MEGABYTE <= OVERHEAD * max(1, whole)
    return whole


async def test_bytes_of_an_owner_are_those_of_all_its_buckets(store: Store) -> None:
    record = bytes(MEGABYTE)
    await store.apply(Change(CHAIN, {"resp_1": record}, entries={"resp_1": b"{}"}))
    assert await megabytes(store) == 1
    images = Change(images_partition(CHAIN), {"resp_2": record})
    await store.apply(Change(CHAIN, {"resp_2": 2 * record}), images)
    assert await megabytes(store) == 4
    await store.apply(Change(f"{OWNER}:decaf:conversation", {"conversation": b"{}", "added_1": record}))
    assert await megabytes(store) == 5


async def test_bytes_of_other_owners_do_not_count(store: Store) -> None:
    await store.apply(Change(f"{OTHER}:c0ffee", {"resp_1": bytes(MEGABYTE)}))
    await store.apply(Change(f"{OWNER}0:c0ffee", {"resp_1": bytes(MEGABYTE)}))
    assert await megabytes(store) == 0
    assert await megabytes(store, OTHER) == 1


async def test_record_that_is_replaced_counts_once(store: Store) -> None:
    for _ in range(2):
        await store.apply(Change(CHAIN, {"resp_1": bytes(MEGABYTE)}))
    assert await megabytes(store) == 1
    await store.apply(Change(CHAIN, {"resp_1": b""}))
    assert await megabytes(store) == 0


async def test_deleted_records_and_buckets_do_not_count(store: Store) -> None:
    conversation = f"{OWNER}:decaf:conversation"
    await store.apply(Change(CHAIN, {"resp_1": bytes(MEGABYTE), "resp_2": bytes(MEGABYTE)}))
    await store.apply(Change(conversation, {"added_1": bytes(MEGABYTE)}))
    assert await megabytes(store) == 3
    await store.delete(CHAIN, "resp_1")
    assert await megabytes(store) == 2
    await store.apply(Change(CHAIN, {}, delete=["resp_2"]))
    assert await megabytes(store) == 1
    await store.delete_partition(conversation)
    assert await store.stored_bytes(OWNER) == 0
    await store.apply(Change(conversation, {"added_1": bytes(MEGABYTE)}))
    assert await megabytes(store) == 1


async def test_expired_buckets_do_not_count(location: StoreLocation, store: Store) -> None:
    await store.apply(Change(CHAIN, {"resp_1": bytes(MEGABYTE)}))
    location.advance(0.9 * TTL)
    await store.apply(Change(f"{OWNER}:decaf", {"resp_2": bytes(MEGABYTE)}))
    assert await megabytes(store) == 2
    location.advance(0.2 * TTL)
    assert await megabytes(store) == 1
    location.advance(TTL)
    assert await store.stored_bytes(OWNER) == 0


async def test_bucket_in_use_still_counts(location: StoreLocation, store: Store) -> None:
    await store.apply(Change(CHAIN, {"resp_1": bytes(MEGABYTE)}))
    for _ in range(3):
        location.advance(0.9 * TTL)
        assert await megabytes(store) == 1
        assert await store.get(CHAIN, "resp_1")
    assert await megabytes(store) == 1


async def test_hundreds_of_buckets_count(store: Store) -> None:
    for number in range(256):
        await store.apply(Change(f"{OWNER}:{number:06x}", {"resp_1": bytes(8_000)}))
    assert await megabytes(store) == 2
    for number in range(0, 256, 2):
        await store.delete_partition(f"{OWNER}:{number:06x}")
    assert await megabytes(store) == 1


@pytest.mark.parametrize("location", SHARED, indirect=True)
async def test_bytes_stored_by_another_process_count(location: StoreLocation, store: Store) -> None:
    another = location.open()
    assert await another.stored_bytes(OWNER) == 0
    await another.apply(Change(CHAIN, {"resp_1": bytes(MEGABYTE)}))
    assert await megabytes(store) == 1
    await another.aclose()
