"""Named keys: permissions on every endpoint, and access after rotation or revocation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.datastructures import Headers

from app.api.auth import Auth
from app.core.access import KeyAccess, hash_of
from app.errors import Unauthorized
from app.main import create_app
from app.observability import logging as logs
from app.settings import load_settings
from app.settings.keys import KeySettings, key_table
from tests.support import sockets
from tests.support.build import delta
from tests.support.routes import routes_of
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import DONE, Upstream, chunk, finish, sse
from tests.support.upstream import upstream as upstream

HELLO: list[Any] = [delta(content="Hel"), delta(content="lo")]


def table(key: str, **fields: Any) -> dict[str, Any]:
    return {"hash": hash_of(key), **fields}


class Listing(Scripted):
    """A scripted backend with a model list."""

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        return [{"id": name, "object": "model", "created": 0, "owned_by": "lab"} for name in ("qwen3", "gpt-5")]


@contextlib.asynccontextmanager
async def served(keys: dict[str, Any], **values: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with antiphon(Listing(HELLO), keys=keys, **values) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            yield http


async def ask(http: httpx.AsyncClient, key: str, path: str = "/v1/responses", **fields: Any) -> httpx.Response:
    return await http.post(path, json={"model": "qwen3", "input": "Hi", **fields}, headers=bearer(key))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


# Who is let in.


async def test_key_with_a_known_hash_is_accepted_and_any_other_refused() -> None:
    async with served({"alice": table("one")}, api_keys="plain") as http:
        assert [(await ask(http, key)).status_code for key in ("one", "plain", "two", "")] == [200, 200, 401, 401]
        assert error_of(await ask(http, "two"))["code"] == "invalid_api_key"
        # The hash is in the settings, and no key.
        assert (await ask(http, hash_of("one"))).status_code == 401


async def test_keys_of_a_rotation_are_both_accepted() -> None:
    async with served({"alice": {"hash": [hash_of("old"), hash_of("new")]}}) as http:
        first = (await ask(http, "old")).json()
        assert (await http.get(f"/v1/responses/{first['id']}", headers=bearer("new"))).status_code == 200


def test_key_that_expires_is_refused_also_on_an_open_socket() -> None:
    now = 1_000.0
    keys = {"alice": KeySettings(hash=[hash_of("one")], expires="1970-01-01T00:16:42Z")}  # type: ignore[arg-type]
    auth = Auth(named=keys, clock=lambda: now)
    headers = Headers(bearer("one"))
    caller = auth.caller(headers)
    now = 1001.9
    assert auth.verify(caller) is caller
    now = 1002.0
    for use in (lambda: auth.caller(headers), lambda: auth.verify(caller)):
        with pytest.raises(Unauthorized, match="'alice' expired at 1970-01-01T00:16:42Z") as refused:
            use()
        assert refused.value.code == "expired_api_key"


def test_key_has_the_rights_that_the_settings_give_now() -> None:
    auth = Auth(named={"alice": KeySettings(hash=[hash_of("one")], models=["a"])})
    caller = auth.caller(Headers(bearer("one")))
    auth.replace_keys([], {"alice": KeySettings(hash=[hash_of("one")], models=["b"])})
    assert auth.verify(caller).access.models == ("b",)
    auth.replace_keys([], {"alice": KeySettings(hash=[hash_of("two")])})
    with pytest.raises(Unauthorized):
        auth.verify(caller)


# Models and tools.

ROUTES = ["/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact", "/v1/antiphon/translation"]


@pytest.mark.parametrize("path", ROUTES)
async def test_model_that_a_key_may_not_use_is_refused_with_those_it_may(path: str) -> None:
    async with served({"alice": table("one", models=["qwen*", "llama-3"])}) as http:
        assert (await ask(http, "one", path)).status_code == 200
        refused = await ask(http, "one", path, model="gpt-5")
    assert refused.status_code == 403
    assert error_of(refused) == {
        "type": "invalid_request",
        "code": "model_not_allowed",
        "message": "The key 'alice' may not use the model 'gpt-5'. It may use qwen*, llama-3.",
        "param": "model",
    }


async def test_models_of_a_key_hold_for_background_stream_chain_and_default() -> None:
    keys = {"all": table("all", owner="team"), "one": table("one", owner="team", models=["qwen*"])}
    async with served(keys, default_model="gpt-5") as http:
        first = (await ask(http, "all", model="gpt-5")).json()
        for fields in (
            {"model": "gpt-5", "background": True},
            {"model": "gpt-5", "stream": True},
            {"model": None, "previous_response_id": first["id"]},
            {"model": None},
        ):
            refused = await ask(http, "one", **fields)
            assert (refused.status_code, error_of(refused)["code"]) == (403, "model_not_allowed"), fields


async def test_model_list_of_a_key_has_its_own_alone() -> None:
    async with served({"alice": table("one", models=["qwen*"]), "nobody": table("two", models=[])}) as http:
        listed = (await http.get("/v1/models", headers=bearer("one"))).json()
        assert [model["id"] for model in listed["data"]] == ["qwen3"]
        assert [model["slug"] for model in listed["models"]] == ["qwen3"]
        statuses = [
            (await http.get(f"/v1/models/{name}", headers=bearer("one"))).status_code for name in ("qwen3", "gpt-5")
        ]
        assert statuses == [200, 404]
        assert (await http.get("/v1/models", headers=bearer("two"))).json()["data"] == []
        assert error_of(await ask(http, "two"))["message"].endswith("It may use no models.")


async def test_websocket_is_held_to_the_rights_of_its_key() -> None:
    async with antiphon(Scripted(HELLO), keys={"alice": table("one", models=["qwen*"])}) as url:
        async with sockets.dial(url, additional_headers=bearer("one")) as socket:
            assert await sockets.refusal(socket, model="gpt-5") == (403, "model_not_allowed")
            assert (await sockets.response(socket, model="qwen3"))["status"] == "completed"


async def test_hosted_tools_of_a_key_are_allowed_by_type() -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    tools = {"demo": {}}
    keys = {"none": table("none", tools=[]), "web": table("web", tools=["web_*"]), "demo": table("demo")}
    async with served(keys, tools=tools) as http:
        about = {
            key: (await http.get("/v1/antiphon/about", headers=bearer(key))).json()["tools"] for key in ("none", "demo")
        }
        hosted = {"type": "mcp", "server_label": "demo"}
        for key in ("none", "web"):
            refused = await ask(http, key, tools=[function, hosted])
            assert (refused.status_code, error_of(refused)["param"]) == (403, "tools[1].type")
            assert error_of(refused)["code"] == "tool_not_allowed"
            assert (await ask(http, key, tools=[function])).status_code == 200
        assert (await ask(http, "demo", tools=[function, hosted])).status_code == 200
    assert about == {"none": [], "demo": [hosted]}


async def test_mcp_servers_are_listed_for_keys_that_may_use_them() -> None:
    """The studio offers these."""
    servers = {"lab": {"url": "http://127.0.0.1:9/mcp"}, "ours": {"url": "http://127.0.0.1:9/mcp", "keys": ["two"]}}
    keys = {"none": table("none", tools=["mcp:other"])}
    async with served(keys, api_keys="one,two", tools={"mcp": {"servers": servers}}) as http:
        expected: dict[str, list[str]] = {"none": [], "one": ["lab"], "two": ["lab", "ours"]}
        for key, labels in expected.items():
            tools = (await http.get("/v1/antiphon/about", headers=bearer(key))).json()["tools"]
            assert tools == [{"type": "mcp", "server_label": label} for label in labels]


@pytest.mark.parametrize("entry", ["alice", "one", hash_of("one")])
async def test_mcp_server_may_be_for_a_named_key(entry: str) -> None:
    """By the name of its table, also where it has another owner; or by the key, or its hash."""
    servers = {"lab": {"url": "http://127.0.0.1:9/mcp", "keys": [entry]}}
    keys = {"alice": table("one", owner="team"), "bob": table("two", owner="team")}
    tool = {"type": "mcp", "server_label": "lab"}
    async with served(keys, tools={"mcp": {"servers": servers}}) as http:
        for key, offered, status in (("one", [tool], 200), ("two", [], 400)):
            assert (await http.get("/v1/antiphon/about", headers=bearer(key))).json()["tools"] == offered
            assert (await ask(http, key, tools=[tool])).status_code == status


def test_mcp_server_of_a_key_is_allowed_by_its_label() -> None:
    access = KeyAccess(tools=("web_search", "mcp:lab"))
    assert access.allows_tool("mcp:lab", "mcp")
    assert not access.allows_tool("mcp:other", "mcp")
    assert not access.allows_tool("mcp")
    assert access.allows_tool("web_search_preview", "web_search")


async def test_vector_stores_are_for_keys_that_may_search_files(tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with served({"no": table("no", tools=["mcp"]), "yes": table("yes")}, tools=tools) as http:
        for key, status in (("no", 403), ("yes", 200)):
            assert (await http.get("/v1/vector_stores", headers=bearer(key))).status_code == status


# Limits.


async def test_key_has_its_own_limits_or_those_of_all() -> None:
    keys = {
        "few": table("few", requests_per_minute=1),
        "many": table("many", requests_per_minute=0),
        "usual": table("usual"),
    }
    async with served(keys, limit_requests_per_minute=2) as http:
        answers = {key: [(await ask(http, key)).status_code for _ in range(3)] for key in keys}
    assert answers == {"few": [200, 429, 429], "many": [200, 200, 200], "usual": [200, 200, 429]}


async def test_hashes_of_a_key_share_its_limit_and_keys_of_an_owner_do_not() -> None:
    keys = {
        "alice": {"hash": [hash_of("old"), hash_of("new")], "owner": "team", "requests_per_minute": 1},
        "bob": table("bob", owner="team", requests_per_minute=1),
    }
    async with served(keys) as http:
        assert [(await ask(http, key)).status_code for key in ("old", "new", "bob")] == [200, 429, 200]


# Owners.


async def test_stored_responses_belong_to_the_owner_alone() -> None:
    keys = {"alice": table("a", owner="team"), "bob": table("b", owner="team"), "eve": table("e")}
    async with served(keys) as http:
        made = (await ask(http, "a")).json()["id"]
        conversation = (await http.post("/v1/conversations", json={}, headers=bearer("a"))).json()["id"]
        for path in (f"/v1/responses/{made}", f"/v1/conversations/{conversation}", f"/v1/responses/{made}/input_items"):
            statuses = [(await http.get(path, headers=bearer(key))).status_code for key in "abe"]
            assert statuses == [200, 200, 404], path
        assert (await ask(http, "b", previous_response_id=made)).status_code == 200
        assert (await ask(http, "e", previous_response_id=made)).status_code == 400


async def test_key_that_gets_a_name_keeps_what_it_stored(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/a.db"
    async with served({}, api_keys="one", store_url=store) as http:
        made = (await ask(http, "one")).json()["id"]
    owner = hash_of("one").removeprefix("sha256:")[:32]
    async with served({"alice": table("new", owner=owner)}, store_url=store) as http:
        assert (await http.get(f"/v1/responses/{made}", headers=bearer("new"))).status_code == 200


# Changes at runtime.


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_CONFIG", "antiphon.toml")
    return lambda text: (tmp_path / "antiphon.toml").write_text(text) and None  # type: ignore[func-returns-value]


async def test_key_rotated_at_sighup_reads_what_the_old_one_stored(
    configure: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    configure(key_table("alice", hash_of("old")))
    async with serving(create_app(load_settings(), reload=load_settings)) as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            made = (await ask(http, "old", model="demo")).json()["id"]
            async with sockets.dial(url, additional_headers=bearer("old")) as socket:
                configure(key_table("alice", hash_of("new")) + 'models = ["demo"]\n')
                os.kill(os.getpid(), signal.SIGHUP)
                while "settings reloaded" not in (log := capsys.readouterr().err):
                    await asyncio.sleep(0.005)
                assert "changed=keys" in log
                assert await sockets.refusal(socket, model="demo") == (401, "invalid_api_key")
            statuses = [
                (await http.get(f"/v1/responses/{made}", headers=bearer(key))).status_code for key in ("old", "new")
            ]
            assert statuses == [401, 200]
            assert (await ask(http, "new", model="demo", previous_response_id=made)).status_code == 200
            assert (await ask(http, "new", model="other")).status_code == 403


# Reports about keys.


async def test_log_lines_have_the_name_of_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(settings(keys={"alice": table("sk-one")}, api_keys="sk-plain"))
    capsys.readouterr()
    async with served({"alice": table("sk-one")}, api_keys="sk-plain") as http:
        await ask(http, "sk-one")
        await ask(http, "sk-plain")
    log = capsys.readouterr().err
    assert " caller=alice " in log
    assert f" caller=key_{hash_of('sk-plain')[7:15]} " in log
    assert "sk-one" not in log


async def test_metrics_with_keys_are_for_admin_and_keys_without_a_table() -> None:
    keys = {"alice": table("a"), "boss": table("b", admin=True)}
    async with served(keys, api_keys="plain", metrics="key") as http:
        answers = {key: await http.get("/metrics", headers=bearer(key)) for key in ("a", "b", "plain", "x")}
    assert {key: answer.status_code for key, answer in answers.items()} == {"a": 403, "b": 200, "plain": 200, "x": 401}
    assert error_of(answers["a"])["code"] == "insufficient_permissions"


async def test_official_client_raises_the_right_errors() -> None:
    async with antiphon(Listing(HELLO), keys={"alice": table("one", models=["qwen*"])}) as url:
        options: dict[str, Any] = {"base_url": f"{url}/v1", "max_retries": 0}
        async with openai.AsyncOpenAI(api_key="one", **options) as client:
            assert [model.id async for model in client.models.list()] == ["qwen3"]
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await client.responses.create(model="gpt-5", input="Hi")
            assert (refused.value.code, refused.value.param) == ("model_not_allowed", "model")
        async with openai.AsyncOpenAI(api_key="two", **options) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()


# Every route there is.


OPEN = {
    "/",
    "/healthz",
    "/health",
    "/readyz",
    "/metrics",
    "/docs",
    "/openapi.json",
}  # see `ANTIPHON_METRICS` and `ANTIPHON_DOCS`


async def test_every_route_refuses_an_unknown_or_expired_key(tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    keys = {"old": table("old", expires="2020-01-01"), "new": table("new")}
    app = create_app(settings(keys=keys, tools=tools), backend=Listing(HELLO))
    walked = {
        (method, path)
        for method, path in routes_of(app.router.routes)
        if path not in OPEN and not path.startswith(("/studio", "/docs")) and method != "HEAD"
    }
    assert len(walked) > 50
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(base_url="http://test", transport=transport) as http:
        for method, path in sorted(walked):
            for key, code in (("", "invalid_api_key"), ("unknown", "invalid_api_key"), ("old", "expired_api_key")):
                refused = await http.request(method, path, json={}, headers=bearer(key))
                code = code if not OF_ANTHROPIC.fullmatch(path) else "authentication_error"
                assert (refused.status_code, code_of(refused)) == (401, code), (method, path, key)


# Their errors have types, and no codes.
OF_ANTHROPIC = re.compile(r"(/v1)?/messages(/count_tokens)?")


def code_of(refused: httpx.Response) -> str:
    error = error_of(refused)
    code: str = error["code"] if "code" in error else error["type"]
    return code


USES_A_MODEL = re.compile(
    r"(/v1)?/(responses(/compact|/input_tokens)?|antiphon/translation|chat/completions|completions|embeddings|rerank"
    r"|moderations|(images|audio)(/.*)?|deployments/x/.*|messages(/count_tokens)?)"
)
OF_ADMINS = re.compile(r"(/v1)?/antiphon/(audit|keys(/.*)?)")
USES_A_TOOL = re.compile(r"(/v1)?/(vector_stores|containers)(/.*)?")


async def test_every_route_refuses_a_key_without_the_right(tmp_path: Path, upstream: Upstream) -> None:
    """Two keys with different rights make the same requests."""
    tools: dict[str, Any] = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    if shutil.which("bwrap"):
        tools["code_interpreter"] = {"provider": "bubblewrap"}
    keys = {"none": table("none", models=[], tools=[]), "all": table("all")}
    app = create_app(settings(keys=keys, tools=tools, backend_url=upstream.url))
    upstream.always(sse(chunk("Hi"), finish(), DONE))
    walked = sorted(
        (method, path)
        for method, path in routes_of(app.router.routes)
        if path not in OPEN and not path.startswith(("/studio", "/docs")) and method not in ("HEAD", "OPTIONS")
    )
    body = {"model": "qwen3", "input": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        refused: dict[str, int] = {"model_not_allowed": 0, "tool_not_allowed": 0}
        for method, path in walked:
            answers = {key: await http.request(method, path, json=body, headers=bearer(key)) for key in keys}
            codes = {key: answer.status_code for key, answer in answers.items()}
            code = code_of(answers["none"]) if codes["none"] == 403 else None
            if OF_ANTHROPIC.fullmatch(path) and code == "permission_error":
                code = "model_not_allowed"
            if method == "POST" and USES_A_MODEL.fullmatch(path):
                assert code == "model_not_allowed", (path, codes)
            elif USES_A_TOOL.fullmatch(path):
                assert code == "tool_not_allowed", (path, codes)
            elif OF_ADMINS.fullmatch(path):
                assert [code_of(answer) for answer in answers.values()] == ["insufficient_permissions"] * 2, path
                continue
            else:
                assert codes["none"] == codes["all"] != 403, (method, path, codes)
                continue
            assert codes["all"] != 403, (path, codes)
            refused[code] += 1
    assert refused["model_not_allowed"] >= 2 * 13
    assert refused["tool_not_allowed"] > 20
