"""The transport: which connection serves which request, how they are opened, and what is sent on them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.backends.transport import LIMITS, HTTPToolsTransport
from tests.backends.raw_server import (
    CERTIFICATE,
    CHUNKED,
    END,
    OK,
    Peer,
    Server,
    chunk,
    on_each_loop,
    serve,
    sized,
)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def request(server: Server, method: str = "GET", content: Any = None, **timeouts: float) -> httpx.Request:
    return httpx.Request(method, server.url, content=content, extensions={"timeout": timeouts})


def limits(**some: Any) -> httpx.Limits:
    return httpx.Limits(**{**vars(LIMITS), **some})


async def hello(peer: Peer) -> None:
    """Answer every request with `hello`."""
    while True:
        await peer.request()
        await peer.send(sized(b"hello"))


class Doors:
    """Answers a request when its door is opened."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.open = asyncio.Semaphore(0)

    async def __call__(self, peer: Peer) -> None:
        while True:
            await peer.request()
            self.asked.release()
            await self.open.acquire()
            await peer.send(sized(b"hello"))


async def read(transport: HTTPToolsTransport, asked: httpx.Request) -> bytes:
    response = await transport.handle_async_request(asked)
    return await response.aread()


# Connections that are used again, and those that are not.


@on_each_loop
async def test_requests_one_after_the_other_share_a_connection_and_those_at_once_do_not() -> None:
    doors = Doors()
    async with serve(doors) as server, HTTPToolsTransport() as transport:
        for at_once in (1, 1, 3, 2):
            asked = [asyncio.create_task(read(transport, request(server))) for _ in range(at_once)]
            for _ in asked:
                await doors.asked.acquire()
            for _ in asked:
                doors.open.release()
            assert await asyncio.gather(*asked) == [b"hello"] * at_once
        assert len(server.peers) == 3


@on_each_loop
async def test_origins_do_not_share_connections() -> None:
    async with serve(hello) as one, serve(hello) as other, HTTPToolsTransport() as transport:
        for server in (one, other, one, other):
            assert await read(transport, request(server)) == b"hello"
        assert (len(one.peers), len(other.peers)) == (1, 1)


@on_each_loop
async def test_a_connection_that_the_server_closed_while_idle_is_replaced() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        peer.close()

    async with serve(once) as server, HTTPToolsTransport() as transport:
        assert await read(transport, request(server)) == b"hello"
        await asyncio.sleep(0.05)
        assert await read(transport, request(server)) == b"hello"
        assert [len(peer.requests) for peer in server.peers] == [1, 1]


@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
@on_each_loop
async def test_a_request_that_meets_a_closing_connection_is_sent_again_on_a_new_one(reset: bool) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.request()
        peer.reset() if reset else peer.close()

    async with serve(once) as server, HTTPToolsTransport() as transport:
        assert await read(transport, request(server, "POST", b"one")) == b"hello"
        assert await read(transport, request(server, "POST", b"two")) == b"hello"
        assert [asked[-3:] for asked in server.requests] == [b"one", b"two", b"two"]


@on_each_loop
async def test_a_request_is_not_sent_again_once_a_byte_of_its_reply_has_come() -> None:
    async def half(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.request()
        await peer.send(b"H")
        peer.close()

    async with serve(half) as server, HTTPToolsTransport() as transport:
        assert await read(transport, request(server)) == b"hello"
        with pytest.raises(httpx.RemoteProtocolError, match="before its reply began"):
            await read(transport, request(server))
        assert len(server.requests) == 2


@on_each_loop
async def test_a_request_is_not_sent_again_when_a_new_connection_closes() -> None:
    async def never(peer: Peer) -> None:
        await peer.request()
        peer.close()

    async with serve(never) as server, HTTPToolsTransport() as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await read(transport, request(server))
        assert len(server.requests) == 1


@on_each_loop
async def test_idle_connections_expire() -> None:
    expired = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.hung_up()
        expired.set()

    async with serve(script) as server, HTTPToolsTransport(limits=limits(keepalive_expiry=0.05)) as transport:
        assert await read(transport, request(server)) == b"hello"
        await expired.wait()


@on_each_loop
async def test_no_more_idle_connections_are_kept_than_allowed() -> None:
    doors, closed = Doors(), asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        try:
            await doors(peer)
        finally:
            closed.release()

    async with serve(script) as server, HTTPToolsTransport(limits=limits(max_keepalive_connections=1)) as transport:
        asked = [asyncio.create_task(read(transport, request(server))) for _ in range(3)]
        for _ in asked:
            await doors.asked.acquire()
            doors.open.release()
        await asyncio.gather(*asked)
        await closed.acquire()
        await closed.acquire()
        assert closed.locked()


@on_each_loop
async def test_connections_can_be_limited() -> None:
    doors = Doors()
    async with serve(doors) as server, HTTPToolsTransport(limits=limits(max_connections=2)) as transport:
        asked = [asyncio.create_task(read(transport, request(server))) for _ in range(6)]
        for _ in asked:
            doors.open.release()
        assert await asyncio.gather(*asked) == [b"hello"] * 6
        assert len(server.peers) == 2


@on_each_loop
async def test_whoever_waits_too_long_for_a_connection_gets_a_pool_timeout() -> None:
    doors = Doors()
    async with serve(doors) as server, HTTPToolsTransport(limits=limits(max_connections=1)) as transport:
        first = asyncio.create_task(read(transport, request(server)))
        await doors.asked.acquire()
        with pytest.raises(httpx.PoolTimeout):
            await read(transport, request(server, pool=0.02))
        given_up = asyncio.create_task(read(transport, request(server)))
        await asyncio.sleep(0.01)
        given_up.cancel()
        third = asyncio.create_task(read(transport, request(server)))
        doors.open.release()
        doors.open.release()
        assert await asyncio.gather(first, third) == [b"hello", b"hello"]


@on_each_loop
async def test_failures_give_back_their_place_in_the_limit() -> None:
    async def script(peer: Peer) -> None:
        asked = await peer.request()
        await peer.send(b"nonsense" if asked.startswith(b"DELETE") else CHUNKED + chunk(b"hello"))

    async with serve(script) as server, HTTPToolsTransport(limits=limits(max_connections=1)) as transport:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                await transport.handle_async_request(httpx.Request("GET", f"http://{'x' * 64}.invalid/"))
            with pytest.raises(httpx.RemoteProtocolError):
                await transport.handle_async_request(request(server, "DELETE"))
            response = await transport.handle_async_request(request(server, pool=5))
            await response.aclose()


@on_each_loop
async def test_an_idle_connection_makes_room_for_another_origin() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.hung_up()
        left.set()

    async with (
        serve(script) as one,
        serve(hello) as other,
        HTTPToolsTransport(limits=limits(max_connections=1)) as transport,
    ):
        assert await read(transport, request(one)) == b"hello"
        assert await read(transport, request(other)) == b"hello"
        await left.wait()


@on_each_loop
async def test_five_hundred_streams_at_once() -> None:
    everybody = asyncio.Barrier(500)

    async def script(peer: Peer) -> None:
        asked = await peer.request()
        await peer.send(CHUNKED)
        await everybody.wait()
        for n in range(5):
            await peer.send(chunk(asked[-3:] + b"%d " % n))
        await peer.send(END)

    async with serve(script) as server, HTTPToolsTransport() as transport:
        asked = [read(transport, request(server, "POST", b"%03d" % n)) for n in range(500)]
        assert await asyncio.gather(*asked) == [b"%03d0 %03d1 %03d2 %03d3 %03d4 " % ((n,) * 5) for n in range(500)]


@on_each_loop
async def test_to_close_the_transport_closes_every_connection() -> None:
    left = asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        asked = await peer.request()
        await peer.send(sized(b"hello") if b"idle" in asked else CHUNKED + chunk(b"hel"))
        await peer.hung_up()
        left.release()

    async with serve(script) as server:
        transport = HTTPToolsTransport()
        in_use = await transport.handle_async_request(request(server))
        assert await read(transport, request(server, "POST", b"idle")) == b"hello"
        reading = asyncio.create_task(in_use.aread())
        await asyncio.sleep(0.01)
        await transport.aclose()
        with pytest.raises(httpx.ReadError):
            await reading
        await left.acquire()
        await left.acquire()
        with pytest.raises(httpx.ConnectError, match="has been closed"):
            await read(transport, request(server))


# How connections are opened.


@on_each_loop
async def test_nobody_there_is_a_connect_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with HTTPToolsTransport() as transport:
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", f"http://127.0.0.1:{port}/"))
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", f"http://{'x' * 64}.invalid/"))
        with pytest.raises(httpx.UnsupportedProtocol):
            await transport.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))


@contextlib.contextmanager
def deaf(address: str, port: int = 0) -> Any:
    """Listen on an address, but let nobody in: to connect takes for ever."""
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
async def test_a_server_that_lets_nobody_in_is_a_connect_timeout() -> None:
    with deaf("127.0.0.1") as port:
        async with HTTPToolsTransport() as transport:
            asked = httpx.Request("GET", f"http://127.0.0.1:{port}/", extensions={"timeout": {"connect": 0.05}})
            with pytest.raises(httpx.ConnectTimeout):
                await transport.handle_async_request(asked)
            waiting = asyncio.create_task(
                transport.handle_async_request(httpx.Request("GET", f"http://127.0.0.1:{port}/"))
            )
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def test_where_a_name_has_several_addresses_one_that_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(hello) as server, HTTPToolsTransport() as transport:
        with deaf("127.0.0.2", server.port):
            addresses = ["127.0.0.3", "127.0.0.2", "127.0.0.2", "127.0.0.1", "127.0.0.2"]  # the first refuses
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, server.port)) for address in addresses]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            assert await read(transport, httpx.Request("GET", f"http://several.example:{server.port}/")) == b"hello"
            assert b"Host: several.example:" in server.requests[0]


@on_each_loop
async def test_an_ipv6_address_can_be_asked() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with serve(hello, host="::1") as server, HTTPToolsTransport() as transport:
        assert await read(transport, httpx.Request("GET", f"http://[::1]:{server.port}/")) == b"hello"


@on_each_loop
async def test_a_certificate_is_trusted_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_a_certificate_that_nobody_trusts_is_a_connect_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    async with serve(hello, encrypted=True) as server, HTTPToolsTransport() as transport:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await read(transport, request(server))
        async with HTTPToolsTransport(verify=False) as careless:
            assert await read(careless, request(server)) == b"hello"
        async with HTTPToolsTransport(verify=ssl.create_default_context(cafile=str(CERTIFICATE))) as told:
            assert await read(told, request(server)) == b"hello"


@on_each_loop
async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(hello) as proxy, serve(hello) as server:
        monkeypatch.setenv("http_proxy", proxy.url.removeprefix("http://").strip("/"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with HTTPToolsTransport() as transport:
            assert await read(transport, httpx.Request("GET", "http://far.example/a?b")) == b"hello"
            assert await read(transport, request(server)) == b"hello"
        async with HTTPToolsTransport(trust_env=False) as transport:
            assert await read(transport, request(server)) == b"hello"
        assert [asked.split(b"\r\n")[0] for asked in proxy.requests] == [b"GET http://far.example/a?b HTTP/1.1"]
        assert len(server.requests) == 2


# What is sent.


@on_each_loop
async def test_a_request_is_sent_as_httpx_built_it_in_one_write() -> None:
    reads: list[bytes] = []

    async def script(peer: Peer) -> None:
        reads.append(await peer.reader.read(2**16))
        await peer.send(sized(b"hello"))

    async with serve(script) as server, httpx.AsyncClient(transport=HTTPToolsTransport()) as client:
        response = await client.post(server.url + "v1/a%20b?c=%C3%A9#d", json={"e": 1}, headers={"X-Y": "z"})
        assert response.text == "hello"
        assert reads[0].startswith(b"POST /v1/a%20b?c=%C3%A9 HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nX-Y: z\r\n" in reads[0] and reads[0].endswith(b'\r\n\r\n{"e":1}')


async def pieces() -> AsyncIterator[bytes]:
    for piece in (b"he", b"", b"llo"):
        yield piece
        await asyncio.sleep(0)


@on_each_loop
async def test_a_body_that_is_generated_is_sent_in_chunks_or_as_long_as_it_is_said_to_be() -> None:
    async with serve(hello) as server, httpx.AsyncClient(transport=HTTPToolsTransport()) as client:
        await client.post(server.url, content=pieces())
        await client.post(server.url, content=pieces(), headers={"Content-Length": "5"})
        assert [asked.split(b"\r\n\r\n", 1)[1] for asked in server.requests] == [
            b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            b"hello",
        ]


@on_each_loop
async def test_a_body_that_fails_to_be_generated_closes_the_connection() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.hung_up()
        left.set()

    async def broken() -> AsyncIterator[bytes]:
        yield b"he"
        raise LookupError("there is no more")

    async with serve(script) as server, httpx.AsyncClient(transport=HTTPToolsTransport()) as client:
        with pytest.raises(LookupError):
            await client.post(server.url, content=broken())
        await left.wait()


@pytest.mark.parametrize("generated", [False, True])
@on_each_loop
async def test_a_server_that_refuses_need_not_read_the_rest(generated: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nbig")

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)

    content = endless() if generated else bytes(2**25)
    async with serve(script) as server, HTTPToolsTransport() as transport:
        response = await transport.handle_async_request(request(server, "POST", content))
        assert (response.status_code, await response.aread()) == (413, b"big")


@on_each_loop
async def test_a_server_that_talks_before_it_is_asked_is_not_heard() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(sized(b"hello"))

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)

    async with serve(script) as server, HTTPToolsTransport() as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(request(server, "POST", endless()))


@on_each_loop
async def test_a_server_may_answer_while_it_still_reads() -> None:
    async def echo(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(OK + b"Content-Length: 5\r\n\r\n")
        for size in (2, 3):
            await peer.reader.readuntil(b"\r\n")
            await peer.send(await peer.reader.readexactly(size))
            await peer.reader.readuntil(b"\r\n")

    async with serve(echo) as server, HTTPToolsTransport() as transport:
        response = await transport.handle_async_request(request(server, "POST", pieces()))
        assert await response.aread() == b"hello"


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nX: b", "a\rb", "a\0b"])
@on_each_loop
async def test_a_header_cannot_smuggle_in_another(value: str) -> None:
    async with serve(hello) as server, HTTPToolsTransport() as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await read(transport, httpx.Request("GET", server.url, headers={"X-Y": value}))
        assert server.peers == []


@on_each_loop
async def test_the_rest_is_left_to_httpx() -> None:
    packed = gzip.compress(b"hello")

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 302 Found\r\nLocation: /there\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")
        await peer.request()
        await peer.send(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed), packed)

    async with serve(script) as server, httpx.AsyncClient(transport=HTTPToolsTransport()) as client:
        response = await client.get(server.url, follow_redirects=True)
        assert (response.text, response.reason_phrase, response.http_version) == ("hello", "OK", "HTTP/1.1")
        assert b"GET /there " in server.requests[1] and b"Cookie: a=b" in server.requests[1]
