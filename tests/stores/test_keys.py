"""One contract for keys in the store, over all stores: no change is lost, and none is made to an old state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from app.stores import keys as keys_module
from app.stores.keys import KeyChange, KeySnapshot, Secret, StoredKey, StoredKeys
from app.stores.memory import MemoryStore
from tests.support.store_locations import SHARED, TTL, StoreLocation, location_of

ALICE = StoredKey(
    "key_a",
    "alice",
    "team",
    models=["qwen*"],
    tools=[],
    admin=True,
    requests_per_minute=6,
    tokens_per_minute=0,
    max_concurrent=2,
    budgets={"tokens_per_day": 10},
    max_stored_bytes=7,
    expires_at=2_000_000_000,
    created_at=1_790_000_000,
    secrets=[Secret("ab" * 32), Secret("cd" * 32, 1_800_000_000)],
)


def change(key: StoredKey = ALICE, id: str = "one", action: str = "create") -> KeyChange:
    return KeyChange(id, 1_790_000_000.5, "ops", action, key, None, {"name": key.name})


@contextlib.asynccontextmanager
async def keys_at(location: StoreLocation) -> AsyncIterator[StoredKeys]:
    store = location.open()
    yield StoredKeys(store.lasting())
    await store.aclose()


@pytest.fixture
async def keys(location: StoreLocation) -> AsyncIterator[StoredKeys]:
    async with keys_at(location) as keys:
        yield keys


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest, tmp_path: Any) -> StoreLocation:
    return location_of(request, tmp_path)


async def test_added_change_is_read_with_its_key(keys: StoredKeys) -> None:
    assert await keys.read() == KeySnapshot([])
    assert not await keys.has_changed(0)
    assert await keys.add(KeySnapshot(), change())
    assert await keys.has_changed(0) and not await keys.has_changed(1)
    [read] = (await keys.read()).changes
    assert read == replace(change(), number=1)
    assert read.key.access() == ALICE.access()


async def test_change_of_an_old_state_is_refused(keys: StoredKeys) -> None:
    empty = await keys.read()
    assert await keys.add(empty, change())
    assert not await keys.add(empty, change(id="two"))
    assert [made.id for made in (await keys.read()).changes] == ["one"]


async def test_repeated_change_whose_first_write_arrived_is_confirmed(keys: StoredKeys) -> None:
    assert await keys.add(KeySnapshot(), change())
    assert await keys.add(KeySnapshot(), change())
    assert (await keys.read()).revision == 1


async def test_concurrent_changes_of_one_state_are_made_once(keys: StoredKeys) -> None:
    empty = await keys.read()
    made = await asyncio.gather(*(keys.add(empty, change(id=f"{number}")) for number in range(8)))
    assert made.count(True) == 1
    assert (await keys.read()).revision == 1


async def test_last_change_of_each_key_is_its_state(keys: StoredKeys) -> None:
    bob = replace(ALICE, id="key_b", name="bob")
    for number, key in enumerate([ALICE, bob, replace(ALICE, models=["*"]), replace(bob, revoked=True)]):
        assert await keys.add(await keys.read(), change(key, f"{number}"))
    found = {key.name: key for key in (await keys.read()).current()}
    assert found == {"alice": replace(ALICE, models=["*"]), "bob": replace(bob, revoked=True)}


async def test_audit_log_is_bounded_and_keeps_current_keys(keys: StoredKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "AUDITED", 3)
    gone = replace(ALICE, id="key_g", name="gone", revoked=True)
    bob = replace(ALICE, id="key_b", name="bob")
    for number, key in enumerate([ALICE, gone, *[bob] * 6]):
        assert await keys.add(await keys.read(), change(key, f"{number}"))
    assert [made.number for made in (await keys.read()).changes] == [1, 5, 6, 7, 8]


async def test_last_uses_are_read_by_name(keys: StoredKeys) -> None:
    await keys.record_uses({"alice": 1000.7, "bob": 2000.2})
    await keys.record_uses({"bob": 3000.0})
    assert await keys.uses() == {"alice": 1000, "bob": 3000}


async def test_keys_do_not_expire(location: StoreLocation) -> None:
    async with keys_at(location) as keys:
        await keys.add(KeySnapshot(), change())
        location.advance(3 * TTL)
        assert (await keys.read()).revision == 1


async def test_change_is_seen_by_other_processes(shared: StoreLocation) -> None:
    async with keys_at(shared) as one, keys_at(shared) as other:
        assert await one.add(KeySnapshot(), change())
        assert await other.has_changed(0)
        assert (await other.read()).current() == [ALICE]


async def test_fields_of_a_later_version_are_ignored() -> None:
    store = MemoryStore(ttl=60)
    keys = StoredKeys(store)
    await keys.add(KeySnapshot(), change())
    ((name, record),) = (await store.all("server:keys")).items()
    await store.put("server:keys", name, record.replace(b'"name":"alice",', b'"name":"alice","later":{"a":1},', 1))
    assert (await keys.read()).current() == [ALICE]
