"""
A minimal load balancer: each request goes to the next replica, on a new connection.

A replica that refuses a connection is skipped temporarily in favor of the next. Nothing else is retried: the replica
may have processed the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence

LEFT_OUT = 0.1  # seconds
PATIENCE = 60.0  # seconds for a replica to accept, if all refuse

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RoundRobin:
    """The balancer, in front of replicas at local ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.sent: Counter[int] = Counter()  # requests, by the replica's port
        self.refused = 0  # connections
        self.unanswered = 0  # connections closed before any answer
        self._ports = [*ports]
        self._next = 0
        self._out: dict[int, float] = {}  # until when a port is left out, by the loop's clock

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a request and its answer until either side ends."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.ExitStack() as open:
            open.callback(writer.close)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            replica = await self._connect()
            open.callback(replica[1].close)
            replica[1].write(_CONNECTION.sub(b"", head)[:-2] + b"connection: close\r\n\r\n" + body)
            await self._relay(replica, (reader, writer))

    async def _connect(self) -> Line:
        clock = asyncio.get_running_loop().time
        until = clock() + PATIENCE
        while clock() < until:
            for _ in self._ports:
                port = self._ports[self._next]
                self._next = (self._next + 1) % len(self._ports)
                if self._out.get(port, 0) > clock():
                    continue
                try:
                    line = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    self.refused += 1
                    self._out[port] = clock() + LEFT_OUT
                else:
                    self.sent[port] += 1
                    return line
            await asyncio.sleep(0.01)
        raise ConnectionRefusedError("no replica accepts")

    async def _relay(self, replica: Line, client: Line) -> None:
        answering = asyncio.create_task(self._answer(replica[0], client[1]))
        leaving = asyncio.create_task(client[0].read(1))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _answer(self, replica: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answered = False
        try:
            while data := await replica.read(65536):
                answered = True
                client.write(data)
                await client.drain()
        finally:
            self.unanswered += not answered and not client.is_closing()


@contextlib.asynccontextmanager
async def balanced(ports: Sequence[int]) -> AsyncIterator[tuple[RoundRobin, str]]:
    """Balance between replicas; gives the balancer, and its address."""
    balancer = RoundRobin(ports)
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0, backlog=1024)
    async with server:
        yield balancer, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
