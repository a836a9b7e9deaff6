"""Attacks on the management of keys: escalation, enumeration, races, and secrets in places where they could be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.core.access import digest_of, hash_of
from app.observability import logging as logs
from tests.api.keys.served import OPS, Keys, code_of, serving_keys
from tests.support.serving import settings
from tests.support.store_locations import StoreLocation, location_of


@pytest.fixture
async def keys() -> AsyncIterator[Keys]:
    async with serving_keys() as keys:
        yield keys


class Attempt(NamedTuple):
    """A forbidden request. ALICE, OPS and NONE in paths stand for key ids."""

    method: str
    path: str
    body: Any = None


ATTEMPTS = [
    Attempt("GET", "keys"),
    Attempt("GET", "keys?revoked=true"),
    Attempt("GET", "audit"),
    Attempt("GET", "keys/ALICE"),
    Attempt("GET", "keys/OPS"),
    Attempt("GET", "keys/NONE"),
    Attempt("POST", "keys", {"name": "mallory", "admin": True}),
    Attempt("POST", "keys", {"name": "mallory", "owner": "ops"}),
    Attempt("POST", "keys", {"name": "alice"}),
    Attempt("POST", "keys", {"name": "user"}),
    Attempt("POST", "keys", {"nonsense": 1}),
    Attempt("PATCH", "keys/ALICE", {"admin": True}),
    Attempt("PATCH", "keys/ALICE", {"owner": "ops", "models": ["*"], "budgets": None}),
    Attempt("PATCH", "keys/NONE", {"admin": True}),
    Attempt("PATCH", "keys/OPS", {"admin": False}),
    Attempt("DELETE", "keys/ALICE"),
    Attempt("DELETE", "keys/OPS"),
    Attempt("DELETE", "keys/NONE"),
    Attempt("POST", "keys/ALICE/rotate", {}),
    Attempt("POST", "keys/OPS/rotate", {"grace_period": 0}),
    Attempt("POST", "keys/NONE/rotate", {}),
]


def with_ids(path: str, alice: str) -> str:
    return path.replace("ALICE", alice).replace("OPS", "settings:ops").replace("NONE", "key_000000000000000000000000")


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=repr)
async def test_key_without_admin_right_is_refused_whatever_it_names(keys: Keys, attempt: Attempt) -> None:
    """The answer is the same for existing and unknown ids, so it tells nothing about which keys exist."""
    alice = await keys.create("alice", models=["qwen*"], budgets={"tokens_per_day": 10**9})
    before = await keys.get("keys"), await keys.get("audit")
    answers = []
    for key in (alice["secret"], "user"):
        path = with_ids(attempt.path, alice["id"])
        answers.append(await keys.call(attempt.method, path, key=key, json=attempt.body))
    for answer in answers:
        assert code_of(answer) == (403, "insufficient_permissions")
        assert answer.json()["error"]["message"] == "This endpoint requires an admin key (`admin = true`)."
    after = await keys.get("keys"), await keys.get("audit")
    for page in (*before, *after):
        for entry in page["data"]:
            entry.pop("last_used_at", None)
    assert after == before


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=repr)
@pytest.mark.parametrize("key", ["unknown", hash_of("ops"), digest_of("ops"), "settings:ops", "sk-antiphon-"])
async def test_unknown_key_is_unauthorized(keys: Keys, key: str, attempt: Attempt) -> None:
    answer = await keys.call(attempt.method, with_ids(attempt.path, "key_1"), key=key, json=attempt.body)
    assert code_of(answer) == (401, "invalid_api_key")


@pytest.mark.parametrize("values", [{"keys": {}}, {"keys": {}, "api_keys": "plain"}], ids=["keyless", "plain"])
async def test_key_without_a_table_manages_nothing(values: dict[str, Any]) -> None:
    """On a server without keys every caller may see everything, but not lock the others out."""
    async with serving_keys(**values) as keys:
        for attempt in ATTEMPTS:
            path = with_ids(attempt.path, "key_1")
            answer = await keys.call(attempt.method, path, key="plain", json=attempt.body)
            assert code_of(answer) == (403, "insufficient_permissions"), attempt


async def test_admin_key_changes_others_and_not_itself(keys: Keys) -> None:
    root = await keys.create("root", admin=True, budgets={"tokens_per_day": 5})
    path = f"keys/{root['id']}"
    for method, body in (("PATCH", {"budgets": None}), ("PATCH", {"admin": True}), ("DELETE", None)):
        answer = await keys.call(method, path, key=root["secret"], json=body)
        assert code_of(answer) == (403, "insufficient_permissions")
    assert (await keys.get(path))["budgets"] == {"tokens_per_day": 5}
    made = (await keys.call("POST", "keys", key=root["secret"], json={"name": "bob"})).json()
    assert (await keys.get("audit"))["data"][0]["actor"] == "root"
    assert (await keys.call("DELETE", f"keys/{made['id']}", key=root["secret"])).status_code == 200


@pytest.mark.parametrize("change", ["demote", "revoke", "expire"])
async def test_admin_right_ends_with_the_key(keys: Keys, change: str) -> None:
    root = await keys.create("root", admin=True)
    assert (await keys.call("GET", "keys", key=root["secret"])).status_code == 200
    path = f"keys/{root['id']}"
    if change == "demote":
        await keys.call("PATCH", path, json={"admin": False})
    elif change == "revoke":
        await keys.call("DELETE", path)
    else:
        await keys.call("POST", f"{path}/rotate", json={"grace_period": 0})
    answer = await keys.call("GET", "keys", key=root["secret"])
    assert answer.status_code == (403 if change == "demote" else 401)


async def test_fields_that_the_server_sets_cannot_be_sent(keys: Keys) -> None:
    made = await keys.create("alice")
    fields: dict[str, Any] = {
        "secrets": [{"digest": "0" * 64}],
        "hash": hash_of("known"),
        "secret": "known",
        "revoked": False,
        "created_at": 1,
        "configured": True,
        "version": 7,
    }
    for name, value in fields.items():
        for method, path, body in (("POST", "keys", {"name": "bob"}), ("PATCH", f"keys/{made['id']}", {})):
            answer = await keys.call(method, path, json={**body, name: value})
            assert code_of(answer) == (400, "unknown_parameter"), name
    assert await keys.statuses("known") == [401]


@pytest.mark.parametrize("action", ["create", "update", "rotate"])
@pytest.mark.parametrize("end", ["revoke", "demote", "rotate"])
async def test_admin_right_that_ends_during_the_request_body_is_lost(keys: Keys, end: str, action: str) -> None:
    """A slowly sent body must not outlive the key: it could create another admin key."""
    root, bob = await keys.create("root", admin=True), await keys.create("bob")
    path, body = {
        "create": ("keys", {"name": "mallory", "admin": True}),
        "update": (f"keys/{bob['id']}", {"admin": True}),
        "rotate": (f"keys/{bob['id']}/rotate", {"grace_period": 60}),
    }[action]
    content, ended = json.dumps(body).encode(), asyncio.Event()
    begun = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield content[:5]
        begun.set()
        await ended.wait()
        yield content[5:]

    method = "PATCH" if action == "update" else "POST"
    attack = asyncio.create_task(keys.call(method, path, key=root["secret"], content=slowly()))
    await begun.wait()
    root_path = f"keys/{root['id']}"
    match end:
        case "revoke":
            await keys.call("DELETE", root_path)
        case "demote":
            await keys.call("PATCH", root_path, json={"admin": False})
        case "rotate":
            await keys.call("POST", f"{root_path}/rotate", json={"grace_period": 0})
    ended.set()
    assert (await attack).status_code in (401, 403)
    assert [key["name"] for key in (await keys.get("keys"))["data"] if key["admin"]] == (
        ["ops"] if end != "rotate" else ["ops", "root"]
    )
    assert "root" not in [change["actor"] for change in (await keys.get("audit"))["data"]]


async def test_revocation_races_with_use_and_wins(keys: Keys) -> None:
    made = await keys.create("alice")
    revoking = asyncio.create_task(keys.call("DELETE", f"keys/{made['id']}"))
    used = await asyncio.gather(*(keys.ask(made["secret"]) for _ in range(10)))
    assert (await revoking).status_code == 200
    assert {answer.status_code for answer in used} <= {200, 401}
    assert await keys.statuses(made["secret"]) == [401]


async def test_rotation_and_revocation_at_once_leave_no_secret(keys: Keys) -> None:
    made = await keys.create("alice")
    path = f"keys/{made['id']}"
    answers = await asyncio.gather(
        *(keys.call("POST", f"{path}/rotate", json={}) for _ in range(3)), keys.call("DELETE", path)
    )
    assert answers[-1].status_code == 200
    secrets = [answer.json()["secret"] for answer in answers[:-1] if answer.status_code == 200]
    assert await keys.statuses(made["secret"], *secrets) == [401] * (1 + len(secrets))


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    return location_of(request, tmp_path)


async def test_secret_is_in_no_store_log_audit_metric_or_activity(
    location: StoreLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(settings(keys=OPS, log_level="debug"))
    store = location.open()
    secrets = []
    answers = ""
    async with serving_keys(store=store) as keys:
        made = await keys.create("alice", budgets={"tokens_per_day": 1})
        rotated = (await keys.call("POST", f"keys/{made['id']}/rotate", json={})).json()
        secrets = [made["secret"], rotated["secret"]]
        for secret in secrets:
            await keys.ask(secret)
        await keys.call("PATCH", f"keys/{made['id']}", json={"secret": made["secret"]})
        await keys.call("GET", f"keys/{secrets[0]}")
        await keys.call("DELETE", f"keys/{made['id']}")
        await keys.statuses(*secrets)
        for path in ("keys", "keys?revoked=true", "audit", "usage?group=key", "refusals", "now", "budgets", "about"):
            answers += (await keys.call("GET", path)).text
        metrics = str(keys.http.base_url).removesuffix("/v1/") + "/metrics"
        answers += (await keys.http.get(metrics, headers={"authorization": "Bearer ops"})).text
        stored = location.contents()
    assert len(set(secrets)) == 2 and b"alice" in stored and "alice" in answers
    printed = "".join(capsys.readouterr())
    assert "key changed" in printed
    for secret in secrets:
        assert secret not in printed and secret not in answers and secret.encode() not in stored
        assert digest_of(secret) not in printed and digest_of(secret) not in answers


NESTED: Any = {"a": None}
for _ in range(90):
    NESTED = {"a": NESTED}

HOSTILE: list[Any] = [
    None,
    [],
    "x",
    0,
    {"name": None},
    {"name": ["a"]},
    {"name": "\ud800"},
    {"name": "a\r\nadmin: true"},
    {"name": "../ops"},
    {"name": "settings:ops"},
    {"name": "__proto__"},
    {"name": "a", "owner": "0" * 32},
    {"name": "a", "owner": "\x00"},
    {"name": "a", "models": ["[" * 500]},
    {"name": "a", "models": ["*" * 512] * 1000},
    {"name": "a", "budgets": {"tokens_per_day": 10**400}},
    {"name": "a", "budgets": {"tokens_per_day": -1}},
    {"name": "a", "budgets": []},
    {"name": "a", "budgets": NESTED},
    {"name": "a", "expires_at": 1e308},
    {"name": "a", "expires_at": "2030-01-01"},
    {"name": "a", "requests_per_minute": 10**30},
    {"name": "a", "max_concurrent": True},
    {"name": "a", "admin": 1},
    {"name": "a", "admin": "yes"},
    NESTED,
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body)[:60])
async def test_hostile_body_is_refused_or_made_and_never_fails(keys: Keys, body: Any) -> None:
    content = json.dumps(body)
    made = await keys.create("target")
    for method, path in (("POST", "keys"), ("PATCH", f"keys/{made['id']}"), ("POST", f"keys/{made['id']}/rotate")):
        answer = await keys.call(method, path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400), (method, path, answer.text)
    listed = {key["name"]: key for key in (await keys.get("keys"))["data"]}
    assert not any(key["admin"] for name, key in listed.items() if name != "ops")


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ["name", "owner", "models", "tools", "admin", "requests_per_minute", "budgets", "expires_at", "secret"]


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
def test_random_bodies_never_fail() -> None:
    async def run() -> None:
        async with serving_keys() as keys:
            bodies: list[Any] = []

            @hypothesis_settings(max_examples=150, deadline=None, database=None, suppress_health_check=[*HealthCheck])
            @given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5))
            def collect(body: Any) -> None:
                bodies.append(body)

            collect()
            assert len(bodies) > 100
            for number, body in enumerate(bodies):
                body = {"name": f"k{number}", **body} if number % 2 else body
                answer = await keys.call("POST", "keys", json=body)
                assert answer.status_code in (200, 400, 409), (body, answer.text)

    asyncio.run(run())
