"""
Writes a response as a Messages stream, or as a whole message.

    message_start, content_block_start, content_block_delta..., content_block_stop, ..., message_delta, message_stop

Only one block is open at a time, but response items can overlap, for example parallel calls. A later item's events are
queued until earlier items are done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import orjson
import pydantic_core

from app.api.client_apis.messages.hosted import hosted_blocks, server_tool_usage
from app.core.bounded_json import dumps
from app.core.types import Item, JSONMapping, JSONObject, Response, json_list, json_object, json_text
from app.core.types.request import Event
from app.core.usage import counts_of

PING = b'event: ping\ndata: {"type": "ping"}\n\n'

_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
)
_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'


def _frame(event: JSONObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), dumps(event))


class MessagesWriter:
    def __init__(self, *, shows_thinking: bool = True, names: Mapping[str, str] = {}) -> None:
        """`names`: original tool names by truncated names."""
        self._shows_thinking, self._names = shows_thinking, names
        # Queued events of unfinished items, by output index. The first item's events are written at once.
        self._waiting: dict[int, list[Event]] = {}
        self._index = -1  # of the current block
        self._is_open = False
        self._thought: tuple[object, ...] | None = None  # reasoning part of the previous delta

    def event(self, event: Event) -> bytes:
        kind = event["type"]
        if kind == "response.created":
            return _frame({"type": "message_start", "message": _empty_message(event["response"])}) + PING
        index = event.get("output_index", -1)
        if kind == "response.output_item.added":
            self._waiting[index] = []
        waiting = self._waiting.get(index)
        if waiting is None:
            return b""
        if index != next(iter(self._waiting)):
            waiting.append(event)
            return b""
        written = self._write(event)
        return written + self._after(index) if kind == "response.output_item.done" else written

    def _after(self, index: int) -> bytes:
        """Write queued events up to an unfinished item."""
        frames: list[bytes] = []
        del self._waiting[index]
        while self._waiting:
            index, waiting = next(iter(self._waiting.items()))
            frames += map(self._write, waiting)
            if not waiting or waiting[-1]["type"] != "response.output_item.done":
                waiting.clear()
                break
            del self._waiting[index]
        return b"".join(frames)

    def _write(self, event: Event) -> bytes:
        write = self._events.get(event["type"])
        return write(self, event) if write else b""

    def end(self, response: Response, stop_sequence: str | None = None) -> bytes:
        stop = _stop_fields(response, stop_sequence)
        delta = {"type": "message_delta", "delta": stop, "usage": usage_fields(response)}
        return _frame(delta) + _frame({"type": "message_stop"})

    def document(self, response: Response, stop_sequence: str | None = None) -> JSONObject:
        return {
            **_empty_message(response),
            "content": [block for item in response["output"] for block in self._blocks_of(item)],
            **_stop_fields(response, stop_sequence),
            "usage": usage_fields(response),
        }

    def _blocks_of(self, item: Item) -> list[JSONObject]:
        """Empty for item types without blocks."""
        if item["type"] == "message":
            return _message_blocks(item)
        if item["type"] == "reasoning":
            return self._reasoning_blocks(item)
        if item["type"] == "function_call":
            try:  # truncated JSON yields the complete fields, invalid JSON {}
                arguments = json_object(pydantic_core.from_json(item["arguments"], allow_partial=True))
            except ValueError:
                arguments = {}
            return [{**self._tool_use(item), "input": arguments}]
        return hosted_blocks(item)

    def _reasoning_blocks(self, item: Item) -> list[JSONObject]:
        parts = [*json_list(item.get("summary")), *json_list(item.get("content"))]
        text = PARAGRAPH.join(filter(None, (json_text(part.get("text")) for part in parts)))
        signature = item.get("encrypted_content") or ""
        if text and self._shows_thinking:
            return [{"type": "thinking", "thinking": text, "signature": signature}]
        return [{"type": "redacted_thinking", "data": signature}] if signature else []

    # Blocks.

    def _start(self, block: JSONObject) -> bytes:
        self._index += 1
        self._is_open = True
        return _frame({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, kind: bytes, field: bytes, text: str) -> bytes:
        return _DELTA % (self._index, kind, field, orjson.dumps(text))

    def _stop(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return _STOP % self._index

    # Items: a block per message part, reasoning item or call, and two per hosted call.

    def _item_added(self, event: Event) -> bytes:
        item = event["item"]
        return self._start(self._tool_use(item)) if item["type"] == "function_call" else b""

    def _tool_use(self, item: Item) -> JSONObject:
        """The initial block, without input."""
        name = self._names.get(item["name"], item["name"])
        return {"type": "tool_use", "id": item["call_id"], "name": name, "input": {}}

    def _start_text(self) -> bytes:
        return b"" if self._is_open else self._start({"type": "text", "text": ""})

    def _text(self, event: Event) -> bytes:
        delta = event["delta"]
        return self._start_text() + self._delta(b"text_delta", b"text", delta) if delta else b""

    def _annotation(self, event: Event) -> bytes:
        started = self._start_text()
        delta = {"type": "citations_delta", "citation": citation(event["annotation"])}
        return started + _frame({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _part_done(self, event: Event) -> bytes:
        return b"" if event["part"]["type"] == "reasoning_text" else self._stop()

    def _reasoning(self, event: Event) -> bytes:
        if not self._shows_thinking or not event["delta"]:
            return b""
        part = (event["type"], event.get("content_index"), event.get("summary_index"))
        earlier, self._thought = self._thought, part
        before = b""
        if earlier is None:
            before = self._start({"type": "thinking", "thinking": "", "signature": ""})
        elif part != earlier:
            before = self._delta(b"thinking_delta", b"thinking", PARAGRAPH)
        return before + self._delta(b"thinking_delta", b"thinking", event["delta"])

    def _arguments(self, event: Event) -> bytes:
        return self._delta(b"input_json_delta", b"partial_json", event["delta"])

    def _item_done(self, event: Event) -> bytes:
        item = event["item"]
        if item["type"] != "reasoning":
            return self._stop() + b"".join(map(self._whole, hosted_blocks(item)))
        self._thought = None
        signature = item.get("encrypted_content")
        if not self._is_open:
            return self._whole({"type": "redacted_thinking", "data": signature}) if signature else b""
        signed = self._delta(b"signature_delta", b"signature", signature) if signature else b""
        return signed + self._stop()

    def _whole(self, block: JSONObject) -> bytes:
        if block["type"] != "server_tool_use":
            return self._start(block) + self._stop()
        arguments = dumps(block["input"]).decode()
        started = self._start({**block, "input": {}})
        return started + self._delta(b"input_json_delta", b"partial_json", arguments) + self._stop()

    _events: ClassVar[Mapping[str, Callable[[MessagesWriter, Event], bytes]]] = {
        "response.output_item.added": _item_added,
        "response.output_text.delta": _text,
        "response.refusal.delta": _text,
        "response.output_text.annotation.added": _annotation,
        "response.content_part.done": _part_done,
        "response.reasoning.delta": _reasoning,
        "response.reasoning_summary_text.delta": _reasoning,
        "response.function_call_arguments.delta": _arguments,
        "response.output_item.done": _item_done,
    }


PARAGRAPH = "\n\n"  # separates reasoning parts, which share a block
_TIERS = {"default": "standard", "priority": "priority"}


def _empty_message(response: Response) -> JSONObject:
    usage = {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    return {
        "id": f"msg_{response['id'].partition('_')[2]}",
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _message_blocks(item: Item) -> list[JSONObject]:
    blocks = []
    for part in json_list(item.get("content")):
        text = json_text(part.get("text")) or json_text(part.get("refusal"))
        citations = [citation(each) for each in part.get("annotations") or ()]
        if text or citations:
            blocks.append({"type": "text", "text": text, **({"citations": citations} if citations else {})})
    return blocks


def citation(annotation: JSONMapping) -> JSONObject:
    title = annotation.get("title") or annotation.get("filename")
    if annotation.get("type") == "url_citation":
        return {
            "type": "web_search_result_location",
            "url": json_text(annotation.get("url")),
            "title": title,
            "encrypted_index": "",
            "cited_text": json_text(annotation.get("cited_text")),
        }
    return {
        "type": "search_result_location",
        "source": json_text(annotation.get("file_id")),
        "title": title,
        "search_result_index": 0,
        "start_block_index": 0,
        "end_block_index": 0,
        "cited_text": json_text(annotation.get("cited_text")),
    }


def _stop_fields(response: Response, stop_sequence: str | None) -> JSONObject:
    output = response["output"]
    parts = [part for item in output if item["type"] == "message" for part in json_list(item.get("content"))]
    refusals = [json_text(part.get("refusal")) for part in parts if part["type"] == "refusal"]
    if response["status"] == "incomplete":
        details: Any = response.get("incomplete_details") or {}
        reason = "refusal" if details.get("reason") == "content_filter" else "max_tokens"
    elif stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_sequence}
    elif any(item["type"] == "function_call" for item in output):
        reason = "tool_use"
    else:
        reason = "refusal" if refusals else "end_turn"
    fields: JSONObject = {"stop_reason": reason, "stop_sequence": None}
    if reason == "refusal":
        fields["stop_details"] = {"type": "refusal", "category": None, "explanation": "\n".join(refusals) or None}
    return fields


def usage_fields(response: Response) -> JSONObject:
    """Unlike in the Responses API, `input_tokens` excludes cached tokens."""
    usage = response.get("usage")
    input_tokens, output_tokens, cached, written, thinking = counts_of(usage) if usage else (0, 0, 0, 0, 0)
    fields: JSONObject = {
        "input_tokens": max(0, input_tokens - cached - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": output_tokens,
    }
    if thinking:
        fields["output_tokens_details"] = {"thinking_tokens": thinking}
    if counts := server_tool_usage(response["output"]):
        fields["server_tool_use"] = counts
    if tier := _TIERS.get(response.get("service_tier", "")):
        fields["service_tier"] = tier
    return fields
