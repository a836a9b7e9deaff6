"""
Translation between the two APIs only: no limits, logs, metrics, profiles, tools, stores or errors.

It reads the benchmark upstream's output: text, reasoning and one function call, with an event per frame.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import orjson


class Kind(NamedTuple):
    """An output type: its item and its events."""

    item: str
    part: str  # part type; empty for a call
    delta: str


TEXT = Kind("message", "output_text", "response.output_text.delta")
REASONING = Kind("reasoning", "reasoning_text", "response.reasoning_text.delta")
CALL = Kind("function_call", "", "response.function_call_arguments.delta")


def chat_request(request: dict[str, Any]) -> bytes:
    """Return the Chat Completions body."""
    messages = [{"role": item["role"], "content": item["content"]} for item in request["input"]]
    body: dict[str, Any] = {"model": request["model"], "messages": messages, "stream": bool(request.get("stream"))}
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if tools := request.get("tools"):
        functions = [{name: value for name, value in tool.items() if name != "type"} for tool in tools]
        body["tools"] = [{"type": "function", "function": function} for function in functions]
    return orjson.dumps(body)


def new_response(request: dict[str, Any]) -> dict[str, Any]:
    """Return a new response resource."""
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": request["model"],
        "output": [],
        "tools": request.get("tools", []),
        "usage": None,
        **dict.fromkeys(
            ("error", "incomplete_details", "instructions", "previous_response_id", "temperature", "top_p")
        ),
    }


def complete(response: dict[str, Any], usage: dict[str, int] | None) -> dict[str, Any]:
    """Return the response as completed."""
    counted = usage or {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    tokens = {"input_tokens": counted["prompt_tokens"], "output_tokens": counted["completion_tokens"]}
    return {**response, "status": "completed", "usage": {**tokens, "total_tokens": counted["total_tokens"]}}


def whole(request: dict[str, Any], completion: bytes) -> bytes:
    """Return the response to a request without streaming."""
    answer = orjson.loads(completion)
    response = new_response(request)
    item = {"type": "message", "id": f"msg_{uuid4().hex}", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": answer["choices"][0]["message"]["content"], "annotations": []}
    response["output"] = [{**item, "content": [part]}]
    return orjson.dumps(complete(response, answer["usage"]))


class Translation:
    """Turns a streamed body into server-sent events, read by read."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._response = new_response(request)
        self._usage: dict[str, int] | None = None
        self._number = 0
        self._rest = b""
        self._kind: Kind | None = None
        self._item: dict[str, Any] = {}
        self._texts: list[str] = []
        self._delta = b""  # format string for the open item's delta events

    def begin(self) -> bytes:
        """Return the events before any output."""
        return b"".join(self._event(f"response.{name}", response=self._response) for name in ("created", "in_progress"))

    def feed(self, data: bytes) -> bytes:
        """Return the events for received bytes."""
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        events: list[bytes] = []
        for frame in frames:
            if frame == b"data: [DONE]":
                events += [*self._close(), self._completed(), b"data: [DONE]\n\n"]
                continue
            chunk = orjson.loads(frame[6:])
            if usage := chunk.get("usage"):
                self._usage = usage
            for choice in chunk["choices"]:
                events += self._choice(choice["delta"])
        return b"".join(events)

    def _choice(self, delta: dict[str, Any]) -> Iterator[bytes]:
        if text := delta.get("content"):
            kind, first = TEXT, None
        elif text := delta.get("reasoning_content"):
            kind, first = REASONING, None
        elif calls := delta.get("tool_calls"):
            kind, first = CALL, calls[0]
            text = calls[0]["function"]["arguments"]
        else:
            return
        if kind is not self._kind:
            yield from self._close()
            yield from self._open(kind, first)
        self._texts.append(text)
        yield self._delta % (self._number, orjson.dumps(text))
        self._number += 1

    def _open(self, kind: Kind, call: dict[str, Any] | None) -> Iterator[bytes]:
        self._kind, self._texts = kind, []
        index = len(self._response["output"])
        self._item = {"type": kind.item, "id": f"item_{uuid4().hex}", "status": "in_progress"}
        if call:
            self._item |= {"call_id": call["id"], "name": call["function"]["name"], "arguments": ""}
        else:
            self._item |= {"content": [], "role": "assistant"} if kind is TEXT else {"content": [], "summary": []}
        yield self._event("response.output_item.added", output_index=index, item=self._item)
        at = {"item_id": self._item["id"], "output_index": index}
        if not call:
            at["content_index"] = 0
            yield self._event("response.content_part.added", **at, part={"type": kind.part, "text": ""})
        where = orjson.dumps(at)[1:-1]
        name = kind.delta.encode()
        self._delta = b'event: %b\ndata: {"type":"%b","sequence_number":%%d,%b,"delta":%%b}\n\n' % (name, name, where)

    def _close(self) -> Iterator[bytes]:
        if self._kind is None:
            return
        text, index = "".join(self._texts), len(self._response["output"])
        at = {"item_id": self._item["id"], "output_index": index}
        done = self._kind.delta.replace(".delta", ".done")
        if self._kind is CALL:
            item = {**self._item, "arguments": text, "status": "completed"}
            yield self._event(done, **at, arguments=text)
        else:
            part = {"type": self._kind.part, "text": text}
            item = {**self._item, "content": [part], "status": "completed"}
            yield self._event(done, **at, content_index=0, text=text)
            yield self._event("response.content_part.done", **at, content_index=0, part=part)
        self._response["output"].append(item)
        self._kind = None
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _completed(self) -> bytes:
        return self._event("response.completed", response=complete(self._response, self._usage))

    def _event(self, type: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return b"event: %b\ndata: %b\n\n" % (
            type.encode(),
            orjson.dumps({"type": type, "sequence_number": number, **fields}),
        )
