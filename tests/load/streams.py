"""Many slow, concurrent streams: delays and costs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench import wire

DELTAS = {
    "responses": re.compile(rb'"type":"response\.output_text\.delta"[^\n]*?"delta":"(\d+\.\d+) "'),
    "chat": re.compile(rb'"content": "(\d+\.\d+) "'),
}
ENDS = {"responses": b'"type":"response.completed"', "chat": b'"finish_reason": "stop"'}
SLACK = 120.0  # seconds that a stream may exceed its duration


@dataclass
class ReceivedDeltas:
    """The received deltas."""

    deltas: list[tuple[float, float]] = field(
        default_factory=list
    )  # when each was due, and how late it was, in seconds
    completed: int = 0
    wrong: list[str] = field(default_factory=list)


class Stream(asyncio.Protocol):
    """One stream, from the question to its end."""

    def __init__(self, api: str, request: bytes, deltas: int, received: ReceivedDeltas) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._api, self._request, self._deltas, self._received = api, request, deltas, received
        self._tail = b""
        self._delta_count = 0
        self._completed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        data = self._tail + data
        whole = data.rfind(b"\n\n") + 2  # incomplete events are read later
        self._tail = data[max(whole, 1) if whole > 1 else 0 :]
        if whole <= 1:
            return
        block = data[:whole]
        for due in DELTAS[self._api].findall(block):
            self._received.deltas.append((float(due), now - float(due)))
            self._delta_count += 1
        self._completed = self._completed or ENDS[self._api] in block
        if b"data: [DONE]" in block:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._completed and self._delta_count == self._deltas:
            self._received.completed += 1
        else:
            self._received.wrong.append(f"{self._delta_count} of {self._deltas} deltas, {exc!r}, {self._tail[-200:]!r}")
        if not self.ended.done():
            self.ended.set_result(None)


def run(
    api: str, ports: Sequence[int], *, streams: int, deltas: int, period: float, ramp: float
) -> tuple[ReceivedDeltas, asyncio.Task[None]]:
    """
    Open streams evenly over `ramp` seconds; each sends `deltas`, every `period` seconds.

    Returns their running output, and the task that ends with the last stream.
    """
    loop, received = asyncio.get_running_loop(), ReceivedDeltas()
    body = {"model": f"clock-{deltas}-{round(period * 1000)}", "stream": True}
    path = "/v1/responses" if api == "responses" else "/v1/chat/completions"
    prompt = {"input": "When?"} if api == "responses" else {"messages": [{"role": "user", "content": "When?"}]}
    request = wire.request("POST", path, json.dumps(body | prompt).encode())
    began = loop.time()

    async def one(number: int) -> None:
        await asyncio.sleep(began + ramp * number / streams - loop.time())
        try:
            _, stream = await loop.create_connection(
                lambda: Stream(api, request, deltas, received), "127.0.0.1", ports[number % len(ports)]
            )
        except OSError as error:
            received.wrong.append(repr(error))
            return
        await stream.ended

    async def all_of_them() -> None:
        async with asyncio.timeout(ramp + deltas * period + SLACK):
            await asyncio.gather(*(one(number) for number in range(streams)))

    return received, loop.create_task(all_of_them())
