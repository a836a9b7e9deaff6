"""The head of a request, of which a server must not take any amount: on a real socket, byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.api import uvicorn_http
from app.api.uvicorn_http import MOST
from app.main import create_app
from tests.api import sockets
from tests.scripted import Scripted
from tests.serving import serving, settings

HTTP = "app.api.uvicorn_http:Http"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serving(create_app(settings(), backend=Scripted([])), http=HTTP) as served:
        yield served


async def said_to(url: str, *pieces: bytes) -> bytes:
    """Send pieces until the server has had enough, and return all that it says before it closes the connection."""
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def test_large_heads_are_read(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for _ in range(2):
            answer = await http.get("/healthz", headers={"x-large": "a" * (MOST - 2000)})
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * MOST + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: x\r\n" * MOST + b"\r\n",
        b"GET /" + b"x" * MOST + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["one header", "many headers", "the path"],
)
async def test_heads_that_are_too_large_are_refused_in_the_apis_shape(url: str, head: bytes) -> None:
    answer = await said_to(url, head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"request_header_fields_too_large"' in answer


async def test_a_head_without_an_end_is_not_kept(url: str) -> None:
    beginning = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: "
    answer = await said_to(url, beginning, *[b"x" * 4096] * 1000)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_what_is_no_http_is_refused_in_the_apis_shape(url: str) -> None:
    answer = await said_to(url, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_http"' in answer


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"])
async def test_who_does_not_come_to_the_point_is_left(
    monkeypatch: pytest.MonkeyPatch, url: str, beginning: bytes
) -> None:
    monkeypatch.setattr(uvicorn_http, "PATIENCE", 0.1)
    assert await said_to(url, beginning) == b""


async def test_who_has_come_to_the_point_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_http, "PATIENCE", 0.1)
    app = create_app(settings(), backend=Scripted([0.4, {"choices": [{"delta": {"content": "Hi"}}]}]))
    async with serving(app, http=HTTP, ws="app.api.uvicorn_socket:Socket") as served:
        async with httpx.AsyncClient(base_url=served, trust_env=False) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi"})
            assert answer.json()["status"] == "completed"
        async with sockets.dial(served) as socket:
            assert (await sockets.response(socket))["status"] == "completed"
