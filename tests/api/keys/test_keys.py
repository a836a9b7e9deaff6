"""Managed keys: created, limited, rotated and revoked by the API, on every replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.api.auth import Auth
from app.api.keys import managed_keys
from app.api.keys.managed_keys import MAX_GRACE
from app.core.access import digest_of, hash_of
from app.errors import StoreUnavailable
from app.settings.keys import KeySettings
from app.stores.keys import Secret, StoredKey
from app.stores.memory import MemoryStore
from tests.api.keys.served import OPS, Keys, code_of, serving_keys
from tests.support.store_locations import StoreLocation, location_of


@pytest.fixture
async def keys() -> AsyncIterator[Keys]:
    async with serving_keys() as keys:
        yield keys


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managed_keys, "KEY_POLL_INTERVAL", 0.01)


async def until_asked(keys: Keys, secret: str, status: int) -> None:
    """Wait until a key's requests have a status."""
    async with asyncio.timeout(30):
        while await keys.statuses(secret) != [status]:
            await asyncio.sleep(0.01)


async def test_created_key_has_its_fields_and_works_at_once(keys: Keys) -> None:
    fields = {
        "owner": "research",
        "models": ["qwen*"],
        "tools": [],
        "admin": False,
        "requests_per_minute": 60,
        "tokens_per_minute": 0,
        "max_concurrent": 2,
        "budgets": {"tokens_per_day": 1000},
        "max_stored_bytes": 10**6,
        "expires_at": int(time.time()) + 1000,
    }
    made = await keys.create("alice", **fields)
    secret = made.pop("secret")
    assert secret.startswith("sk-antiphon-") and len(secret) > 50
    assert {name: made[name] for name in fields} == fields
    assert made["id"].startswith("key_") and made["object"] == "antiphon.key" and made["source"] == "store"
    assert abs(made["created_at"] - time.time()) < 60 and made["last_used_at"] is None and made["revoked"] is False
    assert await keys.get(f"keys/{made['id']}") == made
    assert await keys.statuses(secret) == [200]


async def test_key_without_fields_may_use_everything_and_is_no_admin(keys: Keys) -> None:
    made = await keys.create("alice")
    assert (made["owner"], made["models"], made["tools"], made["admin"]) == ("alice", ["*"], ["*"], False)
    assert made["budgets"] == {} and made["expires_at"] is made["requests_per_minute"] is None


async def test_models_limits_and_budget_of_a_created_key_apply(keys: Keys) -> None:
    made = await keys.create("alice", models=["qwen*"], requests_per_minute=2, budgets={"tokens_per_day": 1})
    refused = await keys.ask(made["secret"], model="gpt-5")
    assert code_of(refused) == (403, "model_not_allowed")
    assert (await keys.ask(made["secret"])).status_code == 200
    assert code_of(await keys.ask(made["secret"])) == (429, "insufficient_quota")
    budgets = (await keys.get("budgets"))["data"]
    assert [(entry["key"], entry["limit"]) for entry in budgets] == [("alice", "tokens_per_day")]


async def test_update_is_partial_and_null_resets_a_field(keys: Keys) -> None:
    made = await keys.create("alice", owner="research", models=["qwen*"], requests_per_minute=5)
    answer = await keys.call("PATCH", f"keys/{made['id']}", json={"requests_per_minute": 7, "tools": ["web_search"]})
    changed = answer.json()
    assert changed == {**{name: made[name] for name in changed}, "requests_per_minute": 7, "tools": ["web_search"]}
    nulls = {"owner": None, "models": None, "tools": None, "requests_per_minute": None}
    reset = (await keys.call("PATCH", f"keys/{made['id']}", json=nulls)).json()
    assert (reset["owner"], reset["models"], reset["tools"], reset["requests_per_minute"]) == (
        "alice",
        ["*"],
        ["*"],
        None,
    )


async def test_updated_rights_apply_to_the_next_request(keys: Keys) -> None:
    made = await keys.create("alice")
    assert await keys.statuses(made["secret"]) == [200]
    await keys.call("PATCH", f"keys/{made['id']}", json={"models": ["llama*"]})
    assert await keys.statuses(made["secret"]) == [403]


async def test_rotated_key_accepts_the_old_secret_for_the_grace_period(keys: Keys) -> None:
    made = await keys.create("alice")
    answer = await keys.call("POST", f"keys/{made['id']}/rotate", json={"grace_period": 1000})
    rotated = answer.json()
    assert rotated["secret"] != made["secret"]
    assert 900 < rotated["previous_secret_expires_at"] - time.time() < 1100
    assert await keys.statuses(made["secret"], rotated["secret"]) == [200, 200]
    again = (await keys.call("POST", f"keys/{made['id']}/rotate", json={"grace_period": 0})).json()
    assert again["previous_secret_expires_at"] is None
    assert await keys.statuses(made["secret"], rotated["secret"], again["secret"]) == [401, 401, 200]


async def test_both_secrets_of_a_rotation_have_one_owner_and_one_usage(keys: Keys) -> None:
    made = await keys.create("alice")
    response = (await keys.ask(made["secret"])).json()
    rotated = (await keys.call("POST", f"keys/{made['id']}/rotate", json={})).json()
    again = await keys.ask(rotated["secret"], previous_response_id=response["id"])
    assert again.status_code == 200
    usage = (await keys.get("usage", group="key"))["data"]
    assert [(row["key"], row["requests"]) for row in usage] == [("alice", 2)]


async def test_revoked_key_is_refused_and_listed_apart(keys: Keys) -> None:
    made = await keys.create("alice")
    revoked = (await keys.call("DELETE", f"keys/{made['id']}")).json()
    assert revoked["revoked"] is True
    assert await keys.statuses(made["secret"]) == [401]
    assert [key["name"] for key in (await keys.get("keys"))["data"]] == ["ops", "user"]
    assert (await keys.get("keys", revoked="true"))["data"] == [await keys.get(f"keys/{made['id']}")]
    for method, end in (("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
        body = {} if method == "DELETE" else {"json": {}}
        assert code_of(await keys.call(method, f"keys/{made['id']}{end}", **body)) == (409, "key_revoked")
    assert (await keys.create("alice"))["id"] != made["id"]  # the name is free


async def test_keys_are_listed_by_name_in_pages(keys: Keys) -> None:
    made = {name: (await keys.create(name))["id"] for name in ("zoe", "bob", "alice")}
    first = await keys.get("keys", limit=3)
    assert [key["name"] for key in first["data"]] == ["alice", "bob", "ops"] and first["has_more"] is True
    last = await keys.get("keys", limit=3, after=first["last_id"])
    assert [key["name"] for key in last["data"]] == ["user", "zoe"] and last["has_more"] is False
    assert last["data"][1]["id"] == made["zoe"]


async def test_keys_of_the_settings_are_listed_and_read_only(keys: Keys) -> None:
    listed = (await keys.get("keys"))["data"]
    assert [(key["id"], key["source"], key["admin"]) for key in listed] == [
        ("settings:ops", "settings", True),
        ("settings:user", "settings", False),
    ]
    for method, path in (("PATCH", ""), ("DELETE", ""), ("POST", "/rotate")):
        body = {} if method == "DELETE" else {"json": {}}
        answer = await keys.call(method, f"keys/settings:user{path}", **body)
        assert code_of(answer) == (403, "key_in_settings")
    assert code_of(await keys.call("POST", "keys", json={"name": "user"})) == (409, "key_exists")


async def test_key_of_the_settings_wins_over_one_of_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with serving_keys(store_url=url) as keys:
        made = await keys.create("alice")
    later = {**OPS, "alice": {"hash": hash_of("of the file"), "models": ["llama*"]}}
    async with serving_keys(store_url=url, keys=later) as keys:
        assert await keys.statuses(made["secret"], "of the file") == [401, 403]
        assert code_of(await keys.call("GET", "keys", key=made["secret"])) == (401, "invalid_api_key")


async def test_keys_and_audit_survive_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with serving_keys(store_url=url) as keys:
        made = await keys.create("alice")
        assert await keys.statuses(made["secret"]) == [200]
    async with serving_keys(store_url=url) as keys:
        assert await keys.statuses(made["secret"]) == [200]
        assert (await keys.get("audit"))["data"][0]["action"] == "create"
        assert (await keys.get(f"keys/{made['id']}"))["last_used_at"] >= made["created_at"]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


async def test_changes_reach_other_replicas(shared: StoreLocation, fast: None) -> None:
    values = {"store_url": shared.url, "limit_store_url": "memory://"}
    async with serving_keys(**values) as one, serving_keys(**values) as other:
        made = await one.create("alice")
        await until_asked(other, made["secret"], 200)
        await one.call("PATCH", f"keys/{made['id']}", json={"models": []})
        await until_asked(other, made["secret"], 403)
        await other.call("DELETE", f"keys/{made['id']}")
        await until_asked(one, made["secret"], 401)


async def test_server_without_keys_requires_them_when_the_store_has_one(tmp_path: Path, fast: None) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with serving_keys(store_url=url) as keys, serving_keys(store_url=url, keys={}) as open_server:
        assert await open_server.statuses("anything") == [200]
        made = await keys.create("alice")
        await until_asked(open_server, "anything", 401)
        assert await open_server.statuses(made["secret"]) == [200]
        await keys.call("DELETE", f"keys/{made['id']}")
        await until_asked(open_server, made["secret"], 401)
        assert await open_server.statuses("anything") == [401]


async def test_last_known_keys_are_accepted_while_the_store_is_down(
    fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_keys(store=MemoryStore(ttl=100)) as keys:
        made = await keys.create("alice")
        polled = asyncio.Event()

        async def down(*_: Any) -> Any:
            polled.set()
            raise StoreUnavailable

        with monkeypatch.context() as outage:
            for method in ("get", "all", "add"):
                outage.setattr(MemoryStore, method, down)
            await polled.wait()
            assert await keys.statuses(made["secret"], "unknown") == [200, 401]
            assert (await keys.call("POST", "keys", json={"name": "bob"})).status_code == 503
        await keys.create("bob")


async def test_unknown_keys_are_unavailable_until_the_store_was_read(
    fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: Any) -> Any:
        raise StoreUnavailable

    for tables, known in ((OPS, 200), ({}, 503)):
        with monkeypatch.context() as outage:
            outage.setattr(MemoryStore, "all", down)
            async with serving_keys(store=MemoryStore(ttl=100), keys=tables) as keys:
                assert await keys.statuses("unknown", "user") == [503, known]
                outage.undo()
                await until_asked(keys, "user", 200)


async def test_keys_of_an_emptied_store_are_forgotten_and_created_again(
    fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_keys, "USES_INTERVAL", 0)
    store = MemoryStore(ttl=100)
    async with serving_keys(store=store) as keys:
        made = [await keys.create(name) for name in ("alice", "bob")]
        store.lasting()._partitions.clear()
        await until_asked(keys, made[0]["secret"], 401)
        again = await keys.create("alice")
        assert await keys.statuses(again["secret"], made[1]["secret"]) == [200, 401]


async def test_record_that_cannot_be_read_locks_out_the_stored_keys_alone() -> None:
    """An earlier state of the key could have rights that were revoked since."""
    store = MemoryStore(ttl=100)
    await store.lasting().put("server:keys", "000000000001", b"{}")
    async with serving_keys(store=store) as keys:
        assert await keys.statuses("user", "unknown") == [200, 503]
        assert (await keys.call("GET", "keys")).status_code == 500


async def test_batches_wait_for_keys_that_are_not_read_yet() -> None:
    auth = Auth(["plain"])
    auth.reading = True
    with pytest.raises(StoreUnavailable):
        auth.accepted_access("alice", "owner")
    auth.replace_stored([StoredKey("key_1", "alice", "owner", secrets=[Secret(digest_of("one"))])])
    assert auth.accepted_access("alice", "owner") is not None
    assert auth.accepted_access("bob", "owner") is None


def test_secrets_are_not_kept_in_memory() -> None:
    secret = "sk-antiphon-secret"
    auth = Auth([secret], named={"alice": KeySettings(hash=[hash_of(secret + "2")])})
    auth.replace_stored([StoredKey("key_1", "bob", "bob", secrets=[Secret(digest_of(secret + "3"))])])
    assert digest_of(secret + "3") in repr(vars(auth)) and secret not in repr(vars(auth))


async def test_audit_lists_who_changed_what(keys: Keys) -> None:
    made = await keys.create("alice", models=["a"])
    path = f"keys/{made['id']}"
    await keys.call("PATCH", path, json={"models": ["b"]})
    await keys.call("POST", f"{path}/rotate", json={})
    await keys.call("DELETE", path)
    changes = (await keys.get("audit"))["data"]
    assert [(change["actor"], change["action"], change["key"]) for change in changes] == [
        ("ops", action, "alice") for action in ("revoke", "rotate", "update", "create")
    ]
    revoked, rotated, updated, created = changes
    assert created["before"] is None and created["after"]["models"] == ["a"]
    assert updated["before"]["models"] == ["a"] and updated["after"]["models"] == ["b"]
    assert rotated["before"]["previous_secret_expires_at"] is None
    assert rotated["after"]["previous_secret_expires_at"] > time.time()
    assert revoked["before"]["revoked"] is False and revoked["after"]["revoked"] is True
    assert all(change["key_id"] == made["id"] and abs(change["at"] - time.time()) < 60 for change in changes)


async def test_audit_has_pages_and_a_filter(keys: Keys) -> None:
    made = [await keys.create(name) for name in ("a", "b", "c")]
    first = await keys.get("audit", limit=2)
    assert [change["key"] for change in first["data"]] == ["c", "b"] and first["has_more"] is True
    last = await keys.get("audit", limit=2, after=first["last_id"])
    assert [change["key"] for change in last["data"]] == ["a"] and last["has_more"] is False
    assert [change["key"] for change in (await keys.get("audit", key=made[1]["id"]))["data"]] == ["b"]


async def test_concurrent_creations_of_one_name_make_one_key(keys: Keys) -> None:
    answers = await asyncio.gather(*(keys.call("POST", "keys", json={"name": "alice"}) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409, 409]
    assert len((await keys.get("keys"))["data"]) == 3


async def test_concurrent_changes_of_one_key_are_all_made(keys: Keys) -> None:
    made = await keys.create("alice")
    fields: list[dict[str, Any]] = [{"models": ["a"]}, {"tools": ["b"]}, {"requests_per_minute": 3}, {"owner": "c"}]
    answers = [keys.call("PATCH", f"keys/{made['id']}", json=each) for each in fields]
    assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200] * 4
    found = await keys.get(f"keys/{made['id']}")
    assert (found["models"], found["tools"], found["requests_per_minute"], found["owner"]) == (["a"], ["b"], 3, "c")


INVALID: list[tuple[dict[str, Any], str]] = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a b"}, "name"),
    ({"name": "anonymous"}, "name"),
    ({"name": "key_00000000"}, "name"),
    ({"name": 7}, "name"),
    ({"name": "a", "owner": ""}, "owner"),
    ({"name": "a", "owner": "x" * 201}, "owner"),
    ({"name": "a", "owner": "a\0"}, "owner"),
    ({"name": "a", "models": "qwen"}, "models"),
    ({"name": "a", "models": [""]}, "models[0]"),
    ({"name": "a", "models": ["a"] * 1001}, "models"),
    ({"name": "a", "tools": [1]}, "tools[0]"),
    ({"name": "a", "admin": "true"}, "admin"),
    ({"name": "a", "requests_per_minute": -1}, "requests_per_minute"),
    ({"name": "a", "tokens_per_minute": 1.5}, "tokens_per_minute"),
    ({"name": "a", "max_concurrent": 10**16}, "max_concurrent"),
    ({"name": "a", "budgets": {"tokens_per_year": 1}}, "budgets.tokens_per_year"),
    ({"name": "a", "budgets": {"money_per_day": 1}}, "budgets"),
    ({"name": "a", "expires_at": 1000}, "expires_at"),
    ({"name": "a", "expires_at": 10**15}, "expires_at"),
    ({"name": "a", "modells": []}, "modells"),
    ({"name": "a", "secret": "sk-mine"}, "secret"),
    ({"name": "a", "id": "key_mine"}, "id"),
    ({"name": "a", "source": "settings"}, "source"),
]


@pytest.mark.parametrize(("body", "param"), INVALID, ids=repr)
async def test_invalid_field_is_named(keys: Keys, body: dict[str, Any], param: str) -> None:
    answer = await keys.call("POST", "keys", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert len((await keys.get("keys"))["data"]) == 2


@pytest.mark.parametrize("grace", [-1, MAX_GRACE + 1, 1.5, "1"])
async def test_invalid_grace_period_is_refused(keys: Keys, grace: Any) -> None:
    made = await keys.create("alice")
    answer = await keys.call("POST", f"keys/{made['id']}/rotate", json={"grace_period": grace})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "grace_period")
    assert await keys.statuses(made["secret"]) == [200]


async def test_name_cannot_be_changed(keys: Keys) -> None:
    made = await keys.create("alice")
    answer = await keys.call("PATCH", f"keys/{made['id']}", json={"name": "bob"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")


async def test_budget_of_money_is_accepted_with_prices() -> None:
    prices = {"*": {"input": 1, "output": 2}}
    async with serving_keys(prices=prices) as keys:
        made = await keys.create("alice", budgets={"money_per_month": 12.5})
        assert made["budgets"] == {"money_per_month": 12.5}
