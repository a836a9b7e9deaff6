"""
The floor: a proxy that only forwards bytes, cheaper than any Python server.

    python -m tests.bench.floors.byte_proxy --port 9101 --upstream 9100
"""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import cast

from tests.bench import eventloop


class Pipe(asyncio.Protocol):
    """One side of a connection, which writes to the other side."""

    transport: asyncio.Transport

    def __init__(self, upstream: int = 0, other: Pipe | None = None) -> None:
        self.upstream = upstream
        self.other = other
        self.waiting = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        if self.other is None:
            connect = asyncio.get_running_loop().create_connection
            self.opening = asyncio.ensure_future(connect(partial(Pipe, other=self), "127.0.0.1", self.upstream))
        else:
            self.other.other = self
            self.transport.write(bytes(self.other.waiting))

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.waiting += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


async def serve(port: int, upstream: int) -> None:
    server = await asyncio.get_running_loop().create_server(partial(Pipe, upstream), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A proxy that passes bytes on.")
    parser.add_argument("--port", type=int, default=9101)
    parser.add_argument("--upstream", type=int, default=9100)
    arguments = parser.parse_args()
    eventloop.run(serve(arguments.port, arguments.upstream))
