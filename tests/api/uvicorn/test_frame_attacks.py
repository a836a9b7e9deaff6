"""Floods of small WebSocket frames neither block the event loop nor use much memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from app.api.uvicorn.websocket import FRAMES_PER_PASS, MAX_FRAGMENTS, WebSocketProtocol
from tests.api.uvicorn.frame_attacks import CONTINUATION, FRAME_ATTACKS, POLICY_VIOLATION, TEXT, FrameAttack, frame
from tests.support.scripted import Scripted
from tests.support.serving import serving
from tests.support.sockets import HELLO, ask, dial, listening

INVALID_DATA = 1007
READ = 256 * 1024  # bytes per event loop read
MOST = FRAMES_PER_PASS + 1  # plus a frame or handshake begun earlier


HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Measured(WebSocketProtocol):
    """Records the frames parsed in each pass of the event loop, and the most data kept."""

    frames_per_pass: list[int]  # over all connections
    most_unparsed = 0  # bytes
    most_fragments = 0

    def handle_events(self) -> None:
        kept = type(self)
        kept.frames_per_pass.append(len(self.conn.events))
        kept.most_unparsed = max(kept.most_unparsed, len(self.conn.reader.buffer))
        super().handle_events()
        kept.most_fragments = max(kept.most_fragments, len(self.frames))


@pytest.fixture
def measured() -> type[Measured]:
    return type("Measured", (Measured,), {"frames_per_pass": []})


async def outcome(client: Any, answers: int | None) -> int:
    """Receive error messages until the connection ends, and return its close code; or their number if they are all."""
    received = 0
    async with asyncio.timeout(300):
        try:
            while answers is None or received < answers:
                assert json.loads(await client.recv())["type"] == "error"
                received += 1
        except ConnectionClosed:
            return int(client.close_code)
    return received


@pytest.mark.parametrize("attack", FRAME_ATTACKS.values(), ids=FRAME_ATTACKS)
async def test_small_frames_are_parsed_in_passes_of_the_event_loop(
    attack: FrameAttack, measured: type[Measured]
) -> None:
    data = attack.first + attack.repeated * attack.times + attack.last
    async with listening(Scripted(HELLO), config={"ws": measured}) as url, dial(url, ping_interval=None) as client:
        client.transport.write(data)
        assert await outcome(client, attack.answers) == (attack.answers or POLICY_VIOLATION)
        if attack.answers:
            assert (await ask(client))[-1]["type"] == "response.completed"
    assert 1 < max(measured.frames_per_pass) <= MOST
    assert measured.most_unparsed <= READ
    assert measured.most_fragments <= MAX_FRAGMENTS


@pytest.mark.parametrize(
    "data",
    [frame(TEXT, b"\xff"), frame(TEXT, b'"\xc3', fin=False) + frame(CONTINUATION, b'"')],
    ids=["one frame", "two fragments"],
)
async def test_text_that_is_not_utf_8_closes_the_connection_without_a_traceback(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(Scripted(HELLO)) as url, dial(url) as client:
        client.transport.write(data)
        assert await outcome(client, None) == INVALID_DATA
    assert [record.reason for record in caplog.records if record.message == "WebSocket rejected"] == [
        "text is not UTF-8"
    ]
    assert not any(record.exc_info for record in caplog.records)


async def test_character_that_is_split_between_fragments_is_received() -> None:
    first, second = frame(TEXT, b'{"type": "\xc3', fin=False), frame(CONTINUATION, b'\xa4"}')
    async with listening(Scripted(HELLO)) as url, dial(url) as client:
        client.transport.write(first + second)
        assert json.loads(await client.recv())["frame"] == "\u00e4"


async def test_pings_before_the_handshake_is_accepted_close_the_connection() -> None:
    received: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while not received or received[-1] != "websocket.disconnect":
            received.append((await receive())["type"])
        await send({"type": "websocket.accept"})

    async with serving(app, ws=WebSocketProtocol, ws_per_message_deflate=False, lifespan="off") as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(HANDSHAKE)
        async with asyncio.timeout(60):
            while not received:
                await asyncio.sleep(0)
            writer.write(FRAME_ATTACKS["empty pings"].repeated * 1_000)
            with contextlib.suppress(ConnectionResetError):
                assert b"HTTP" not in await reader.read()
        writer.close()
    assert received == ["websocket.connect", "websocket.disconnect"]


async def test_messages_wait_in_the_client_while_the_application_receives_none(measured: type[Measured]) -> None:
    arrived = asyncio.Event()
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        arrived.set()
        await go_on.wait()
        for _ in range(10_000):
            assert (await receive())["type"] == "websocket.receive"
        await send({"type": "websocket.send", "text": "all"})

    async with (
        serving(app, ws=measured, ws_per_message_deflate=False, lifespan="off") as url,
        dial(url, ping_interval=None) as client,
    ):
        await arrived.wait()
        client.transport.write(FRAME_ATTACKS["messages of a byte"].repeated * 10_000)
        for _ in range(200):  # event loop iterations
            await asyncio.sleep(0)
        before = sum(measured.frames_per_pass)
        go_on.set()
        assert await asyncio.wait_for(client.recv(), 120) == "all"
    assert before <= MOST
    assert measured.most_unparsed <= READ
