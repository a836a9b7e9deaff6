"""
The cheapest translator in Python: two bare asyncio protocols, which translate on arrival.

    python -m tests.bench.floors.translator --port 9102 --upstream 9100
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import Any, cast

import httptools
import orjson

from tests.bench import eventloop
from tests.bench.floors.translation import Translation, chat_request, whole

STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
ASK = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: upstream\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n"
)


class Backend(asyncio.Protocol):
    """An upstream connection, with one request at a time."""

    transport: asyncio.Transport
    idle: list[Backend] = []  # noqa: RUF012 (of all)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.idle:
            self.idle.remove(self)

    def ask(self, client: Client, body: bytes) -> None:
        self.client, self.complete = client, False
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.parser = httptools.HttpResponseParser(self)
        self.transport.write(ASK % len(body) + body)

    def on_message_complete(self) -> None:
        self.complete = True

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        body = b"".join(self.pieces)
        self.pieces.clear()
        if complete := self.complete:
            self.idle.append(self)
        self.client.received(body, complete)


class Client(asyncio.Protocol):
    """A client connection."""

    transport: asyncio.Transport

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.body: list[bytes] = []
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.request: dict[str, Any] = orjson.loads(b"".join(self.body))
        self.body = []
        self.parser = httptools.HttpRequestParser(self)
        if self.request.get("stream"):
            self.translation = Translation(self.request)
            events = self.translation.begin()
            self.transport.write(b"%b%x\r\n%b\r\n" % (STREAM, len(events), events))
        if Backend.idle:
            Backend.idle.pop().ask(self, chat_request(self.request))
        else:
            self.connecting = asyncio.ensure_future(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, backend = await loop.create_connection(Backend, "127.0.0.1", self.upstream)
        backend.ask(self, chat_request(self.request))

    def received(self, body: bytes, complete: bool) -> None:
        if self.request.get("stream"):
            events = self.translation.feed(body)
            piece = b"%x\r\n%b\r\n" % (len(events), events) if events else b""
            self.transport.write(piece + b"0\r\n\r\n" if complete else piece)
            return
        self.body.append(body)
        if complete:
            response = whole(self.request, b"".join(self.body))
            self.body = []
            self.transport.write(JSON % len(response) + response)


async def serve(port: int, upstream: int) -> None:
    server = await asyncio.get_running_loop().create_server(partial(Client, upstream), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The translation, on bare protocols.")
    parser.add_argument("--port", type=int, default=9102)
    parser.add_argument("--upstream", type=int, default=9100)
    arguments = parser.parse_args()
    eventloop.run(serve(arguments.port, arguments.upstream))
