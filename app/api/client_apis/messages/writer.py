"""
Writes response events as a Messages stream.

    message_start, content_block_start, content_block_delta..., content_block_stop, ..., message_delta, message_stop

Only one block is open at a time, but response items can overlap, for example parallel calls. A later item's events are
queued until earlier items are done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from app.api.client_apis import Ending
from app.api.client_apis.messages.hosted import hosted_blocks
from app.api.client_apis.messages.message import (
    PARAGRAPH,
    citation,
    empty_message,
    stop_fields,
    tool_use,
    usage_fields,
    whole_message,
)
from app.api.client_apis.messages.reader import WriterOptions
from app.core.bounded_json import dumps
from app.core.types import JSONObject
from app.core.types.request import Event

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
            return _frame({"type": "message_start", "message": empty_message(event["response"])}) + PING
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
        delta = {"type": "message_delta", "delta": stop_fields(ending), "usage": usage_fields(ending.response)}
        return _frame(delta) + _frame({"type": "message_stop"})

    def document(self, ending: Ending) -> JSONObject:
        return whole_message(ending, self._options)


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
