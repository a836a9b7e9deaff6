"""Response heads and bodies on a real socket."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from tests.support.serving import serving

HTTP = "app.api.uvicorn.http:HTTPProtocol"


class App:
    """An ASGI application with `messages` to send, and events to await or exceptions to raise in between."""

    def __init__(self, *messages: Any) -> None:
        self.messages = messages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        for message in self.messages:
            if isinstance(message, asyncio.Event):
                await message.wait()
            elif isinstance(message, Exception):
                raise message
            else:
                await send(message)


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


LENGTH_2 = (b"content-length", b"2")


async def answer(app: App, method: bytes = b"GET") -> bytes:
    """Send a request to the application, and read until the connection closes."""
    async with serving(app, http=HTTP) as url:
        address = httpx.URL(url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(method + b" / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return received


async def test_response_with_a_length_is_sent_with_its_body() -> None:
    received = await answer(App(start(LENGTH_2), body(b"Hi")))
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"content-length: 2\r\nconnection: close\r\n\r\nHi")


async def test_head_is_sent_with_the_first_part_of_the_body() -> None:
    go = asyncio.Event()
    async with serving(App(start(LENGTH_2), body(b"H", more=True), go, body(b"i")), http=HTTP) as url:
        address = httpx.URL(url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert await asyncio.wait_for(reader.readexactly(1), 60) == b"H"
        go.set()
        assert await asyncio.wait_for(reader.readexactly(1), 60) == b"i"
        writer.close()
    assert b"content-length: 2\r\n" in head


async def test_body_without_a_length_is_chunked() -> None:
    received = await answer(App(start(), body(b"Hi", more=True), body(b"", more=True), body(b" Ada")))
    assert received.endswith(b"transfer-encoding: chunked\r\n\r\n2\r\nHi\r\n4\r\n Ada\r\n0\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_status_without_a_body_has_no_framing(status: int) -> None:
    received = await answer(App(start(status=status), body(b"")))
    assert received.endswith(b"connection: close\r\n\r\n")
    assert b"transfer-encoding" not in received


async def test_head_request_gets_the_length_without_the_body() -> None:
    received = await answer(App(start(LENGTH_2), body(b"Hi")), b"HEAD")
    assert received.endswith(b"content-length: 2\r\nconnection: close\r\n\r\n")


@pytest.mark.parametrize("header", [(b"x y", b"1"), (b"x", b"1\r\ny: 2"), (b"x", b"\0")])
async def test_invalid_header_is_an_internal_error(header: tuple[bytes, bytes]) -> None:
    received = await answer(App(start(header), body(b"Hi")))
    assert received.startswith(b"HTTP/1.1 500 ")
    assert b"\r\ny: 2" not in received


@pytest.mark.parametrize("data", [b"H", b"Hi!"], ids=["short", "long"])
async def test_body_of_another_length_ends_the_connection(data: bytes) -> None:
    received = await answer(App(start(LENGTH_2), body(data)))
    assert received.partition(b"\r\n\r\n")[2] in (b"", b"H")


async def test_application_that_fails_after_the_head_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    received = await answer(App(start(LENGTH_2), ValueError("The body is lost.")))
    assert b"Hi" not in received
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.ERROR]


async def test_scope_has_the_root_path_of_the_server() -> None:
    scopes: list[Any] = []

    class Recording(App):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            scopes.append(scope)
            await super().__call__(scope, receive, send)

    async with serving(Recording(start(LENGTH_2), body(b"Hi")), http=HTTP, root_path="/prefix") as url:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            assert (await http.get(f"{url}/models")).text == "Hi"
    requests = [scope for scope in scopes if scope["type"] == "http"]
    assert [(scope["path"], scope["root_path"]) for scope in requests] == [("/prefix/models", "/prefix")]
