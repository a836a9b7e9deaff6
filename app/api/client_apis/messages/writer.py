"""
Writes a response as a Messages stream, or as a whole message.

    message_start, content_block_start, content_block_delta..., content_block_stop, ..., message_delta, message_stop

Only one block is open at a time, but response items can overlap, for example parallel calls. A later item's events are
queued until earlier items are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
import pydantic_core

from app.api.client_apis import Ending
from app.api.client_apis.messages.hosted import hosted_blocks, server_tool_usage
from app.api.client_apis.messages.reader import WriterOptions
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
    def __init__(self, options: WriterOptions) -> None:
        self._options = options
        self._blocks = _Blocks()
        self._items: dict[int, _ItemWriter] = {}  # unfinished, by output index

    def event(self, event: Event) -> bytes:
        kind = event["type"]
        if kind == "response.created":
            return _frame({"type": "message_start", "message": _empty_message(event["response"])}) + PING
        index = event.get("output_index", -1)
        if kind == "response.output_item.added":
            row = _ITEM_WRITERS.get(event["item"]["type"], _HostedWriter)
            self._items[index] = row(self._blocks, self._options)
        item = self._items.get(index)
        if item is None:
            return b""
        if item is not next(iter(self._items.values())):
            item.waiting.append(event)
            return b""
        written = item.write(event)
        return written + self._after(index) if kind == "response.output_item.done" else written

    def _after(self, index: int) -> bytes:
        frames: list[bytes] = []
        del self._items[index]
        while self._items:
            index, item = next(iter(self._items.items()))
            waiting, item.waiting = item.waiting, []
            frames += map(item.write, waiting)
            if not waiting or waiting[-1]["type"] != "response.output_item.done":
                break
            del self._items[index]
        return b"".join(frames)

    def end(self, ending: Ending) -> bytes:
        delta = {"type": "message_delta", "delta": _stop_fields(ending), "usage": usage_fields(ending.response)}
        return _frame(delta) + _frame({"type": "message_stop"})

    def document(self, ending: Ending) -> JSONObject:
        return _whole_message(ending, self._options)


class _Blocks:
    """Numbers blocks from 0."""

    def __init__(self) -> None:
        self._index = -1
        self.open = False

    def start(self, block: JSONObject) -> bytes:
        self._index += 1
        self.open = True
        return _frame({"type": "content_block_start", "index": self._index, "content_block": block})

    def text(self, kind: bytes, field: bytes, text: str) -> bytes:
        return _DELTA % (self._index, kind, field, orjson.dumps(text))

    def cite(self, found: JSONObject) -> bytes:
        delta = {"type": "citations_delta", "citation": found}
        return _frame({"type": "content_block_delta", "index": self._index, "delta": delta})

    def stop(self) -> bytes:
        if not self.open:
            return b""
        self.open = False
        return _STOP % self._index

    def whole(self, block: JSONObject) -> bytes:
        return self.start(block) + self.stop()


class _ItemWriter:
    def __init__(self, blocks: _Blocks, options: WriterOptions) -> None:
        self.waiting: list[Event] = []
        self._blocks = blocks
        self._options = options
        self._events: Mapping[str, Callable[[Event], bytes]] = self._rows()

    def write(self, event: Event) -> bytes:
        row = self._events.get(event["type"])
        return row(event) if row else b""

    def _rows(self) -> Mapping[str, Callable[[Event], bytes]]:
        raise NotImplementedError


class _MessageWriter(_ItemWriter):
    """Writes a block per message part, opened by its first text or citation."""

    def _rows(self) -> Mapping[str, Callable[[Event], bytes]]:
        return {
            "response.output_text.delta": self._text,
            "response.refusal.delta": self._text,
            "response.output_text.annotation.added": self._annotation,
            "response.content_part.done": lambda event: self._blocks.stop(),
        }

    def _start(self) -> bytes:
        return b"" if self._blocks.open else self._blocks.start({"type": "text", "text": ""})

    def _text(self, event: Event) -> bytes:
        delta = event["delta"]
        return self._start() + self._blocks.text(b"text_delta", b"text", delta) if delta else b""

    def _annotation(self, event: Event) -> bytes:
        return self._start() + self._blocks.cite(citation(event["annotation"]))


class _ReasoningWriter(_ItemWriter):
    """Writes a single block, signed with `encrypted_content`."""

    def _rows(self) -> Mapping[str, Callable[[Event], bytes]]:
        self._part: tuple[object, ...] | None = None  # part of the previous delta
        return {
            "response.reasoning.delta": self._text,
            "response.reasoning_summary_text.delta": self._text,
            "response.output_item.done": self._end,
        }

    def _text(self, event: Event) -> bytes:
        if not self._options.shows_thinking or not event["delta"]:
            return b""
        part = (event["type"], event.get("content_index"), event.get("summary_index"))
        earlier, self._part = self._part, part
        before = b""
        if earlier is None:
            before = self._blocks.start({"type": "thinking", "thinking": "", "signature": ""})
        elif part != earlier:
            before = self._blocks.text(b"thinking_delta", b"thinking", PARAGRAPH)
        return before + self._blocks.text(b"thinking_delta", b"thinking", event["delta"])

    def _end(self, event: Event) -> bytes:
        signature = event["item"].get("encrypted_content")
        if not self._blocks.open:
            return self._blocks.whole({"type": "redacted_thinking", "data": signature}) if signature else b""
        signed = self._blocks.text(b"signature_delta", b"signature", signature) if signature else b""
        return signed + self._blocks.stop()


class _CallWriter(_ItemWriter):
    def _rows(self) -> Mapping[str, Callable[[Event], bytes]]:
        return {
            "response.output_item.added": lambda event: self._blocks.start(tool_use(event["item"], self._options)),
            "response.function_call_arguments.delta": self._arguments,
            "response.output_item.done": lambda event: self._blocks.stop(),
        }

    def _arguments(self, event: Event) -> bytes:
        return self._blocks.text(b"input_json_delta", b"partial_json", event["delta"])


class _HostedWriter(_ItemWriter):
    """Writes a finished hosted call with its result; ignores unknown item types."""

    def _rows(self) -> Mapping[str, Callable[[Event], bytes]]:
        return {"response.output_item.done": self._end}

    def _end(self, event: Event) -> bytes:
        return b"".join(map(self._block, hosted_blocks(event["item"])))

    def _block(self, block: JSONObject) -> bytes:
        if block["type"] != "server_tool_use":
            return self._blocks.whole(block)
        arguments = dumps(block["input"]).decode()
        started = self._blocks.start({**block, "input": {}})
        return started + self._blocks.text(b"input_json_delta", b"partial_json", arguments) + self._blocks.stop()


_ITEM_WRITERS: Mapping[str, type[_ItemWriter]] = {
    "message": _MessageWriter,
    "reasoning": _ReasoningWriter,
    "function_call": _CallWriter,
}


PARAGRAPH = "\n\n"  # separates reasoning parts, which share a block
_TIERS = {"default": "standard", "priority": "priority"}


def message_id(response: Response) -> str:
    return f"msg_{response['id'].partition('_')[2]}"


def _empty_message(response: Response) -> JSONObject:
    usage = {
        "input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    return {
        "id": message_id(response),
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _whole_message(ending: Ending, options: WriterOptions) -> JSONObject:
    response = ending.response
    content = [block for item in response["output"] for block in _blocks_of(item, options)]
    return {**_empty_message(response), "content": content, **_stop_fields(ending), "usage": usage_fields(response)}


def _blocks_of(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    """Yield nothing for item types without blocks."""
    make = _BLOCKS.get(item["type"])
    if make:
        yield from make(item, options)
    else:
        yield from hosted_blocks(item)


def _message_blocks(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    for part in json_list(item.get("content")):
        text = json_text(part.get("text")) or json_text(part.get("refusal"))
        citations = [citation(each) for each in part.get("annotations") or ()]
        if text or citations:
            yield {"type": "text", "text": text, **({"citations": citations} if citations else {})}


def _reasoning_blocks(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    parts = [*json_list(item.get("summary")), *json_list(item.get("content"))]
    text = PARAGRAPH.join(filter(None, (json_text(part.get("text")) for part in parts)))
    signature = item.get("encrypted_content") or ""
    if text and options.shows_thinking:
        yield {"type": "thinking", "thinking": text, "signature": signature}
    elif signature:
        yield {"type": "redacted_thinking", "data": signature}


def tool_use(item: Item, options: WriterOptions) -> JSONObject:
    """The initial block, without input."""
    name = options.names.get(item["name"], item["name"])
    return {"type": "tool_use", "id": item["call_id"], "name": name, "input": {}}


def _call_blocks(item: Item, options: WriterOptions) -> Iterator[JSONObject]:
    yield {**tool_use(item, options), "input": _tool_input(item["arguments"])}


def _tool_input(arguments: str) -> JSONObject:
    """Truncated JSON yields the complete fields, invalid JSON {}."""
    try:
        return json_object(pydantic_core.from_json(arguments, allow_partial=True))
    except ValueError:
        return {}


_BLOCKS: Mapping[str, Callable[[Item, WriterOptions], Iterator[JSONObject]]] = {
    "message": _message_blocks,
    "reasoning": _reasoning_blocks,
    "function_call": _call_blocks,
}


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


def _stop_fields(ending: Ending) -> JSONObject:
    response = ending.response
    output, refusal = response["output"], _refusal(response)
    if response["status"] == "incomplete":
        details: Any = response.get("incomplete_details") or {}
        reason = "refusal" if details.get("reason") == "content_filter" else "max_tokens"
    elif ending.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": ending.stop_sequence}
    elif any(item["type"] == "function_call" for item in output):
        reason = "tool_use"
    else:
        reason = "end_turn" if refusal is None else "refusal"
    fields: JSONObject = {"stop_reason": reason, "stop_sequence": None}
    if reason == "refusal":
        fields["stop_details"] = {"type": "refusal", "category": None, "explanation": refusal}
    return fields


def _refusal(response: Response) -> str | None:
    parts = [
        part for item in response["output"] if item["type"] == "message" for part in json_list(item.get("content"))
    ]
    texts = [json_text(part.get("refusal")) for part in parts if part["type"] == "refusal"]
    return "\n".join(texts) if texts else None


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
