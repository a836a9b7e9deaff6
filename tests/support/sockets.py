"""A WebSocket client that validates every event: `async with talking(backend) as socket`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from app.main import create_app
from tests.support.build import delta
from tests.support.serving import serving, settings

HELLO = [delta(content="Hel"), delta(content="lo")]
CODEX = {"originator": "codex_cli_rs", "openai-beta": "responses_websockets=2026-02-06"}

Frame = dict[str, Any]


@contextlib.asynccontextmanager
async def listening(backend: Any, store: Any = None, config: dict[str, Any] | None = None, **values: Any) -> Any:
    """Serve Antiphon as `antiphon serve` does, with its own way of ending WebSockets; gives the base URL."""
    app = create_app(settings(**values), backend=backend, store=store)
    options = {"ws": "app.api.uvicorn.websocket:WebSocketProtocol", "ws_per_message_deflate": False, **(config or {})}
    async with serving(app, **options) as url:
        yield url


def dial(url: str, path: str = "/v1/responses", **options: Any) -> connect:
    return connect(url.replace("http://", "ws://") + path, max_size=None, proxy=None, **options)


@contextlib.asynccontextmanager
async def talking(
    backend: Any, headers: dict[str, str] | None = None, **values: Any
) -> AsyncIterator[ClientConnection]:
    """A server and a connected client."""
    async with listening(backend, **values) as url, dial(url, additional_headers=headers) as socket:
        yield socket


async def send(socket: ClientConnection, **fields: Any) -> None:
    await socket.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi", **fields}))


async def hear(socket: ClientConnection) -> Frame:
    async with asyncio.timeout(120):  # missing frames fail instead of hanging
        frame = await socket.recv()
    assert isinstance(frame, str)  # "unexpected binary websocket event", says Codex, and gives up
    event: Frame = json.loads(frame)
    return event


async def hear_out(socket: ClientConnection) -> list[Frame]:
    """Frames up to a turn's terminal event or its refusal."""
    frames = [await hear(socket)]
    while "response" not in frames[-1] or frames[-1]["response"]["status"] == "in_progress":
        if "status" in frames[-1]:
            break
        frames.append(await hear(socket))
    return frames


async def ask(socket: ClientConnection, **fields: Any) -> list[Frame]:
    await send(socket, **fields)
    return await hear_out(socket)


async def response(socket: ClientConnection, **fields: Any) -> Frame:
    """Ask, and return the response as the terminal event has it."""
    return (await ask(socket, **fields))[-1]["response"]  # type: ignore[no-any-return]


async def refusal(socket: ClientConnection, **fields: Any) -> tuple[int, str]:
    """Send an invalid request, and return the status and code."""
    (frame,) = await ask(socket, **fields)
    assert frame["type"] == "error"
    assert {"type", "code", "message", "param"} <= frame["error"].keys()
    return frame["status"], frame["error"]["code"]
