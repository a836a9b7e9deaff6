"""Offers to go on in another protocol: most are ignored, and the request is answered all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from app.main import create_app
from tests.support.build import delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

BODY = b'{"model": "m", "input": "Is it h2c?"}'
# Java's HTTP client sends this with each unencrypted request.
TO_HTTP_2 = (
    b"Connection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    b"Upgrade: h2c\r\n"
)
TO_WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    """A connection to a server like `antiphon serve`."""
    app = create_app(settings(), backend=Scripted([delta(content="Yes."), finish("stop")]))
    options = {"http": "app.api.uvicorn.http:HTTPProtocol", "ws": "app.api.uvicorn.websocket:WebSocketProtocol"}
    async with serving(app, **options) as url:
        at = urlsplit(url)
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        yield reader, writer
        writer.close()


def request(line: bytes, headers: bytes = b"", body: bytes = b"") -> bytes:
    return b"%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%b\r\n%b" % (line, len(body), headers, body)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", 0))), 60)
    return int(head[0].split()[1]), headers, body


async def test_http_2_offer_is_answered_in_http_1(connection: Connection) -> None:
    reader, writer = connection
    for _ in range(2):  # the second on the same connection
        writer.write(request(b"POST /v1/responses", TO_HTTP_2, BODY))
        status, headers, body = await answer(reader)
        assert (status, headers.get("upgrade")) == (200, None)
        assert json.loads(body)["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_http_2_offer_in_pieces_is_answered(size: int, connection: Connection) -> None:
    reader, writer = connection
    whole = request(b"POST /v1/responses", TO_HTTP_2, BODY)
    for at in range(0, len(whole), size):
        writer.write(whole[at : at + size])
        await writer.drain()
        await asyncio.sleep(0)
    assert (await answer(reader))[0] == 200


async def test_http_2_offer_between_requests_is_answered(connection: Connection) -> None:
    reader, writer = connection
    plain, offer = request(b"POST /v1/responses", body=BODY), request(b"POST /v1/responses", TO_HTTP_2, BODY)
    writer.write(plain + offer + offer + plain)
    assert [(await answer(reader))[0] for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("offered", [b"TLS/1.0", b"h2c, TLS/1.0", b"HTTP/3.0"])
async def test_upgrade_offer_of_another_protocol_is_ignored(offered: bytes, connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"POST /v1/responses", b"Connection: Upgrade\r\nUpgrade: %b\r\n" % offered, BODY))
    assert (await answer(reader))[0] == 200


async def test_http_2_offer_with_a_chunked_body_is_answered(connection: Connection) -> None:
    reader, writer = connection
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:9], BODY[9:], b""))
    writer.write(
        b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        + TO_HTTP_2
        + b"\r\n"
        + chunks
    )
    assert (await answer(reader))[0] == 200


async def test_body_that_mentions_http_2_is_unchanged(connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"POST /v1/responses", body=b'{"model": "m",\r\nUpgrade: h2c\r\n\r\n"input": "x"}'))
    status, _, body = await answer(reader)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_json")


async def test_post_with_a_websocket_upgrade_is_answered_as_post(connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"POST /v1/responses", TO_WEBSOCKET, BODY))
    assert (await answer(reader))[0] == 400


async def test_get_with_a_websocket_upgrade_is_upgraded(connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"GET /v1/responses", TO_WEBSOCKET))
    assert (await answer(reader))[0] == 101


@pytest.mark.parametrize("origin", ["http://[", "null", "http://x.example/", "[::1"])
async def test_origin_that_is_no_address_is_refused(origin: str, connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"GET /v1/responses", TO_WEBSOCKET + b"Origin: %b\r\n" % origin.encode()))
    status, _, body = await answer(reader)
    assert (status, json.loads(body)["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz"])
async def test_health_by_head_is_200(path: bytes, connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"HEAD " + path))
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert head.startswith(b"HTTP/1.1 200 ")


async def test_method_that_a_path_does_not_have_is_refused_with_those_it_has(connection: Connection) -> None:
    reader, writer = connection
    writer.write(request(b"PUT /v1/responses/resp_1"))
    status, headers, _ = await answer(reader)
    assert (status, headers["allow"]) == (405, "GET, DELETE")
