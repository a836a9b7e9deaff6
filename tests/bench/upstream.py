"""
A fake model server with all three APIs. Streams are prebuilt, so that it is not the bottleneck.

    python -m tests.bench.upstream --port 9100

The model's name determines the answer (see `answers`). `usage.prompt_tokens` is the number of received messages, for
callers to check.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from tests.bench import apis, eventloop, wire
from tests.bench.answers import Answer, answer, call_id, tool_call

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ABOUT = {"id": "chatcmpl-5f3759df5f3759df", "created": 1760000000}


def _event(model: str, choices: list[dict[str, Any]], **fields: Any) -> bytes:
    data = {**ABOUT, "object": "chat.completion.chunk", "model": model, "choices": choices, **fields}
    encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    return wire.chunk(b"data: " + encoded + b"\n\n")


def _choice(delta: dict[str, Any], finish: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


def _call(arguments: str, **fields: str) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if fields else {}
    return {"tool_calls": [{"index": 0, **fields, "function": {**name, "arguments": arguments}}]}


def _delta(prepared: Answer, at: int) -> dict[str, Any]:
    piece = prepared.pieces[at]
    if at < prepared.thoughts:
        return {"reasoning_content": piece}
    if not prepared.call:
        return {"content": piece}
    return _call(piece) if at > prepared.thoughts else _call(piece, id=call_id(0), type="function", name="count")


@cache
def _deltas(model: str) -> tuple[bytes, ...]:
    prepared = answer(model)
    opening = HEAD + _event(model, _choice({"role": "assistant", "content": ""}))
    first, *others = (_event(model, _choice(_delta(prepared, at))) for at in range(len(prepared.pieces)))
    return opening + first, *others


def _usage(prepared: Answer, messages: int) -> dict[str, int]:
    count = len(prepared.pieces)
    return {"prompt_tokens": messages, "completion_tokens": count, "total_tokens": messages + count}


def _streamed(model: str, messages: int) -> list[bytes]:
    """Return a stream's writes, one per delta; the last includes the ending."""
    prepared = answer(model)
    finish = _event(model, _choice({}, "tool_calls" if prepared.call else "stop"))
    usage = _event(model, [], usage=_usage(prepared, messages))
    *deltas, last = _deltas(model)
    if prepared.call:
        deltas[prepared.thoughts] = deltas[prepared.thoughts].replace(call_id(0).encode(), call_id(messages).encode())
    return [*deltas, last + finish + usage + wire.chunk(b"data: [DONE]\n\n") + wire.LAST_CHUNK]


def _called(model: str, messages: int, tools: list[Any]) -> list[bytes]:
    """Return the writes for a call to the cheapest tool."""
    names = [tool["function"]["name"] for tool in tools]
    name = next((name for name in names if name.endswith("echo")), names[0])
    prepared = tool_call(model, messages // 2)
    first, *others = prepared.pieces
    begin = HEAD + _event(model, _choice({"role": "assistant", "content": None}))
    begin += _event(model, _choice(_call(first, id=call_id(messages), type="function", name=name)))
    usage = _event(model, [], usage=_usage(prepared, messages))
    end = _event(model, _choice({}, "tool_calls")) + usage + wire.chunk(b"data: [DONE]\n\n") + wire.LAST_CHUNK
    *pieces, last = (_event(model, _choice(_call(piece))) for piece in others)
    return [begin, *pieces, last + end]


def _completion(model: str, messages: int) -> bytes:
    prepared = answer(model)
    message: dict[str, Any] = {"role": "assistant", "content": prepared.text}
    if prepared.call:
        call = {"id": call_id(messages), "type": "function", "function": {"name": "count", "arguments": prepared.text}}
        message |= {"content": None, "reasoning_content": prepared.reasoning, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if prepared.call else "stop"}
    body = {**ABOUT, "object": "chat.completion", "model": model, "choices": [choice]}
    return wire.whole(json.dumps({**body, "usage": _usage(prepared, messages)}).encode())


class Upstream(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.message = wire.Message()
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self.message.feed(data):
            message, self.message = self.message, wire.Message()
            self.answer(message.line.split()[1], message.body)

    def answer(self, path: bytes, body: bytes) -> None:
        if path.endswith(b"/models"):
            models = [{"id": "count-20-0", "object": "model", "created": 0, "owned_by": "bench"}]
            self.transport.write(wire.whole(json.dumps({"object": "list", "data": models}).encode()))
            return
        try:
            request = json.loads(body)
            if request.get("stream") and (writes := apis.streamed(path, request)) is not None:
                now = asyncio.get_running_loop().time()
                self.advance(writes, 0, now, answer(request["model"]).delay)
                return
            if (response := apis.response(path, request)) is not None:
                self.transport.write(wire.whole(response))
                return
            prepared, messages = answer(request["model"]), len(request["messages"])
            results = sum(message["role"] == "tool" for message in request["messages"])
        except (ValueError, KeyError) as error:
            refusal = {"error": {"message": str(error), "type": "invalid_request_error", "code": "model_not_found"}}
            self.transport.write(wire.whole(json.dumps(refusal).encode(), "404 Not Found"))
            return
        now = asyncio.get_running_loop().time()
        if results < prepared.rounds:
            self.advance(_called(request["model"], messages, request["tools"]), 0, now, prepared.delay)
        elif request.get("stream"):
            self.advance(_streamed(request["model"], messages), 0, now, prepared.delay)
        else:
            self.transport.write(_completion(request["model"], messages))

    def advance(self, writes: Sequence[bytes], at: int, due: float, delay: float) -> None:
        """Write due events. As in real servers, all streams advance a step before any advances twice."""
        self.transport.write(writes[at])
        if at + 1 < len(writes) and not self.transport.is_closing():
            due += delay  # not relative to now, or a late event would delay all following events
            self.timer = asyncio.get_running_loop().call_at(due, self.advance, writes, at + 1, due, delay)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fake Chat Completions server.")
    parser.add_argument("--port", type=int, default=9100)
    eventloop.run(serve(parser.parse_args().port))
