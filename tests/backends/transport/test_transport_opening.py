"""Opening connections: address, certificate and proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

import httpx
import pytest

from app.backends.transport import HTTPToolsTransport
from app.backends.transport.connection import RequestTarget
from tests.support.ports import free_port
from tests.support.raw_server import (
    CERTIFICATE,
    OK,
    PATIENCE,
    Peer,
    on_each_loop,
    read,
    request,
    saying,
    serve,
    sized,
)

HELLO = saying(sized(b"hello"))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@on_each_loop
async def test_connection_to_nobody_is_a_connect_error() -> None:
    port = free_port()
    async with HTTPToolsTransport() as transport:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", f"http://127.0.0.1:{port}/"))
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", f"http://{'x' * 64}.invalid/"))
        with pytest.raises(httpx.UnsupportedProtocol):
            await transport.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))


@contextlib.contextmanager
def deaf(address: str, port: int = 0) -> Any:
    """Listen without accepting; connecting then hangs."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            crowd = stack.enter_context(socket.socket())
            crowd.setblocking(False)
            crowd.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@on_each_loop
async def test_server_that_does_not_accept_is_a_connect_timeout() -> None:
    with deaf("127.0.0.1") as port:
        async with HTTPToolsTransport() as transport:
            http_request = httpx.Request("GET", f"http://127.0.0.1:{port}/", extensions={"timeout": {"connect": 0.05}})
            with pytest.raises(httpx.ConnectTimeout):
                await transport.handle_async_request(http_request)
            waiting = asyncio.create_task(
                transport.handle_async_request(httpx.Request("GET", f"http://127.0.0.1:{port}/"))
            )
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def test_name_with_several_addresses_finds_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(HELLO) as server, HTTPToolsTransport() as transport:
        with deaf("127.0.0.2", server.port):
            addresses = ["127.0.0.3", "127.0.0.2", "127.0.0.2", "127.0.0.1", "127.0.0.2"]  # the first refuses
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, server.port)) for address in addresses]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            async with asyncio.timeout(PATIENCE):
                assert await read(transport, httpx.Request("GET", f"http://several.example:{server.port}/")) == b"hello"
            assert b"Host: several.example:" in server.requests[0]


@on_each_loop
async def test_ipv6_address_can_be_used() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with serve(HELLO, host="::1") as server, HTTPToolsTransport() as transport:
        assert await read(transport, httpx.Request("GET", f"http://[::1]:{server.port}/")) == b"hello"


@on_each_loop
async def test_certificate_that_the_environment_names_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    body = bytes(range(256)) * 10_000

    async def script(peer: Peer) -> None:
        protocol = peer.writer.get_extra_info("ssl_object").selected_alpn_protocol().encode()
        while True:
            await peer.request()
            await peer.send(OK + b"Protocol: %b\r\nContent-Length: %d\r\n\r\n" % (protocol, len(body)), body)

    async with serve(script, encrypted=True) as server, HTTPToolsTransport() as transport:
        for _ in range(2):
            response = await transport.handle_async_request(request(server))
            assert response.headers["protocol"] == "http/1.1"
            assert await response.aread() == body
        assert len(server.peers) == 1
        response = await transport.handle_async_request(request(server))
        await response.aclose()


@on_each_loop
async def test_certificate_that_nobody_trusts_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    async with serve(HELLO, encrypted=True) as server, HTTPToolsTransport() as transport:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await read(transport, request(server))
        async with HTTPToolsTransport(verify=False) as careless:
            assert await read(careless, request(server)) == b"hello"
        async with HTTPToolsTransport(verify=ssl.create_default_context(cafile=str(CERTIFICATE))) as trusting:
            assert await read(trusting, request(server)) == b"hello"


@on_each_loop
async def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(HELLO) as proxy, serve(HELLO) as server:
        monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://").strip("/"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with HTTPToolsTransport() as transport:
            assert await read(transport, httpx.Request("GET", "http://far.example/a?b")) == b"hello"
            assert await read(transport, request(server)) == b"hello"
            target = RequestTarget("POST", httpx.URL("http://far.example/c"))
            reply = await transport.send(target, b"Content-Length: 2\r\nX-Y: z\r\n", b"{}", {})
            assert (reply.status, await reply.response().aread()) == (200, b"hello")
        async with HTTPToolsTransport(trust_env=False) as transport:
            assert await read(transport, request(server)) == b"hello"
        assert [received.split(b"\r\n")[0] for received in proxy.requests] == [
            b"GET http://far.example/a?b HTTP/1.1",
            b"POST http://far.example/c HTTP/1.1",
        ]
        assert b"\r\nX-Y: z\r\n" in proxy.requests[1] and proxy.requests[1].endswith(b"\r\n\r\n{}")
        assert len(server.requests) == 2


@on_each_loop
async def test_connection_cancelled_while_opening_leaves_nothing() -> None:
    async with serve(HELLO) as server:
        transport = HTTPToolsTransport()
        for rounds in range(30):
            task = asyncio.create_task(read(transport, request(server)))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await transport.aclose()  # which waits for every socket
