"""Callers with a token or behind a proxy, on every way into the server: rights, limits, usage and isolation."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from app.api.auth import Auth
from app.api.auth.identity import NO_TABLE
from app.assembly.parts import build_auth
from app.cli.check import check_connectivity
from app.core.access import hash_of
from app.errors import InvalidToken, PermissionDenied
from app.main import create_app
from app.responses import Caller
from app.settings.keys import KeySettings, check_key_name
from app.stores.memory import MemoryStore
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings
from tests.support.settings_file import refusal_of
from tests.support.sockets import dial, hear_out, send
from tests.support.tokens import AUDIENCE, ISSUER, Signer, key_server, key_set
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, usage
from tests.support.upstream import upstream as upstream

SIGNER, FOREIGN = Signer("now"), Signer("now")
HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]
PROXIED = {"http": "app.api.uvicorn.http:HTTPProtocol", "ws": "app.api.uvicorn.websocket:WebSocketProtocol"}
KEYS = {
    "team": {"models": ["m", "gpt*"], "requests_per_minute": 0},
    "boss": {"admin": True},
    "robot": {"hash": hash_of("robot-key")},
}


def jwt_table(directory: Path, **fields: Any) -> dict[str, Any]:
    path = directory / "jwks.json"
    path.write_bytes(key_set(SIGNER.jwk()))
    return {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(path), "key_claim": "k", "key": "team", **fields}


@contextlib.asynccontextmanager
async def served(
    auth: dict[str, Any], *, backend: Any = None, store: Any = None, keys: Any = KEYS, **values: Any
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings(auth=auth, keys=keys, **values), backend=backend or Scripted(HELLO), store=store)
    async with serving(app, **PROXIED) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield http


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def ask(http: httpx.AsyncClient, headers: dict[str, str], **fields: Any) -> httpx.Response:
    return await http.post("/v1/responses", json={"model": "m", "input": "Hi", **fields}, headers=headers)


ENDPOINTS = [
    ("POST", "/v1/responses"),
    ("POST", "/responses"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("POST", "/v1/responses/compact"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/conversations"),
    ("GET", "/v1/conversations/conv_1"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("GET", "/v1/antiphon/about"),
    ("GET", "/v1/antiphon/responses"),
    ("GET", "/v1/antiphon/usage"),
    ("GET", "/v1/antiphon/budgets"),
    ("POST", "/v1/antiphon/translation"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/messages"),
    ("GET", "/docs"),
]


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
async def test_endpoint_accepts_tokens_and_keys_and_refuses_the_rest(method: str, path: str, tmp_path: Path) -> None:
    async with served({"jwt": jwt_table(tmp_path)}, docs="key") as http:

        async def status_of(headers: dict[str, str]) -> int:
            return (await http.request(method, path, json={"model": "m", "input": "Hi"}, headers=headers)).status_code

        for accepted in (SIGNER.token(), "robot-key"):
            assert await status_of(bearer(accepted)) not in (401, 403, 500)
        for refused in ("", "other", FOREIGN.token(), SIGNER.token(exp=1), SIGNER.token(aud="other")):
            assert await status_of(bearer(refused)) == 401
        refusal = await http.request(method, path, json={}, headers=bearer(FOREIGN.token()))
        assert refusal.headers["www-authenticate"] == 'Bearer error="invalid_token"'


async def test_error_of_a_token_has_the_shape_of_the_api(tmp_path: Path) -> None:
    async with served({"jwt": jwt_table(tmp_path)}) as http:
        error = (await ask(http, bearer(SIGNER.token(exp=1)))).json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request", "expired_token")
        body = {"model": "m", "messages": []}
        answer = await http.post("/v1/messages", json=body, headers={"x-api-key": FOREIGN.token()})
        assert answer.json()["error"]["type"] == "authentication_error"


async def test_page_without_authentication_ignores_bad_tokens(tmp_path: Path) -> None:
    async with served({"jwt": jwt_table(tmp_path)}) as http:
        for path in ("/healthz", "/studio", "/metrics"):
            assert (await http.get(path, headers=bearer(FOREIGN.token()))).status_code == 200


async def test_socket_accepts_a_token_in_its_header_or_subprotocol(tmp_path: Path) -> None:
    async with served({"jwt": jwt_table(tmp_path)}) as http:
        url = str(http.base_url)
        for options in (
            {"additional_headers": bearer(SIGNER.token())},
            {"subprotocols": ["realtime", f"openai-insecure-api-key.{SIGNER.token()}"]},
        ):
            async with dial(url, **options) as socket:
                await send(socket)
                assert (await hear_out(socket))[-1]["response"]["status"] == "completed"
        with pytest.raises(InvalidStatus) as refusal:
            await dial(url, additional_headers=bearer(FOREIGN.token()))
        assert refusal.value.response.status_code == 401


def test_caller_whose_token_has_expired_begins_no_turn_on_an_open_socket(tmp_path: Path) -> None:
    now = time.time()
    auth = create_auth(settings(auth={"jwt": jwt_table(tmp_path)}, keys=KEYS), lambda: now)
    access = auth.accepted_access("team:alice", "owner")
    assert access
    caller = Caller("owner", None, access=replace(access, expires=now + 10))
    assert auth.verify(caller) == caller
    now += 10
    with pytest.raises(InvalidToken, match="The token has expired"):
        auth.verify(caller)


def test_caller_whose_table_is_removed_begins_no_turn_on_an_open_socket(tmp_path: Path) -> None:
    auth = create_auth(settings(auth={"jwt": jwt_table(tmp_path)}, keys=KEYS))
    access = auth.accepted_access("team:alice", "owner")
    assert access
    auth.replace_keys([], {"team": KeySettings(models=["other"])})
    assert auth.verify(Caller("owner", None, access=access)).access.models == ("other",)
    auth.replace_keys([], {})
    with pytest.raises(PermissionDenied):
        auth.verify(Caller("owner", None, access=access))


async def test_rights_are_those_of_the_table_that_the_claim_names(tmp_path: Path) -> None:
    async with served({"jwt": jwt_table(tmp_path)}, metrics="key") as http:
        team, boss = bearer(SIGNER.token()), bearer(SIGNER.token(k="boss"))
        refusal = await ask(http, team, model="other")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (403, "model_not_allowed")
        assert (await ask(http, boss, model="other")).status_code == 200
        assert [(await http.get("/metrics", headers=who)).status_code for who in (team, boss)] == [403, 200]
        for claim in ("missing", NO_TABLE, "_user", "anonymous", "team:alice", "../boss"):
            assert (await ask(http, bearer(SIGNER.token(k=claim)))).status_code == 403
        assert (await ask(http, bearer(SIGNER.token(k=["boss"])), model="other")).status_code == 403


async def test_table_without_a_key_cannot_be_used_as_one(tmp_path: Path) -> None:
    async with served({"jwt": jwt_table(tmp_path)}) as http:
        for key in ("team", "", "sha256:", "team:alice", hash_of("robot-key")):
            assert (await ask(http, bearer(key))).status_code == 401


async def test_owners_are_isolated_and_do_not_collide_with_keys(tmp_path: Path) -> None:
    keys = {**KEYS, "alice": {"hash": hash_of("alice-key")}, "same": {"hash": hash_of("same-key"), "owner": "alice"}}
    async with served({"jwt": jwt_table(tmp_path)}, keys=keys) as http:
        alice, bob = bearer(SIGNER.token()), bearer(SIGNER.token(sub="bob"))
        first = (await ask(http, alice)).json()["id"]
        for stranger in (bob, bearer("alice-key"), bearer("same-key")):
            assert (await http.get(f"/v1/responses/{first}", headers=stranger)).status_code == 404
        again = bearer(SIGNER.token(k="boss", exp=int(time.time()) + 99))
        assert (await http.get(f"/v1/responses/{first}", headers=again)).status_code == 200
        assert (await ask(http, again, previous_response_id=first)).status_code == 200
    async with served({"jwt": jwt_table(tmp_path, namespace="")}, keys=keys) as http:
        first = (await ask(http, alice)).json()["id"]
        assert (await http.get(f"/v1/responses/{first}", headers=bearer("same-key"))).status_code == 200


async def test_limits_apply_to_each_person(tmp_path: Path) -> None:
    keys = {"team": {"requests_per_minute": 1}}
    async with served({"jwt": jwt_table(tmp_path)}, keys=keys) as http:
        alice, bob = bearer(SIGNER.token()), bearer(SIGNER.token(sub="bob"))
        statuses = [(await ask(http, who)).status_code for who in (alice, alice, bob)]
        assert statuses == [200, 429, 200]


async def test_usage_and_budget_are_those_of_the_person(tmp_path: Path, upstream: Upstream) -> None:
    upstream.always(sse(chunk("Hello"), finish(), usage(7, 3), DONE))
    keys = {"team": {"budget": {"tokens_per_day": 10}}, "boss": {"admin": True}}
    values = {"backend_url": upstream.url, "auth": {"jwt": jwt_table(tmp_path)}, "keys": keys}
    async with serving(create_app(settings(**values))) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            alice, boss = bearer(SIGNER.token()), bearer(SIGNER.token(k="boss", sub="carol"))
            assert [(await ask(http, alice)).status_code for _ in range(2)] == [200, 429]
            assert (await ask(http, bearer(SIGNER.token(sub="bob")))).status_code == 200
            listed = (await http.get("/v1/antiphon/usage?group=key", headers=boss)).json()["data"]
            assert [(row["key"], row["total_tokens"]) for row in listed] == [("team:alice", 10), ("team:bob", 10)]
            own = (await http.get("/v1/antiphon/usage?group=key", headers=alice)).json()["data"]
            assert [row["key"] for row in own] == ["team:alice"]
            budgets = (await http.get("/v1/antiphon/budgets", headers=boss)).json()["data"]
            assert [(row["key"], row["used"]) for row in budgets] == [("team:alice", 10), ("team:bob", 10)]
            own = (await http.get("/v1/antiphon/budgets", headers=alice)).json()["data"]
            assert [(row["key"], row["used"], row["amount"]) for row in own] == [("team:alice", 10, 10)]
            text = (await http.get("/metrics")).text
            assert 'key="team"' in text and "alice" not in text


async def test_name_of_a_person_is_accepted_later_only_while_the_table_exists(tmp_path: Path) -> None:
    configured = settings(auth={"jwt": jwt_table(tmp_path)}, keys=KEYS)
    auth = create_auth(configured)
    access = auth.accepted_access("team:alice", "owner")
    assert access and (access.owner, access.models, access.name) == ("owner", ("m", "gpt*"), "team:alice")
    assert auth.accepted_access("gone:alice", "owner") is None
    assert auth.access_of("gone:alice").name == "gone:alice"
    assert auth.accepted_access("team", "owner") is None  # a table without a key accepts no caller by itself
    auth.replace_keys([], {})
    assert auth.accepted_access("team:alice", "owner") is None
    assert auth.required


def create_auth(configured: Any, clock: Callable[[], float] = time.time) -> Auth:
    auth = build_auth(configured)
    auth._clock = clock
    return auth


async def test_token_is_neither_forwarded_nor_stored_nor_logged(
    tmp_path: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    upstream.always(sse(chunk("Hello"), finish(), usage(), DONE))
    store = MemoryStore(ttl=60)
    values = {
        "backend_url": upstream.url,
        "backend_api_key": "passthrough",
        "auth": {"jwt": jwt_table(tmp_path), "proxy": {"addresses": ["127.0.0.1"], "header": "X-Forwarded-Email"}},
    }
    token = SIGNER.token()
    async with serving(create_app(settings(**values, keys=KEYS), store=store), **PROXIED) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            assert (await ask(http, bearer(token))).status_code == 200
            chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            headers = {**bearer(token), "x-forwarded-email": "alice@example.org"}
            assert (await http.post("/v1/chat/completions", json=chat, headers=headers)).status_code == 200
            assert (await ask(http, bearer(f"{token}x"))).status_code == 401
            metrics = (await http.get("/metrics")).text
    assert len(upstream.requests) == 2
    parts = token.split(".")
    for request in upstream.requests:
        sent = json.dumps(request.headers) + request.body.decode()
        assert not any(part in sent for part in parts) and "alice" not in sent
    kept = repr(vars(store)) + caplog.text + repr([record.__dict__ for record in caplog.records]) + metrics
    assert parts[1] not in kept and parts[2] not in kept


# The issuer.


async def test_keys_of_the_issuer_are_rotated_while_the_server_runs() -> None:
    new = Signer("new")
    async with key_server(SIGNER) as issuer:
        table = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": f"{issuer.url}/jwks"}
        async with served({"jwt": table}) as http:
            assert (await ask(http, bearer(SIGNER.token()))).status_code == 200
            for number in range(20):
                assert (await ask(http, bearer(FOREIGN.token({"kid": str(number)})))).status_code == 401
            assert len(issuer.requests) == 1
            assert not any("authorization" in request.headers for request in issuer.requests)
            await issuer.close()
            assert (await ask(http, bearer(SIGNER.token(sub="bob")))).status_code == 200
            assert (await ask(http, bearer(new.token()))).status_code == 401
            await issuer.open()


async def test_issuer_that_is_down_makes_tokens_wait_but_not_keys() -> None:
    async with key_server(SIGNER) as issuer:
        table = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": f"{issuer.url}/jwks"}
        await issuer.close()
        async with served({"jwt": table}) as http:
            answer = await ask(http, bearer(SIGNER.token()))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "identity_provider_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert (await ask(http, bearer("robot-key"))).status_code == 200
            assert (await http.get("/healthz")).status_code == 200
        await issuer.open()


async def test_check_reports_the_keys_of_the_issuer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = jwt_table(tmp_path)
    assert await check_connectivity(settings(auth={"jwt": table}, keys=KEYS))
    assert "1 public key" in capsys.readouterr().out
    (tmp_path / "jwks.json").write_text("{}")
    assert not await check_connectivity(settings(auth={"jwt": table}, keys=KEYS))
    assert "the key set has no public key for signatures" in capsys.readouterr().out


# The proxy.

PROXY = {"addresses": ["127.0.0.1"], "header": "X-Forwarded-Email", "key": "team"}
ALICE = {"x-forwarded-email": "alice@example.org"}


async def test_header_of_the_proxy_identifies_on_every_way_in() -> None:
    async with served({"proxy": PROXY}) as http:
        first = (await ask(http, ALICE)).json()["id"]
        bob = {"x-forwarded-email": "bob@example.org"}
        found = [(await http.get(f"/v1/responses/{first}", headers=who)).status_code for who in (ALICE, bob, {})]
        assert found == [200, 404, 401]
        async with dial(str(http.base_url), additional_headers=ALICE) as socket:
            await send(socket, previous_response_id=first)
            assert (await hear_out(socket))[-1]["response"]["status"] == "completed"
        with pytest.raises(InvalidStatus):
            await dial(str(http.base_url))


@pytest.mark.parametrize("forwarded", ["10.1.2.3", "10.1.2.3, 127.0.0.1", "127.0.0.1"])
async def test_header_from_an_unlisted_address_is_ignored_whatever_it_forwards(forwarded: str) -> None:
    proxy = {**PROXY, "addresses": ["10.0.0.0/8"]}
    async with served({"proxy": proxy}) as http:  # uvicorn trusts 127.0.0.1, and reads `client` from the header
        headers = {**ALICE, "x-forwarded-for": forwarded, "x-real-ip": "10.1.2.3", "forwarded": "for=10.1.2.3"}
        assert (await ask(http, headers)).status_code == 401
        with pytest.raises(InvalidStatus):
            await dial(str(http.base_url), additional_headers=headers)


async def test_client_address_that_the_proxy_forwards_does_not_hide_the_proxy() -> None:
    async with served({"proxy": PROXY}) as http:
        assert (await ask(http, {**ALICE, "x-forwarded-for": "203.0.113.9"})).status_code == 200


async def test_header_is_ignored_by_servers_that_do_not_show_the_socket() -> None:
    app = create_app(settings(auth={"proxy": PROXY}, keys=KEYS), backend=Scripted(HELLO))
    async with serving(app, http="h11") as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert (await ask(http, ALICE)).status_code == 401
        assert (await ask(http, bearer("robot-key"))).status_code == 200


async def test_header_that_is_repeated_is_refused() -> None:
    async with served({"proxy": PROXY}) as http:
        headers = [("x-forwarded-email", "eve@example.org"), ("X-Forwarded-Email", "alice@example.org")]
        answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi"}, headers=headers)
        assert answer.status_code == 401


async def test_credential_that_is_wrong_is_not_replaced_by_the_header() -> None:
    async with served({"proxy": PROXY}) as http:
        for key, status in (("wrong", 401), (SIGNER.token(), 401), ("robot-key", 200)):
            assert (await ask(http, {**ALICE, **bearer(key)})).status_code == status
        first = (await ask(http, {**ALICE, **bearer("robot-key")})).json()["id"]
        assert (await http.get(f"/v1/responses/{first}", headers=ALICE)).status_code == 404


async def test_identity_does_not_stay_for_the_next_request_of_a_connection() -> None:
    async with served({"proxy": PROXY}) as http:
        assert [(await ask(http, who)).status_code for who in (ALICE, {}, ALICE, {})] == [200, 401, 200, 401]


# Settings.


def test_server_with_identities_counts_as_one_with_keys() -> None:
    configured = settings(auth={"proxy": {"addresses": "10.0.0.0/8", "header": "X-Forwarded-Email"}}, host="0.0.0.0")
    assert configured.has_keys
    assert create_auth(configured).required


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ("[auth.jwt]\nissuer = 'i'\naudience = 'a'", "auth.jwt: must have either `jwks_url` or `jwks_file`"),
        ("[auth.jwt]\nissuer = 'i'\naudience = []\njwks_file = 'f'", "auth.jwt.audience: "),
        ("[auth.jwt]\nisuer = 'i'\naudience = 'a'\njwks_file = 'f'", "unknown key; did you mean issuer?"),
        (
            "[auth.jwt]\nissuer = 'i'\naudience = 'a'\njwks_file = 'f'\nalgorithms = ['HS256']",
            "auth.jwt.algorithms.0: ",
        ),
        ("[auth.jwt]\nissuer = 'i'\naudience = 'a'\njwks_file = 'f'\nalgorithms = ['none']", "auth.jwt.algorithms.0: "),
        ("[auth.jwt]\nissuer = 'i'\naudience = 'a'\njwks_url = 'ftp://x'", "auth.jwt.jwks_url: must be an http"),
        ("[auth.jwt]\nissuer = 'i'\naudience = 'a'\njwks_url = 'http://u:p@x/'", "must not contain a user"),
        ("[auth.jwt]\nissuer = 'i'\naudience = 'a'\njwks_file = 'f'\nkey = 'team'", "table [keys.team] not found"),
        ("[auth.proxy]\naddresses = ['*']\nheader = 'X-E'", "auth.proxy.addresses.0: must be an address"),
        ("[auth.proxy]\naddresses = []\nheader = 'X-E'", "auth.proxy.addresses: "),
        ("[auth.proxy]\naddresses = ['::1']\nheader = 'Authorization'", "auth.proxy.header: must be the name"),
        ("[auth]", "must have a table [auth.jwt] or [auth.proxy]"),
        ("[keys.team]\nmodels = ['m']", "keys.team: must have `hash` or `env`"),
    ],
)
def test_table_that_is_invalid_is_named(
    toml: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem in refusal_of(toml, tmp_path, monkeypatch)


def test_name_of_callers_without_a_table_is_no_key_name() -> None:
    with pytest.raises(ValueError, match="name"):
        check_key_name(NO_TABLE)
