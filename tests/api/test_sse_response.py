"""Bytes written by `EventStream`, and their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.api.sse_response import EventStream
from app.api.uvicorn.disconnect import CONNECTION_KEY


async def test_heartbeat_after_the_end_is_not_sent() -> None:
    """The last write can be slow, and a write after it would be a server error."""
    began: list[tuple[bytes, bool]] = []

    async def produce(stream: EventStream[bytes]) -> None:
        stream.send(b"piece")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            began.append((message["body"], message["more_body"]))
            await asyncio.sleep(0.1 if not message["more_body"] else 0)

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(produce, bytes, beat=lambda: b"beat", last=b"end", heartbeat=0.01)
    await stream({"type": "http"}, receive, send)
    assert began[-1] == (b"end", False)


async def test_stream_at_its_end_gets_no_closing_event() -> None:
    """A server may have to stop in the very moment in which all is said."""
    written: list[tuple[bytes, bool]] = []

    async def produce(stream: EventStream[bytes]) -> None:
        stream.send(b"piece")

    async def on_abort(error: Exception | None) -> bytes:
        return b"farewell"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            written.append((message["body"], message["more_body"]))
            if not message["more_body"]:
                serving.cancel()

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(produce, bytes, last=b"end", on_abort=on_abort)
    serving = asyncio.ensure_future(stream({"type": "http"}, receive, send))
    await asyncio.wait({serving})
    assert serving.cancelled()
    assert written == [(b"piece", True), (b"end", False)]


class Client:
    """A client that records writes, and does not read while `reads` is cleared."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"type": "http"}
        self.written: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            await self.reads.wait()
            self.written.append(message["body"])

    async def receive(self) -> Any:
        await asyncio.Event().wait()


class ConnectedClient(Client):
    """A client on an `HTTPProtocol`: writes are buffered while it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.scope["state"] = {CONNECTION_KEY: self}

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return self.reads.is_set()

    async def drain(self) -> None:
        await self.reads.wait()

    def watch(self, on_loss: Callable[[], None]) -> bool:
        return True

    def unwatch(self, on_loss: Callable[[], None]) -> None:
        pass


class Answer:
    """A stream with the values put into `items`."""

    def __init__(self, encode: Callable[[bytes], Any] = bytes, **options: Any) -> None:
        self.stream = EventStream[bytes](self.produce, encode, beat=lambda: b"beat", last=b"end", **options)
        self.items: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.taken = 0

    async def produce(self, stream: EventStream[bytes]) -> None:
        while item := await self.items.get():
            self.taken += 1
            stream.send(item)
            await stream.drain()

    async def serve(self, client: Client) -> asyncio.Future[None]:
        """Begin to send the stream to a client; return when the client is ready."""
        serving = asyncio.ensure_future(self.stream(client.scope, client.receive, client.send))
        await self.stream.drain()
        return serving


async def test_stream_of_a_client_that_reads_writes_an_item_before_send_returns() -> None:
    client, answer = ConnectedClient(), Answer()
    serving = await answer.serve(client)
    for n in range(3):
        answer.stream.send(b"%d" % n)
        assert client.written[-1] == b"%d" % n
    answer.items.put_nowait(b"3")
    answer.items.put_nowait(None)
    await serving
    assert client.written == [b"0", b"1", b"2", b"3", b"end"]
    assert answer.taken == 1
    assert answer.stream.paused


@pytest.mark.parametrize("more", [[b"1", b"2"], []])
async def test_items_behind_a_blocked_write_are_sent_in_order_and_once(more: list[bytes]) -> None:
    client, answer = Client(), Answer()
    serving = await answer.serve(client)
    client.reads.clear()
    answer.stream.send(b"0")
    assert answer.stream.paused, "the backend has to wait for the client"
    for item in (*more, None):
        answer.items.put_nowait(item)
    await asyncio.sleep(0.01)
    assert client.written == []
    client.reads.set()
    await serving
    assert client.written == [b"0", *more, b"end"]


async def test_client_that_reads_again_is_written_to_at_once() -> None:
    client, answer = ConnectedClient(), Answer()
    serving = await answer.serve(client)
    client.reads.clear()
    answer.stream.send(b"0")
    assert answer.stream.paused
    client.reads.set()
    await answer.stream.drain()
    answer.stream.send(b"1")
    assert client.written == [b"0", b"1"]
    assert not answer.stream.paused
    answer.items.put_nowait(None)
    await serving


async def test_heartbeat_waits_for_a_slow_client_and_comes_again() -> None:
    client, answer = Client(), Answer(heartbeat=0.01)
    serving = await answer.serve(client)
    client.reads.clear()
    answer.stream.send(b"0")
    await asyncio.sleep(0.05)
    assert client.written == []
    client.reads.set()
    async with asyncio.timeout(10):
        while len(client.written) < 3:
            await asyncio.sleep(0.01)
    assert client.written[:3] == [b"0", b"beat", b"beat"]
    answer.items.put_nowait(None)
    await serving


@pytest.mark.parametrize("waiting", [[], [b"1"]])
async def test_closing_event_comes_after_what_the_client_has_not_read(waiting: list[bytes]) -> None:
    async def on_abort(error: Exception | None) -> bytes:
        client.reads.set()
        await asyncio.sleep(0.01)
        return b"farewell"

    client, answer = Client(), Answer(on_abort=on_abort)
    serving = await answer.serve(client)
    client.reads.clear()
    answer.stream.send(b"0")
    for item in waiting:
        answer.items.put_nowait(item)
    await asyncio.sleep(0.01)
    serving.cancel()
    await asyncio.wait({serving})
    assert client.written == [b"".join([b"0", *waiting, b"farewell"]), b""]
    assert answer.stream.paused


def letters(item: bytes) -> bytes | list[bytes]:
    """A long item is sent letter by letter."""
    return [bytes([letter]) for letter in item] if len(item) > 1 else item


async def test_large_items_are_sent_in_parts_and_in_order() -> None:
    client, answer = Client(), Answer(encode=letters)
    for item in (b"xy", b"1", b"abc", b"2", b"de", None):
        answer.items.put_nowait(item)
    await answer.stream.begin()
    await answer.stream({"type": "http"}, client.receive, client.send)
    assert client.written == [b"x", b"y", b"1", b"a", b"b", b"c", b"2", b"d", b"e", b"end"]


async def test_parts_of_a_large_item_let_other_requests_run_between_them() -> None:
    client, answer = ConnectedClient(), Answer(encode=letters)
    serving = await answer.serve(client)
    answer.items.put_nowait(b"abc")
    answer.items.put_nowait(None)
    most = 0
    while not serving.done():
        before = len(client.written)
        await asyncio.sleep(0)
        most = max(most, len(client.written) - before)
    assert client.written == [b"a", b"b", b"c", b"end"]
    assert most == 1


async def test_large_item_waits_for_what_the_client_has_not_read() -> None:
    client, answer = Client(), Answer(encode=letters)
    serving = await answer.serve(client)
    client.reads.clear()
    answer.stream.send(b"0")
    answer.items.put_nowait(b"abc")
    answer.items.put_nowait(None)
    await asyncio.sleep(0.01)
    assert (client.written, answer.stream.paused) == ([], True)
    client.reads.set()
    await serving
    assert client.written == [b"0", b"a", b"b", b"c", b"end"]


@pytest.mark.parametrize("before", [[], [b"0"]])
async def test_closing_event_comes_after_the_rest_of_a_large_item(before: list[bytes]) -> None:
    async def on_abort(error: Exception | None) -> bytes:
        client.reads.set()
        return b"farewell"

    client, answer = Client(), Answer(on_abort=on_abort, encode=letters)
    serving = await answer.serve(client)
    if before:
        client.reads.clear()
        answer.stream.send(before[0])
    answer.items.put_nowait(b"abc")
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait({serving})
    assert b"".join(client.written) == b"".join([*before, b"abc", b"farewell"])


async def test_server_error_ends_the_stream_at_the_next_item() -> None:
    client, answer = Client(), Answer()

    async def send(message: Any) -> None:
        if message.get("body") == b"0":
            raise OSError("The client has gone.")
        await client.send(message)

    serving = asyncio.ensure_future(answer.stream({"type": "http"}, client.receive, send))
    await answer.stream.drain()
    answer.stream.send(b"0")
    assert answer.stream.paused
    answer.items.put_nowait(b"1")
    with pytest.raises(OSError, match="gone"):
        await serving
    assert client.written == []


@pytest.mark.parametrize("reads", [True, False])
async def test_item_that_cannot_be_encoded_ends_the_stream_with_the_bytes_of_breaks(reads: bool) -> None:
    async def on_abort(error: Exception | None) -> bytes:
        return f"broken by a {type(error).__name__}".encode()

    client, answer = Client(), Answer(on_abort=on_abort)
    serving = await answer.serve(client)
    if not reads:
        client.reads.clear()
    answer.stream.send(b"0")
    answer.stream.send("text")  # type: ignore[arg-type]
    answer.stream.send(b"1")
    client.reads.set()
    await serving
    assert client.written == [b"0", b"broken by a TypeError"]


async def test_item_that_cannot_be_encoded_is_the_error_of_a_stream_without_breaks() -> None:
    client, answer = Client(), Answer()
    serving = await answer.serve(client)
    answer.stream.send("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await serving
    assert client.written == []


async def test_closing_event_follows_the_connections_unread_writes() -> None:
    async def on_abort(error: Exception | None) -> bytes:
        client.reads.set()
        return b"farewell"

    client, answer = ConnectedClient(), Answer(on_abort=on_abort)
    serving = await answer.serve(client)
    client.reads.clear()
    answer.stream.send(b"0")
    answer.stream.send(b"1")
    serving.cancel()
    await asyncio.wait({serving})
    assert client.written == [b"0", b"1", b"farewell", b""]
