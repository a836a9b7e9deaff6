"""SECURITY.md's claims about keys, callers' URLs and stored data."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest

from app.api.auth import Auth
from app.main import create_app
from app.observability import logging as logs
from tests.observability.test_tracing import Telemetry
from tests.support import sockets
from tests.support.build import delta
from tests.support.redis_server import RedisServer
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

KEY, BACKEND = "caller-key-7f", "backend-key-3c"
KEYED = {"authorization": f"Bearer {KEY}"}
HI = sse(chunk("Hi"), finish(), DONE)


async def client(url: str, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers=headers or {}, timeout=60, trust_env=False)


def stored_bytes(path: Path) -> bytes:
    """All bytes written by a store, including its write-ahead log."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


async def test_store_has_the_hash_of_a_key_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    values = {"api_keys": KEY, "backend_api_key": BACKEND, "secret_key": "sealing-key-5d"}
    async with Upstream() as upstream:
        upstream.always(HI)
        async with antiphon(backend_url=upstream.url, store_url=f"sqlite:///{path}", **values) as url:
            async with await client(url, KEYED) as http:
                conversation = (await http.post("/v1/conversations", json={})).json()["id"]
                body = {"model": "m", "input": "a question", "conversation": conversation}
                (await http.post("/v1/responses", json=body)).raise_for_status()
                id = (await http.post("/v1/responses", json={**body, "background": True})).json()["id"]
                while (await http.get(f"/v1/responses/{id}")).json()["status"] != "completed":
                    await asyncio.sleep(0.01)
        assert upstream.requests[0].headers["authorization"] == f"Bearer {BACKEND}"
    written = stored_bytes(path)
    assert b"a question" in written
    assert Auth([KEY]).caller(KEYED).owner.encode() in written
    for key in (KEY, BACKEND, "sealing-key-5d"):
        assert key.encode() not in written


async def test_response_with_store_false_is_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with sockets.listening(Scripted([delta(content="an answer")]), None, store_url=f"sqlite:///{path}") as url:
        async with await client(url) as http:
            for stream in (False, True):
                body = {"model": "m", "input": "a question", "store": False, "stream": stream}
                (await http.post("/v1/responses", json=body)).raise_for_status()
            await http.post("/v1/responses/compact", json={"model": "m", "input": "a question"})
        async with sockets.dial(url) as socket:
            await sockets.ask(socket, input="a question", store=False)
    written = stored_bytes(path)
    assert b"a question" not in written
    assert b"an answer" not in written


async def test_urls_of_callers_are_not_fetched() -> None:
    async with Upstream() as upstream, Upstream() as named:
        upstream.always(HI)
        there = f"{named.url}/picture.png"
        content: list[dict[str, Any]] = [
            {"type": "input_text", "text": there},
            {"type": "input_image", "image_url": there},
            {"type": "input_file", "file_url": there, "filename": "a.pdf"},
        ]
        body = {
            "model": "m",
            "input": [{"type": "message", "role": "user", "content": content}],
            "metadata": {"a": there},
        }
        async with antiphon(backend_url=upstream.url) as url, await client(url) as http:
            for path in ("", "/input_tokens", "/compact"):
                await http.post(f"/v1/responses{path}", json=body)
            tools = [{"type": "mcp", "server_url": there, "server_label": "x"}, {"type": "web_search"}]
            await http.post("/v1/responses", json={"model": "m", "input": "Hi", "tools": tools})
        assert upstream.requests
        assert there in upstream.requests[0].body.decode()
        assert named.connections == 0


async def test_request_headers_are_not_sent_to_the_backend() -> None:
    mine = {"x-mine": "yes", "cookie": "a=b", "user-agent": "mine/1", "x-forwarded-for": "1.2.3.4", "traceparent": "00"}
    async with Upstream() as upstream:
        upstream.always(HI)
        async with antiphon(backend_url=upstream.url, api_keys=KEY) as url, await client(url, KEYED | mine) as http:
            (await http.post("/v1/responses?key=value", json={"model": "m", "input": "Hi"})).raise_for_status()
        (request,) = upstream.requests
    assert request.path == "/v1/chat/completions"
    assert not {"x-mine", "cookie", "x-forwarded-for", "traceparent", "authorization"} & request.headers.keys()
    assert "mine" not in request.headers.get("user-agent", "")


async def test_backend_address_is_not_shown() -> None:
    async with Upstream() as upstream:
        port = f":{upstream.port}"  # the digits alone may occur in an id
    async with antiphon(backend_url=f"http://user:hush@127.0.0.1{port}/v1", backend_retries=0) as url:
        async with await client(url) as http:
            bodies = [
                (await http.post("/v1/responses", json={"model": "m", "input": "Hi", "stream": stream})).text
                for stream in (False, True)
            ]
            bodies += [(await http.get(path)).text for path in ("/v1/models", "/readyz", "/metrics", "/openapi.json")]
    assert not [one for one in bodies for word in ("127.0.0.1", port, "hush") if word in one]


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [("", None), ("https://mine.example", "https://mine.example"), ("https://other.example", None), ("*", "*")],
)
async def test_web_pages_are_allowed_only_if_configured(origins: str, allowed: str | None) -> None:
    async with antiphon(Scripted([delta(content="Hi")]), cors_origins=origins) as url:
        async with await client(url, {"origin": "https://mine.example"}) as http:
            before = await http.options("/v1/responses", headers={"access-control-request-method": "POST"})
            answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi"})
    assert [one.headers.get("access-control-allow-origin") for one in (before, answer)] == [allowed] * 2


CANARY = "canary-5f0c"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "mcp",
        "server_label": "lab",
        "server_url": f"https://user:{CANARY}@lab.example/{CANARY}/mcp?key={CANARY}",
        "authorization": CANARY,
        "headers": {"x-key": CANARY},
    },
    {
        "type": "shell",
        "environment": {
            "type": "container_auto",
            "network_policy": {
                "type": "allowlist",
                "allowed_domains": ["api.example"],
                "domain_secrets": [{"domain": "api.example", "name": "KEY", "value": CANARY}],
            },
        },
    },
]
BRINGING = {"type": "additional_tools", "role": "developer", "tools": [*TOOLS, {"type": "namespace", "name": "n"}]}


@pytest.fixture
def logged() -> io.StringIO:
    """The server's log at the most verbose level, with content."""
    logs.configure(settings(log_level="debug", log_format="json", log_content=True))
    lines = io.StringIO()
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(lines)
    return lines


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_tool_credentials_are_nowhere(
    store: str, tmp_path: Path, logged: io.StringIO, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "store.db"
    server = request.getfixturevalue("redis_server") if store == "redis" else None
    telemetry = Telemetry()
    body = {
        "model": "m",
        "input": [BRINGING, {"role": "user", "content": "a question"}],
        "tools": TOOLS,
        "include": ["antiphon:events"],
    }
    shown: list[str] = []
    async with Upstream() as upstream:
        upstream.always(HI)
        values = {"backend_url": upstream.url, "store_url": server.url if server else f"sqlite:///{path}"}
        app = create_app(settings(**values), tracing=telemetry.tracing)
        async with serving(app, ws="app.api.uvicorn.websocket:WebSocketProtocol") as url, await client(url) as http:

            async def ask(method: str, path: str, **json: Any) -> Any:
                answer = await http.request(method, f"/v1/{path}", json=json or None)
                shown.append(f"{answer.headers}{answer.text}")
                assert answer.is_success, answer.text
                return answer

            ids = [(await ask("POST", "responses", **body)).json()["id"]]
            streamed = (await ask("POST", "responses", **body, stream=True)).text
            ids.append(re.search(r'"id":"(resp_\w+)"', streamed)[1])  # type: ignore[index]
            ids.append((await ask("POST", "responses", **body, previous_response_id=ids[0])).json()["id"])
            ids.append((await ask("POST", "responses", **body, background=True)).json()["id"])
            while (await ask("GET", f"responses/{ids[-1]}")).json()["status"] != "completed":
                await asyncio.sleep(0.01)
            await ask("GET", f"responses/{ids[-1]}?stream=true")
            for id in ids:
                await ask("GET", f"responses/{id}")
                await ask("GET", f"responses/{id}/input_items")
            await ask("POST", "responses/input_tokens", **body)
            await ask("POST", "responses/compact", **body)
            conversation = (await ask("POST", "conversations", items=[BRINGING])).json()["id"]
            await ask("POST", f"conversations/{conversation}/items", items=[BRINGING])
            await ask("POST", "responses", **body, conversation=conversation)
            await ask("GET", f"conversations/{conversation}/items")
            refused = await http.post("/v1/responses", json={**body, "temperature": "hot"})
            shown.append(refused.text)
            shown.append((await http.get("/metrics")).text)
            async with sockets.dial(url) as socket:
                for field in ({}, {"store": False}, {"temperature": "hot"}):
                    shown.append(str(await sockets.ask(socket, **{**body, **field})))
                short = {"tools": [{"type": "mcp", "server_label": "lab", "authorization": CANARY}]}
                shown.append(str(await sockets.ask(socket, **short)))
        shown += [str(received.body) for received in upstream.requests]
    shown += [span.to_json() for span in telemetry.spans]
    shown.append(str(telemetry.points()))
    shown.append(logged.getvalue())
    written = str(contents(server)) if server else stored_bytes(path).decode(errors="replace")
    assert "a question" in written
    assert "https://lab.example" in written
    assert "app.content" in logged.getvalue()
    assert not [one for one in [*shown, written] if CANARY in one]


def contents(server: RedisServer) -> list[Any]:
    """Everything in a Redis."""
    with server.client() as redis:
        return [_value(redis, key) for key in redis.scan_iter()]


def _value(redis: Any, key: bytes) -> Any:
    match redis.type(key):
        case b"hash":
            return redis.hgetall(key)
        case b"stream":
            return redis.xrange(key)
        case b"string":
            return redis.get(key)
    return redis.dump(key)
