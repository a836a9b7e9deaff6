"""Disconnect detection, from the connection or from ASGI messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.api.uvicorn.disconnect import CONNECTION_KEY, DisconnectWatch, MessageWriter


class Connection:
    """A connection that reports its loss, unless `impossible`."""

    def __init__(self, *, impossible: bool) -> None:
        self.impossible = impossible
        self.on_loss: set[Callable[[], None]] = set()

    def watch(self, on_loss: Callable[[], None]) -> bool:
        if not self.impossible:
            self.on_loss.add(on_loss)
        return not self.impossible

    def unwatch(self, on_loss: Callable[[], None]) -> None:
        self.on_loss.discard(on_loss)


class Client:
    """A request, and its client."""

    def __init__(self, connection: Connection | None) -> None:
        self.scope: dict[str, Any] = {"type": "http", "state": {CONNECTION_KEY: connection} if connection else {}}
        self.connection = connection
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def disconnect(self) -> None:
        self.gone.set()
        for call in [*self.connection.on_loss] if self.connection else []:
            call()
        for _ in range(5):
            await asyncio.sleep(0)


CONNECTIONS = {"none": None, "telling": Connection(impossible=False), "impossible": Connection(impossible=True)}


@pytest.mark.parametrize("connection", CONNECTIONS.values(), ids=CONNECTIONS)
async def test_disconnect_watch_of_any_connection_calls_its_function_once(connection: Connection | None) -> None:
    client, calls = Client(connection), list[str]()
    watch = DisconnectWatch(client.scope, client.receive, lambda: calls.append("called"))
    await asyncio.sleep(0)
    assert not watch.disconnected
    await client.disconnect()
    assert watch.disconnected
    assert calls == ["called"]
    watch.stop()


@pytest.mark.parametrize("connection", CONNECTIONS.values(), ids=CONNECTIONS)
async def test_disconnect_watch_that_is_stopped_calls_nothing(connection: Connection | None) -> None:
    client, calls = Client(connection), list[str]()
    watch = DisconnectWatch(client.scope, client.receive, lambda: calls.append("called"))
    await asyncio.sleep(0)
    watch.stop()
    await client.disconnect()
    assert not (watch.disconnected or calls)


async def test_disconnect_watch_of_a_connection_that_tells_its_loss_takes_no_task() -> None:
    before = asyncio.all_tasks()
    client = Client(Connection(impossible=False))
    watch = DisconnectWatch(client.scope, client.receive, lambda: None)
    assert asyncio.all_tasks() == before
    watch.stop()


async def test_message_writer_keeps_data_that_is_written_during_a_drain() -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if not sent:
            assert not writer.write(b"b")
        sent.append(message["body"])

    writer = MessageWriter(send)
    assert not writer.write(b"a")
    await writer.drain()
    await writer.drain()
    assert sent == [b"a", b"b"]
