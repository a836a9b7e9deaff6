"""
Read a stream of Anthropic's Messages API as its SDKs do, and check its laws.

    message = accumulated(body)   # as the JSON answer would be
"""

from __future__ import annotations

import json
from typing import Any

import pydantic_core

# Delta type: its block types, and the field it extends.
DELTAS = {
    "text_delta": (("text",), "text"),
    "thinking_delta": (("thinking",), "thinking"),
    "signature_delta": (("thinking",), "signature"),
    "input_json_delta": (("tool_use", "server_tool_use"), "partial_json"),
    "citations_delta": (("text",), "citation"),
}


def frames(body: bytes) -> list[Any]:
    """Return the events of a stream, without pings."""
    events = []
    for frame in body.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return [event for event in events if event["type"] != "ping"]


def accumulated(body: bytes) -> Any:
    """Return the message in a complete stream."""
    start, *events, delta, stop = frames(body)
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    content: list[Any] = message["content"]
    written: list[str] = []  # the arguments of the open block
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(content)
            content.append(event["content_block"])
            is_open, written = True, []
            continue
        assert is_open and event["index"] == len(content) - 1
        if event["type"] == "content_block_delta":
            _add(content[-1], event["delta"], written)
            continue
        assert event["type"] == "content_block_stop"
        is_open = False
        if written:
            content[-1]["input"] = _arguments("".join(written))
    assert not is_open
    return {**message, **delta["delta"], "usage": delta["usage"]}


def _arguments(written: str) -> Any:
    """Return arguments as far as they go; {} for invalid JSON, of which the SDKs raise an error."""
    try:
        arguments = pydantic_core.from_json(written, allow_partial=True)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _add(block: Any, delta: Any, written: list[str]) -> None:
    types, field = DELTAS[delta["type"]]
    assert block["type"] in types
    if field == "partial_json":
        written.append(delta[field])
    elif field == "citation":
        block.setdefault("citations", []).append(delta[field])
    else:
        block[field] += delta[field]
