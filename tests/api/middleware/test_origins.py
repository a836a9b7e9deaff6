"""Web pages cannot use a keyless server on their visitor's machine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.support import sockets
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

HELLO: list[Any] = [delta(content="Hello")]
# As a page may send it without asking beforehand.
BODY = json.dumps({"model": "m", "input": "Hi"}).encode()
PLAIN = {"content-type": "text/plain"}

PAGES = [
    "https://evil.example",
    "http://evil.example:8080",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "http://192.168.1.7",
    "http://[2001:db8::1]",
    "null",
    "http://[",
    "evil.example",
    "",
]
AT_HOME = [
    "http://localhost:5173",
    "https://localhost",
    "http://chat.localhost:3000",
    "http://127.0.0.1:8080",
    "http://127.1.2.3",
    "http://[::1]:8080",
    "file://",
    "app://obsidian.md",
    "vscode-webview://1f2e3d",
    "chrome-extension://abcdefgh",
]


async def answer_to_origin(origin: str | None, host: str = "", **settings: Any) -> tuple[httpx.Response, Scripted]:
    backend = Scripted(HELLO)
    headers = PLAIN | ({} if origin is None else {"origin": origin}) | ({"host": host} if host else {})
    async with antiphon(backend, **settings) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        return await http.post("/v1/responses", content=BODY, headers=headers), backend


async def connected(origin: str, **settings: Any) -> int:
    """The status for a page's WebSocket."""
    async with sockets.listening(Scripted(HELLO), **settings) as url:
        try:
            async with sockets.dial(url, origin=origin):
                return 101
        except InvalidStatus as refused:
            return refused.response.status_code


@pytest.mark.parametrize("origin", PAGES)
async def test_request_from_a_web_page_is_refused(origin: str) -> None:
    answer, backend = await answer_to_origin(origin)
    assert answer.status_code == 403
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request", "origin_not_allowed")
    assert "ANTIPHON_CORS_ORIGINS" in error["message"]
    assert answer.headers["x-request-id"]
    assert not backend.received


@pytest.mark.parametrize("address", ["192.168.1.7:8080", "192.168.1.7", "[2001:db8::1]:8080"])
async def test_request_from_the_servers_own_page_at_an_address_is_accepted(address: str) -> None:
    answer, _ = await answer_to_origin(f"http://{address}", host=address)
    assert answer.status_code == 200
    other, _ = await answer_to_origin(f"http://{address}", host="192.168.1.8:8080")
    assert other.status_code == 403


@pytest.mark.parametrize(("allowed", "status"), [("chat.example", 200), ("*.example", 200), ("*", 403)])
async def test_request_from_the_servers_own_page_at_an_allowed_host_is_accepted(allowed: str, status: int) -> None:
    """`*` names no host, so it does not tell the server's own page from others."""
    answer, _ = await answer_to_origin("http://chat.example:8000", host="chat.example:8000", allowed_hosts=allowed)
    assert answer.status_code == status


async def test_request_from_a_page_with_a_name_that_resolves_here_is_refused() -> None:
    """DNS rebinding: for the browser, page and server have the same origin."""
    answer, _ = await answer_to_origin("http://evil.example:8000", host="evil.example:8000")
    assert answer.status_code == 403


@pytest.mark.parametrize("origin", [None, *AT_HOME])
async def test_request_without_an_origin_is_accepted(origin: str | None) -> None:
    answer, _ = await answer_to_origin(origin)
    assert answer.status_code == 200


async def test_every_path_from_a_web_page_is_refused() -> None:
    async with antiphon(Scripted(HELLO)) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        paths = ["/responses", "/v1/models", "/v1/responses/resp_x", "/metrics", "/nowhere"]
        answers = [await http.get(path, headers={"origin": "http://evil.example"}) for path in paths]
    assert [answer.status_code for answer in answers] == [403] * len(paths)


@pytest.mark.parametrize(
    "settings", [{"cors_origins": "https://evil.example"}, {"cors_origins": "*"}, {"api_keys": "k"}]
)
async def test_origin_that_is_configured_or_with_keys_required_is_accepted(settings: Any) -> None:
    answer, _ = await answer_to_origin("https://evil.example", **settings)
    assert answer.status_code == (401 if "api_keys" in settings else 200)


async def test_origin_other_than_those_configured_is_refused() -> None:
    answer, _ = await answer_to_origin("https://evil.example", cors_origins="https://good.example")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [("app://obsidian.md", 101), ("file://", 101), ("http://evil.example", 403), ("http://localhost:1", 403)],
)
async def test_websocket_from_a_web_page_is_refused(origin: str, status: int) -> None:
    """There the answers could be read, which over HTTP the browser prevents."""
    assert await connected(origin) == status


async def test_websocket_from_a_name_that_resolves_here_is_refused() -> None:
    async with sockets.listening(Scripted(HELLO)) as url:
        port = int(url.rpartition(":")[2])
        there = f"http://evil.example:{port}"
        with pytest.raises(InvalidStatus) as refused:
            await sockets.dial(there, host="127.0.0.1", port=port, origin=there)
    assert refused.value.response.status_code == 403
