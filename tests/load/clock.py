"""
A Chat Completions server whose deltas are their own due times.

    python -m tests.load.clock --port 9100

The model `clock-30-1000` sends 30 deltas, every 1000 ms, on a clock shared by all processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from tests.bench import wire

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(**fields: Any) -> bytes:
    data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "clock", **fields}
    return wire.chunk(b"data: " + json.dumps(data).encode() + b"\n\n")


def _choice(delta: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "finish_reason": finish}]


_BEFORE, _AFTER = json.dumps({"choices": _choice({"content": "\0"})}).split("\\u0000")


class Clock(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.message = wire.Message()
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self.message.feed(data):
            message, self.message = self.message, wire.Message()
            _, count, period = json.loads(message.body)["model"].split("-")
            self.transport.write(HEAD + _event(choices=_choice({"role": "assistant", "content": ""})))
            self.tell(time.monotonic(), int(count), int(period) / 1000)

    def tell(self, due: float, left: int, period: float) -> None:
        """Say when this was due, and go on in time, however late it is now."""
        data = f"data: {_BEFORE}{due:.6f} {_AFTER}\n\n".encode()
        if left == 1:
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            end = (
                _event(choices=_choice({}, "stop")) + _event(choices=[], usage=usage) + wire.chunk(b"data: [DONE]\n\n")
            )
            self.transport.write(wire.chunk(data) + end + wire.LAST_CHUNK)
            return
        self.transport.write(wire.chunk(data))
        due += period
        self.timer = asyncio.get_running_loop().call_later(due - time.monotonic(), self.tell, due, left - 1, period)


async def listen(port: int = 0) -> asyncio.Server:
    """Listen on a port, by default a free port."""
    return await asyncio.get_running_loop().create_server(Clock, "127.0.0.1", port, backlog=4096)


async def serve(port: int) -> None:
    await (await listen(port)).serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A model that tells the time.")
    parser.add_argument("--port", type=int, default=9100)
    asyncio.run(serve(parser.parse_args().port))
