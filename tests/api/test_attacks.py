"""No request uses a model that its key may not use, even if server and backend read it differently."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from app.core.access import hash_of
from app.main import create_app
from tests.api.attacks import BESIDE, FORBIDDEN, FORMS, FRAMING, HOSTS, JSON, MESSAGES, Attack
from tests.support import sockets
from tests.support.build import delta
from tests.support.routes import routes_of
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import Upstream, reply

KEYS = {"team": {"hash": hash_of("sk-team"), "models": ["m1"]}}


NO_NAMES = ["a\0b", "a\nb", "a\x1b[2J", "a\x85b", "a\x7f", " a", "a\u2003", "a" * 513]


@pytest.fixture
async def up() -> AsyncIterator[Upstream]:
    async with Upstream() as upstream:
        yield upstream


async def status_of(url: str, attack: Attack) -> int:
    """Send a request as it is, and return the status of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = [
        b"POST %b HTTP/1.1" % attack.path,
        b"Host: localhost",
        b"Authorization: Bearer sk-team",
        b"Connection: close",
    ]
    lines = [*head, *attack.headers, b"Content-Length: %d" % len(attack.body), b"", attack.body]
    writer.write(b"\r\n".join(lines))
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


@pytest.mark.parametrize("table", [FORMS, JSON, MESSAGES, BESIDE], ids=["forms", "json", "messages", "beside"])
async def test_attack_on_a_keys_models_reaches_no_other_model(up: Upstream, table: Mapping[str, Attack]) -> None:
    up.always(reply(b'{"object": "list", "data": []}'))
    async with antiphon(backend_url=up.url, keys=KEYS, backend_overrides={"transport.messages": True}) as url:
        for name, attack in table.items():
            status, received = await status_of(url, attack), [*up.requests]
            up.requests.clear()
            assert status == attack.status, name
            assert len(received) == (status == 200), name
            for request in received:
                parts = [
                    request.method,
                    request.path,
                    *request.headers.values(),
                    *request.headers,
                    request.body.decode(),
                ]
                sent = "\n".join(parts).encode()
                assert attack.has in sent, name
                assert not (attack.hides and FORBIDDEN in sent), name


POSTED = {
    "a response": "/v1/responses",
    "a count of tokens": "/v1/responses/input_tokens",
    "a compaction": "/v1/responses/compact",
    "a translation": "/v1/antiphon/translation",
    "a chat": "/v1/chat/completions",
    "a message": "/v1/messages",
    "a count of a message's tokens": "/v1/messages/count_tokens",
    "embeddings": "/v1/embeddings",
    "images": "/v1/images/generations",
}


@pytest.mark.parametrize("model", NO_NAMES, ids=ascii)
async def test_value_that_can_be_no_model_name_is_a_400_everywhere(up: Upstream, model: str) -> None:
    body = {"model": model, "input": "Hi.", "messages": [{"role": "user", "content": "Hi."}]}
    seen: dict[str, tuple[int, str | None]] = {}
    async with antiphon(backend_url=up.url, api_keys="sk-team") as url, client_of(url) as http:
        for name, path in POSTED.items():
            seen[name] = refusal_of(await http.post(path, json=body))
        seen["a stream"] = refusal_of(await http.post("/v1/responses", json={**body, "stream": True}))
        seen["in the background"] = refusal_of(await http.post("/v1/responses", json={**body, "background": True}))
        file = {"file": ("a.wav", b"RIFF")}
        seen["a form"] = refusal_of(await http.post("/v1/audio/transcriptions", data={"model": model}, files=file))
        if "\0" not in model and "\n" not in model:  # these are in no path
            deployment = f"/openai/deployments/{quote(model)}/embeddings"
            seen["a deployment"] = refusal_of(await http.post(deployment, json={"input": "Hi."}))
        async with sockets.dial(url, additional_headers={"authorization": "Bearer sk-team"}) as socket:
            (frame,) = await sockets.ask(socket, model=model)
            seen["a WebSocket"] = frame["status"], frame["error"]["param"]
        assert seen == dict.fromkeys(seen, (400, "model"))
        assert (await http.get("/v1/antiphon/usage")).json()["data"] == []
    assert not up.requests


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer sk-team"}, timeout=60, trust_env=False)


def refusal_of(answer: httpx.Response) -> tuple[int, str | None]:
    error = answer.json()["error"]
    # Anthropic's errors name the field in the message alone.
    return answer.status_code, error["param"] if "param" in error else error["message"].split("'")[1]


@pytest.mark.parametrize("framing", FRAMING.values(), ids=FRAMING)
async def test_body_with_an_ambiguous_length_is_refused(up: Upstream, framing: bytes) -> None:
    up.always(reply(b"{}"))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-team\r\n"
    async with antiphon(backend_url=up.url, keys=KEYS) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(head + framing)
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")  # and the connection is closed
        writer.close()
    assert not up.requests


async def test_pipelined_requests_are_each_checked(up: Upstream) -> None:
    up.always(reply(b'{"object": "list", "data": []}'))
    line = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-team\r\n"
    head = line + b"Content-Length: %d\r\n\r\n%b"
    bodies = [b'{"model": "m1"}', b'{"model": "secret-model"}', b'{"model": "m1"}']
    async with antiphon(backend_url=up.url, keys=KEYS) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"".join(head % (len(body), body) for body in bodies))
        statuses = []
        async with asyncio.timeout(60):
            for _ in bodies:
                answer = await reader.readuntil(b"\r\n\r\n")
                statuses.append(int(answer.split()[1]))
                length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
        writer.close()
    assert statuses == [200, 403, 200]
    assert [request.json["model"] for request in up.requests] == ["m1", "m1"]


UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize("protocol", ["HTTP", "WebSocket"])
async def test_host_header_of_a_server_without_keys_is_an_address_or_a_known_name(protocol: str) -> None:
    """A page whose name resolves to this server sends a GET without `Origin`, but with its own `Host`."""
    path, headers, served = (b"/healthz", b"", 200) if protocol == "HTTP" else (b"/v1/responses", UPGRADE, 101)
    app = create_app(settings(allowed_hosts="chat.example,*.lab.example"), backend=Scripted([]))
    seen = {}
    async with serving(
        app, http="app.api.uvicorn.http:HTTPProtocol", ws="app.api.uvicorn.websocket:WebSocketProtocol"
    ) as url:
        for host in HOSTS:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path, host.encode(), headers))
            async with asyncio.timeout(60):
                seen[host] = int((await reader.readline()).split()[1])
            writer.close()
    assert {host: status == served for host, status in seen.items()} == HOSTS
    assert {status for host, status in seen.items() if not HOSTS[host]} == {400, 403}


async def test_unknown_host_is_refused_by_every_route_of_a_server_without_keys(tmp_path: Path) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    if shutil.which("bwrap"):
        tools["code_interpreter"] = {"provider": "bubblewrap"}
    backend = Scripted([delta(content="Hi.")])
    app = create_app(settings(tools=tools), backend=backend)
    walked = {*routes_of(app.router.routes), ("GET", "/nowhere"), ("GET", "/studio/css/x"), ("GET", "/docs/page/x")}
    assert len(walked) > 100
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(base_url="http://evil.example:8080", transport=transport) as http:
        for method, path in sorted(walked):
            refused = await http.request(method, path, json={"model": "m", "input": "Hi."})
            assert refused.status_code == 403, (method, path)
            if method != "HEAD":
                assert b"ANTIPHON_ALLOWED_HOSTS" in refused.content, (method, path)
    assert not backend.received


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"allowed_hosts": "*"}, 200),
        ({"allowed_hosts": "EVIL.example"}, 200),
        ({"allowed_hosts": "good.example"}, 403),
        ({"host": "evil.example", "allow_open": True}, 200),
        ({"api_keys": "k"}, 200),
    ],
    ids=str,
)
async def test_host_that_is_configured_or_with_keys_required_is_served(values: dict[str, Any], status: int) -> None:
    transport = httpx.ASGITransport(create_app(settings(**values), backend=Scripted([])))
    async with httpx.AsyncClient(base_url="http://evil.example:8080", transport=transport) as http:
        assert (await http.get("/healthz")).status_code == status
