"""Limits on sizes and waiting times of HTTP requests, on a real socket, byte by byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from app.api.sse_response import EventStream
from app.api.uvicorn import http as uvicorn_http
from app.api.uvicorn.http import MAX_HEAD_BYTES
from app.main import create_app
from tests.support import sockets
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

HTTP = "app.api.uvicorn.http:HTTPProtocol"
SHORT = 0.5  # seconds to receive a request: enough if sent at once


@pytest.fixture
async def url(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setattr(uvicorn_http, "REFUSAL_LINGER", 60)  # for a client that reads its refusal late
    async with serving(create_app(settings(), backend=Scripted([])), http=HTTP) as served:
        yield served


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = httpx.URL(url)
    return await asyncio.open_connection(address.host, address.port)


async def reply_to(url: str, request: bytes) -> bytes:
    """Send a request, and return the answer, or at least its head."""
    reader, writer = await connected(url)
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    writer.close()
    return head


async def reply_to_pieces(url: str, *pieces: bytes) -> bytes:
    """Send pieces until the server stops reading, and return its output until it closes the connection."""
    reader, writer = await connected(url)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


async def test_heads_that_are_large_are_read(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for _ in range(2):
            answer = await http.get("/healthz", headers={"x-large": "a" * (MAX_HEAD_BYTES - 2000)})
            assert answer.status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * MAX_HEAD_BYTES + b"\r\n",
        b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["one header", "many headers", "the path"],
)
async def test_heads_that_are_too_large_are_refused_in_the_apis_shape(url: str, head: bytes) -> None:
    answer = await reply_to_pieces(url, head)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"request_header_fields_too_large"' in answer


async def test_head_without_an_end_is_not_kept(url: str) -> None:
    beginning = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
    answer = await reply_to_pieces(url, beginning, *[b"x" * 4096] * 1000)
    assert answer.startswith(b"HTTP/1.1 431 ")


CHUNKED = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("beginning", [b"2\r\n{}\r\n0\r\nX: ", b"2;x="], ids=["trailers", "a chunk's extension"])
async def test_bytes_that_are_no_body_are_not_read_without_end(url: str, beginning: bytes) -> None:
    with pytest.raises(ConnectionError):
        await reply_to_pieces(url, CHUNKED + beginning, *[b"x" * 4096] * 1000)


async def test_trailers_are_not_taken_for_headers(url: str) -> None:
    body = b"2\r\n{}\r\n0\r\nX-Request-Id: from-the-trailer\r\nConnection: close\r\n\r\n"
    answer = await reply_to(url, CHUNKED + body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: req_" in answer


async def test_body_in_small_pieces_is_not_taken_for_a_head(url: str) -> None:
    body = b"".join(b"1\r\n%c\r\n" % letter for letter in b"x" * MAX_HEAD_BYTES) + b"0\r\n\r\n"
    assert (await reply_to(url, CHUNKED + body)).startswith(b"HTTP/1.1 400 ")


async def test_end_of_a_large_body_is_not_counted_as_the_next_head(url: str) -> None:
    body = b"x" * 3 * MAX_HEAD_BYTES
    first = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader, writer = await connected(url)
    writer.write(first)
    await asyncio.sleep(0.05)
    writer.write(body + b"GET /healthz HTT")
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.write(b"P/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    replies = await reader.read()
    assert re.findall(rb"HTTP/1.1 (\d+)", replies) == [b"400", b"200"]
    writer.close()


async def test_bytes_that_are_no_http_are_refused_in_the_apis_shape(url: str) -> None:
    answer = await reply_to_pieces(url, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_http"' in answer


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
async def test_connection_without_a_whole_request_in_time_is_closed(
    monkeypatch: pytest.MonkeyPatch, url: str, beginning: bytes
) -> None:
    monkeypatch.setattr(uvicorn_http, "HEAD_TIMEOUT", SHORT)
    assert await reply_to_pieces(url, beginning) == b""


async def test_connection_with_a_whole_request_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_http, "HEAD_TIMEOUT", SHORT)
    app = create_app(settings(), backend=Scripted([2 * SHORT, {"choices": [{"delta": {"content": "Hi"}}]}]))
    async with serving(app, http=HTTP, ws="app.api.uvicorn.websocket:WebSocketProtocol") as served:
        async with httpx.AsyncClient(base_url=served, timeout=60, trust_env=False) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "Hi"})
            assert answer.json()["status"] == "completed"
        async with sockets.dial(served) as socket:
            assert (await sockets.response(socket))["status"] == "completed"


@pytest.mark.parametrize("rest", [b"GET /hea", b"\r\n"], ids=["half a head", "an empty line"])
async def test_idle_connection_without_another_request_is_closed(monkeypatch: pytest.MonkeyPatch, rest: bytes) -> None:
    app = create_app(settings(), backend=Scripted([]))
    async with serving(app, http=HTTP, timeout_keep_alive=0.1) as served:
        reader, writer = await connected(served)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b'{"status":"ok"}')
        monkeypatch.setattr(uvicorn_http, "HEAD_TIMEOUT", 0.1)
        writer.write(rest)
        assert await reader.read() == b""
        writer.close()


async def test_connection_that_was_refused_early_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(settings(), backend=Scripted([]))
    async with serving(app, http=HTTP, timeout_keep_alive=0.1) as served:
        for beginning, patience in ((b"", 30), (b"x", SHORT)):  # the whole body, and a part
            monkeypatch.setattr(uvicorn_http, "HEAD_TIMEOUT", patience)
            reader, writer = await connected(served)
            writer.write(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n")
            await reader.readuntil(b"}}")
            writer.write(beginning or b"xx")
            assert await reader.read() == b""
            writer.close()


async def test_incomplete_request_does_not_end_the_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn_http, "HEAD_TIMEOUT", SHORT)
    app = create_app(settings(), backend=Scripted([2 * SHORT, {"choices": [{"delta": {"content": "Hi"}}]}]))
    async with serving(app, http=HTTP) as served:
        reader, writer = await connected(served)
        body = b'{"model": "m", "input": "Hi"}'
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        writer.write(b"GET /heal")
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"thz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in await reader.read()
        writer.close()


ASK = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 29\r\n\r\n" + b'{"model": "m", "input": "Hi"}'


@pytest.mark.parametrize("behind", [b"\0", b"x y z\r\n\r\n", b"\x16\x03\x01", b"X: " + b"x" * 2 * MAX_HEAD_BYTES])
@pytest.mark.parametrize("requests", [1, 2])
async def test_bytes_behind_a_whole_request_do_not_end_its_answer(requests: int, behind: bytes) -> None:
    go = asyncio.Event()
    app = create_app(settings(), backend=Scripted([go, {"choices": [{"delta": {"content": "Hi"}}]}]))
    async with serving(app, http=HTTP) as served:
        reader, writer = await connected(served)
        writer.write(ASK * requests + behind)
        go.set()
        replies = await reader.read()
        assert replies.count(b"HTTP/1.1 200 ") == requests
        assert replies.count(b'"status":"completed"') >= requests
        writer.close()


async def test_invalid_bytes_within_a_request_end_it(url: str) -> None:
    with pytest.raises(ConnectionError):
        answer = await reply_to_pieces(url, CHUNKED + b"2\r\n{}\r\nnonsense\r\n")
        raise ConnectionError(answer)  # closed, and not reset


async def test_stream_writes_empty_items_and_waits_for_a_client_that_does_not_read() -> None:
    written: list[int] = []

    async def produce(stream: EventStream[bytes]) -> None:
        stream.send(b"")
        while not stream.paused:
            stream.send(b"x" * 65536)
            written.append(65536)
        blocked.set()
        await stream.drain()

    blocked = asyncio.Event()

    async def stream(_: Request) -> EventStream[bytes]:
        return EventStream(produce, bytes, last=b"end")

    async with serving(Starlette(routes=[Route("/", stream)]), http=HTTP) as url:
        reader, writer = await connected(url)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await asyncio.wait_for(blocked.wait(), 60)
        answer = await reader.read()
        writer.close()
    body, lines = b"", answer.partition(b"\r\n\r\n")[2]
    while lines:
        size, _, lines = lines.partition(b"\r\n")
        body, lines = body + lines[: int(size, 16)], lines[int(size, 16) + 2 :]
    assert body == b"x" * sum(written) + b"end"
