"""The benchmark model in the other model server APIs: stream writes, like `upstream` for chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tests.bench import wire
from tests.bench.answers import answer, call_id
from tests.support.messages_server import events, text, thinking, tool_use
from tests.support.native import Native

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_COUNT = 918273645  # placeholder for the message count, in prebuilt events

Fields = dict[str, Any]


def _messages(model: str) -> list[Fields]:
    prepared = answer(model)
    thoughts, pieces = prepared.pieces[: prepared.thoughts], prepared.pieces[prepared.thoughts :]
    blocks = [thinking(*thoughts)] if thoughts else []
    blocks.append(tool_use(call_id(0), "count", *pieces) if prepared.call else text(*pieces))
    return events(*blocks, usage={"input_tokens": _COUNT, "output_tokens": len(prepared.pieces)})


def _responses(model: str) -> list[Fields]:
    prepared = answer(model)
    thoughts, pieces = prepared.pieces[: prepared.thoughts], prepared.pieces[prepared.thoughts :]
    native = Native()
    if thoughts:
        native.thought(*thoughts)
    native = native.call("count", *pieces, call_id=call_id(0)) if prepared.call else native.message(*pieces)
    details: Fields = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    counts = {"input_tokens": _COUNT, "output_tokens": len(prepared.pieces), "total_tokens": _COUNT, **details}
    made = native.completed().events
    made[-1]["response"]["usage"] = counts
    return made


def _received_messages(request: Fields) -> int:
    """Return the number of chat messages. Thoughts belong to a message."""
    blocks = [block["type"] for message in request["messages"] for block in message["content"]]
    return sum(kind != "thinking" for kind in blocks)


def _received_items(request: Fields) -> int:
    return sum(item.get("type") != "reasoning" for item in request["input"])


class _API(NamedTuple):
    events: Callable[[str], list[Fields]]
    received: Callable[[Fields], int]
    delta: Callable[[Fields], bool]  # whether an event is a delta with a piece


_APIS = {
    b"messages": _API(
        _messages,
        _received_messages,
        lambda event: event["type"] == "content_block_delta" and event["delta"].get("signature") is None,
    ),
    b"responses": _API(_responses, _received_items, lambda event: event["type"].endswith(".delta")),
}


@cache
def _writes(path: bytes, model: str) -> tuple[bytes, ...]:
    """Return a write per delta; other events go with the first and the last."""
    api = _APIS[path]
    writes: list[bytes] = []
    pending = HEAD
    for event in api.events(model):
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        pending += wire.chunk(f"event: {event['type']}\ndata: {data}\n\n".encode())
        if api.delta(event):
            writes.append(pending)
            pending = b""
    return (*writes[:-1], writes[-1] + pending + wire.LAST_CHUNK)


def streamed(path: bytes, request: Fields) -> list[bytes] | None:
    """Return the writes for a request at this path; None for other APIs."""
    name = path.rpartition(b"/")[2]
    if (api := _APIS.get(name)) is None:
        return None
    count = api.received(request)
    made = [write.replace(call_id(0).encode(), call_id(count).encode()) for write in _writes(name, request["model"])]
    counted = str(_COUNT).encode()
    # As many digits, or the sizes of the chunks were wrong; JSON may have blanks before a number.
    return [*made[:-1], made[-1].replace(counted, str(count).rjust(len(counted)).encode())]


@cache
def _response(model: str) -> bytes:
    return json.dumps(_responses(model)[-1]["response"]).encode()


def response(path: bytes, request: Fields) -> bytes | None:
    """Return the JSON answer to a request for a response; None for other paths."""
    if not path.endswith(b"/responses"):
        return None
    count = _received_items(request)
    made = _response(request["model"]).replace(call_id(0).encode(), call_id(count).encode())
    return made.replace(str(_COUNT).encode(), str(count).encode())
