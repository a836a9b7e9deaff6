"""
Anthropic Messages answers for passthrough, as steps for `upstream`; also parts of streams.

    up.say(message_stream(*text_block(0, "Hel", "lo")))
    up.say(message("Hello", usage=counts(cached=100)))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.messages_server import Block, frame, text, tool_use
from tests.support.upstream import Received, Step, Upstream, reply, sse

Fields = dict[str, Any]


class MessagesUpstream(Upstream):
    """A server of the Messages API, which counts 14 tokens in everything."""

    def answer_to(self, request: Received) -> list[Step]:
        if request.path.partition("?")[0].endswith("/count_tokens"):
            self.requests.append(request)
            return reply(b'{"input_tokens": 14}')
        return super().answer_to(request)


def counts(fresh: int = 10, output: int = 7, *, cached: int = 0, written: int = 0) -> Fields:
    """An answer's usage. Input excludes tokens read from or written to the cache."""
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def message(*texts: str, usage: Mapping[str, Any] | None = None, stop: str = "end_turn") -> list[Step]:
    """A JSON answer."""
    content = [{"type": "text", "text": text} for text in texts]
    return reply(
        json.dumps({**_message(), "content": content, "stop_reason": stop, "usage": usage or counts()}).encode()
    )


def message_start(usage: Mapping[str, Any] | None = None) -> bytes:
    """The first event, with the usage of the prompt."""
    return frame(
        {"type": "message_start", "message": {**_message(), "usage": {**(usage or counts()), "output_tokens": 1}}}
    )


def message_end(output: int = 7, stop: str = "end_turn") -> list[Step]:
    """The last two events, with the tokens of the output."""
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [
        frame({"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}),
        frame({"type": "message_stop"}),
    ]


def text_block(index: int, *pieces: str) -> list[Step]:
    """The events of a text."""
    return _block(index, text(*pieces))


def tool_block(index: int, name: str, arguments: Mapping[str, Any], *, id: str = "toolu_1") -> list[Step]:
    """The events of a call, its arguments in two pieces."""
    written = json.dumps(arguments)
    return _block(index, tool_use(id, name, written[:5], written[5:]))


def message_stream(*blocks: Step, usage: Mapping[str, Any] | None = None, stop: str = "end_turn") -> list[Step]:
    """A whole answer as a stream."""
    counted = usage or counts()
    return sse(message_start(counted), *blocks, *message_end(counted["output_tokens"], stop))


def _block(index: int, block: Block) -> list[Step]:
    begun, deltas = block
    start = frame({"type": "content_block_start", "index": index, "content_block": begun})
    pieces = [frame({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas]
    return [start, *pieces, frame({"type": "content_block_stop", "index": index})]


def _message() -> Fields:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }
