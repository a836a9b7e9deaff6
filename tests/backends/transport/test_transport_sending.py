"""Sending requests."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from app.backends.transport import HTTPToolsTransport
from tests.support.raw_server import (
    OK,
    Peer,
    on_each_loop,
    read,
    request,
    saying,
    serve,
    sized,
)

HELLO = saying(sized(b"hello"))


@on_each_loop
async def test_request_is_sent_as_httpx_built_it_in_one_write() -> None:
    reads: list[bytes] = []

    async def script(peer: Peer) -> None:
        reads.append(await peer.reader.read(2**16))
        await peer.send(sized(b"hello"))

    async with serve(script) as server, httpx.AsyncClient(transport=HTTPToolsTransport(trust_env=False)) as client:
        response = await client.post(server.url + "v1/a%20b?c=%C3%A9#d", json={"e": 1}, headers={"X-Y": "z"})
        assert response.text == "hello"
        assert reads[0].startswith(b"POST /v1/a%20b?c=%C3%A9 HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nX-Y: z\r\n" in reads[0] and reads[0].endswith(b'\r\n\r\n{"e":1}')


async def pieces() -> AsyncIterator[bytes]:
    for piece in (b"he", b"", b"llo"):
        yield piece
        await asyncio.sleep(0)


@on_each_loop
async def test_generated_body_is_sent_in_chunks_or_with_its_length() -> None:
    async with serve(HELLO) as server, httpx.AsyncClient(transport=HTTPToolsTransport(trust_env=False)) as client:
        await client.post(server.url, content=pieces())
        await client.post(server.url, content=pieces(), headers={"Content-Length": "5"})
        assert [received.split(b"\r\n\r\n", 1)[1] for received in server.requests] == [
            b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
            b"hello",
        ]


@on_each_loop
async def test_generated_body_is_not_sent_where_it_might_be_lost() -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.send(sized(b"hello"))
        await peer.request()
        peer.close()

    async with serve(once) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            assert await read(transport, request(server, "POST", pieces())) == b"hello"
        assert [len(peer.requests) for peer in server.peers] == [1, 1]


@on_each_loop
async def test_generated_body_that_fails_closes_the_connection() -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.hung_up()
        left.set()

    async def broken() -> AsyncIterator[bytes]:
        yield b"he"
        raise LookupError("there is no more")

    async with serve(script) as server, httpx.AsyncClient(transport=HTTPToolsTransport(trust_env=False)) as client:
        with pytest.raises(LookupError):
            await client.post(server.url, content=broken())
        await left.wait()


@pytest.mark.parametrize("generated", [False, True])
@on_each_loop
async def test_server_that_refuses_early_gets_a_new_connection(generated: bool) -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\n")
        await seen.wait()
        await peer.send(b"big")

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        for _ in range(2):
            content = endless() if generated else bytes(2**25)
            response = await transport.handle_async_request(request(server, "POST", content))
            seen.set()
            assert (response.status_code, await response.aread()) == (413, b"big")
        assert len(server.peers) == 2


@on_each_loop
async def test_bytes_before_a_request_close_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(sized(b"hello"))

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)

    async with serve(script) as server, HTTPToolsTransport(trust_env=False) as transport:
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(request(server, "POST", endless()))


@on_each_loop
async def test_server_that_answers_while_it_reads_is_read() -> None:
    async def echo(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(OK + b"Content-Length: 5\r\n\r\n")
        for size in (2, 3):
            await peer.reader.readuntil(b"\r\n")
            await peer.send(await peer.reader.readexactly(size))
            await peer.reader.readuntil(b"\r\n")

    async with serve(echo) as server, HTTPToolsTransport(trust_env=False) as transport:
        response = await transport.handle_async_request(request(server, "POST", pieces()))
        assert await response.aread() == b"hello"


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nX: b", "a\rb", "a\0b"])
@on_each_loop
async def test_header_with_a_line_break_is_refused(value: str) -> None:
    async with serve(HELLO) as server, HTTPToolsTransport(trust_env=False) as transport:
        with pytest.raises(httpx.LocalProtocolError):
            await read(transport, httpx.Request("GET", server.url, headers={"X-Y": value}))
        assert server.peers == []


@on_each_loop
async def test_other_requests_are_left_to_httpx() -> None:
    packed = gzip.compress(b"hello")

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 302 Found\r\nLocation: /there\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")
        await peer.request()
        await peer.send(OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed), packed)

    async with serve(script) as server, httpx.AsyncClient(transport=HTTPToolsTransport(trust_env=False)) as client:
        response = await client.get(server.url, follow_redirects=True)
        assert (response.status_code, response.text) == (200, "hello")
        assert b"GET /there " in server.requests[1] and b"Cookie: a=b" in server.requests[1]
