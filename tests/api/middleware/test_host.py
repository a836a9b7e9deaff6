"""RFC 9112, 3.2: an HTTP/1.1 request without exactly one valid `Host` is a 400."""

from __future__ import annotations

import asyncio

import pytest

from app.main import create_app
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings


async def answered(head: bytes) -> bytes:
    app = create_app(settings(allowed_hosts="*"), backend=Scripted([]))
    options = {"http": "app.api.uvicorn.http:HTTPProtocol", "ws": "app.api.uvicorn.websocket:WebSocketProtocol"}
    async with serving(app, **options) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        answer += await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].split()[0]))
        writer.close()
        return answer


@pytest.mark.parametrize(
    "fields",
    [
        b"",
        b"Host: a\r\nHost: a\r\n",
        b"Host: a\r\nhost: b\r\n",
        b"Host: a b\r\n",
        b"Host: a/b\r\n",
        b"Host: a,b@c\r\n",
        b"Host: http://a\r\n",
        b"Host: a:b\r\n",
        b"Host: a:1:2\r\n",
        b"Host: ::1\r\n",
        b"Host: [::1\r\n",
        b'Host: "a"\r\n',
        b"Host: \xe4\r\n",
    ],
)
@pytest.mark.parametrize("upgrade", [False, True], ids=["HTTP", "WebSocket"])
async def test_host_missing_invalid_or_repeated_is_refused(fields: bytes, upgrade: bool) -> None:
    line = b"GET /v1/responses HTTP/1.1\r\n" if upgrade else b"GET /healthz HTTP/1.1\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    socket = b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + key if upgrade else b""
    answer = await answered(line + fields + socket + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert upgrade or b'"code":"invalid_host"' in answer


@pytest.mark.parametrize(
    "host", [b"a", b"a.example:8080", b"127.0.0.1:1", b"[::1]", b"[::1]:8080", b"[fe80::1%25eth0]", b"a_b-c.~x", b""]
)
async def test_host_of_any_name_is_accepted(host: bytes) -> None:
    answer = await answered(b"GET /healthz HTTP/1.1\r\nHost: %b\r\n\r\n" % host)
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_host_absent_with_http_1_0_is_accepted() -> None:
    assert (await answered(b"GET /healthz HTTP/1.0\r\n\r\n")).split()[1] == b"200"
