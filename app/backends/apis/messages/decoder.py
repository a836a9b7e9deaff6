"""
Decodes the body of an answer of Anthropic's Messages API into chunks: see `AnswerDecoder`.

A message is a list of content blocks, each of which is begun, grows by deltas, and is stopped. Blocks and events of
unknown types are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from app.backends.apis.api_decoder import APIDecoder
from app.backends.apis.body_decoder import BodyDecoder
from app.backends.apis.messages.conversation import THINKING
from app.backends.server.errors.classification import failure
from app.core.bounded_json import dumps
from app.core.items import as_object
from app.core.json_values import json_list, json_object, json_text
from app.core.profile import Profile
from app.core.request.question import EncodedQuestion
from app.core.request.reasoning import bound
from app.core.sse.repeats import RepeatDecoder
from app.core.stream.answer import ErrorIn
from app.core.types import JSONMapping, JSONObject
from app.core.types.chunk import (
    DONE,
    REASONING_CONTENT,
    Chunk,
    ChunkDelta,
    ChunkOrRun,
    ChunkRun,
    RawChunk,
    RawOrRun,
    StartedItem,
)
from app.core.usage import chunk_usage, is_token_count, reported_count, token_count
from app.errors import label

# The finish reason of Chat Completions for each stop reason; any other means that the model was done.
STOP_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",  # once too often
    "tool_use": "tool_calls",
}
_MOST_PAUSES = 20  # of one message
_DETAILS = "output_tokens_details"
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_REASONING: StartedItem = {"type": "reasoning"}
_REFUSED = "The model refused to answer."
_TIERS = {"standard": "default", "priority": "priority"}
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
_FIELDS = {"text": "content", "thinking": REASONING_CONTENT, "partial_json": "arguments"}  # of chunks


class MessagesDecoder(APIDecoder):
    """Decodes the bytes of one answer."""

    def __init__(self, asked: EncodedQuestion, profile: Profile, error_in: ErrorIn) -> None:
        super().__init__(_body_decoder(), error_in)
        self._asked = asked.body
        self._message = MessageReader(profile)
        self.warnings = self._message.warnings

    @property
    def continuation(self) -> JSONObject | None:
        """The request that has the server go on with what it has paused: the same, with the message so far."""
        if not (self.done and self._message.paused):
            return None
        messages = [*self._asked["messages"], {"role": "assistant", "content": self._message.content}]
        return {**self._asked, "messages": messages}

    def resume(self) -> None:
        super().resume()
        self._body = _body_decoder()
        self._message.resume()

    def _has_begun(self) -> bool:
        return self._message.begun

    def _chunks(self, events: list[RawOrRun]) -> list[ChunkOrRun]:
        """Return the chunks of events, up to an error or the end of the message."""
        chunks: list[ChunkOrRun] = []
        for event in events:
            if self.done or self.failure:
                break
            if isinstance(event, ChunkRun):
                if run := self._message.read_run(event):
                    chunks.append(run)
            elif event is DONE:  # which copies of the API send
                self.done = self.finished
            elif event.get("type") == "error" or event.get("error"):
                self.failure = self._error_in(event) or failure("failure")
            else:
                chunks += self._message.read(event)
                self.finished = self._message.finished
                self.done = event.get("type") == "message_stop"
        return [*chunks, DONE] if self.done and not self._message.paused else chunks


def _body_decoder() -> BodyDecoder:
    return BodyDecoder(_whole, RepeatDecoder(_text_field), named=True)


def _text_field(event: RawChunk) -> str | None:
    """Return the name of the text that is all that a delta has; None for other events."""
    delta = json_object(event.get("delta"))
    name = _DELTAS.get(str(delta.get("type")))
    return name if name and event.get("type") == "content_block_delta" and json_text(delta.get(name)) else None


class MessageReader:
    """Reads the events of one message into chunks."""

    def __init__(self, profile: Profile) -> None:
        self.begun = False  # whether there was an event of the message
        self.warnings: list[str] = []
        self.finished = False
        self.paused = False  # whether the server wants to be asked again, with the content so far
        self.content: list[JSONObject] = []  # the complete blocks, as they are sent back
        self._profile = profile
        self._pauses = 0
        self._before: JSONMapping = {}  # the usage before the last pause
        self._usage: JSONObject = {}
        self._blocks: dict[int, JSONObject] = {}  # those that are open, by index
        self._calls = 0  # so many were begun
        self._length = 0  # characters of the complete blocks of text since the last block that is no text
        self._like: RawChunk | None = None  # what the last run was like, which block it belongs to, and its chunk
        self._growing: JSONObject = {}
        self._made: Chunk | None = None

    def read(self, event: JSONMapping) -> list[Chunk]:
        """Return the chunks of an event."""
        read = _READ.get(str(event.get("type")))
        if read is None:
            self._warn(f"Events of type {label(event.get('type'))} of the backend are not known and were left out.")
            return []
        self.begun = self.begun or event["type"] != "ping"
        return read(self, event)

    def resume(self) -> None:
        """Prepare for the rest of a message that was paused."""
        self.paused = False
        self._pauses += 1
        self._before, self._usage = self._total(), {}

    def _total(self) -> JSONObject:
        """Return the usage so far, field by field the sum of that before a pause and that after it."""
        names = {*self._before, *self._usage}
        counts = {name: token_count(self._before.get(name)) + token_count(self._usage.get(name)) for name in names}
        reported = [_thinking_tokens(usage) for usage in (self._before, self._usage)]
        thinking = [tokens for tokens in reported if tokens is not None]
        return {
            **self._usage,
            **{name: counts[name] for name in _COUNTS if name in counts},
            **({_DETAILS: {"thinking_tokens": sum(thinking)}} if thinking else {}),
        }

    def start(self, event: JSONMapping) -> list[Chunk]:
        """Keep the usage of the prompt, which is passed on with the usage of the output."""
        self._count(json_object(json_object(event.get("message")).get("usage")))
        return []

    def _count(self, usage: JSONMapping) -> None:
        self._usage |= {name: value for name, value in usage.items() if value is not None}

    def start_block(self, event: Mapping[str, object]) -> list[Chunk]:
        """Begin a block; some servers give it with content."""
        block = self._blocks[_index(event)] = {**json_object(event.get("content_block")), "pieces": []}
        match block.get("type"):
            case "text":
                block["start"] = self._length
                return self._piece(block, "text", block.get("text"))
            case "tool_use":
                self._length = 0
                block["call"], self._calls = self._calls, self._calls + 1
                name: JSONObject = {"name": json_text(block.get("name"))}
                call = {"index": block["call"], "id": json_text(block.get("id")), "function": name}
                return [_chunk(tool_calls=[call])]
            case "thinking":
                self._length = 0
                return [_chunk(starts_item=_REASONING), *self._piece(block, "thinking", block.get("thinking"))]
            case "redacted_thinking":
                self._length = 0
                return [_chunk(starts_item=_REASONING)]
        self._warn(f"Content of type {label(block.get('type'))} of the backend is not known and was left out.")
        return []

    def _piece(self, block: JSONObject, name: str, text: object) -> list[Chunk]:
        chunk = self._written(block, name, (text,)) if isinstance(text, str) and text else None
        return [chunk] if chunk else []

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)

    def delta(self, event: JSONMapping) -> list[Chunk]:
        """Return what a delta adds to its block."""
        delta, block = json_object(event.get("delta")), self._blocks.get(_index(event))
        if block is None:
            return []
        if name := _DELTAS.get(str(delta.get("type"))):
            return self._piece(block, name, delta.get(name))
        if delta.get("type") == "signature_delta":
            block["signature"] = json_text(block.get("signature")) + json_text(delta.get("signature"))
            block["signed"] = True
        elif delta.get("type") == "citations_delta":
            block.setdefault("cited", []).append(json_object(delta.get("citation")))
        return []

    def read_run(self, run: ChunkRun) -> ChunkRun | None:
        """Return deltas that differ only in their text as chunks; None for a block that cannot have them."""
        if run.like is not self._like:
            self._like, self._growing = run.like, self._blocks.get(_index(run.like), {})
            self._made = self._written(self._growing, run.field, ("",)) if self._growing else None
        if self._made is None:
            return None
        self._growing["pieces"] += run.texts
        return ChunkRun(cast(RawChunk, self._made), _FIELDS[run.field], run.texts)

    def _written(self, block: JSONObject, name: str, texts: Sequence[str]) -> Chunk | None:
        """Note texts of a block, and return the chunk of the first; None for texts that the block cannot have."""
        match block.get("type"), name:
            case "text", "text":
                block["pieces"] += texts
                return _chunk(content=texts[0])
            case "thinking", "thinking":
                block["pieces"] += texts
                return _chunk(reasoning_content=texts[0])
            case "server_tool_use", "partial_json":
                block["pieces"] += texts
            case "tool_use", "partial_json":
                block["pieces"] += texts
                return _chunk(tool_calls=[{"index": block["call"], "function": {"arguments": texts[0]}}])
        return None

    def stop_block(self, event: JSONMapping) -> list[Chunk]:
        """Return what is known at the end of a block: its signature, its citations, or that it has no arguments."""
        block = self._blocks.pop(_index(event), None)
        if block is None:
            return []
        self._like = None
        self.content.append(_complete(block))
        match block.get("type"):
            case "tool_use" if not block["pieces"]:
                arguments = dumps(json_object(block.get("input"))).decode()
                return [_chunk(tool_calls=[{"index": block["call"], "function": {"arguments": arguments}}])]
            case "thinking":
                return self._signed("signature", block)
            case "redacted_thinking":
                return self._signed("data", block)
            case "text":
                self._length += sum(map(len, block["pieces"]))
                citations = json_list(self.content[-1].get("citations"))
                annotations = [*filter(None, (self._annotation(block, json_object(one)) for one in citations))]
                return [_chunk(annotations=annotations)] if annotations else []
        return []

    def _signed(self, name: str, block: JSONMapping) -> list[Chunk]:
        """
        Return a block to be sent back to this server; one without its signature would be refused.

        Local servers sign with an empty string.
        """
        if not (block.get("signed") or json_text(block.get(name))):
            return []
        return [_chunk(reasoning_upstream=bound(self._profile, **{THINKING: self.content[-1]}))]

    def _annotation(self, block: JSONMapping, citation: JSONMapping) -> JSONObject | None:
        """Return the citation of a web page; those of documents have no counterpart."""
        url = citation.get("url") or citation.get("source")
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            return None
        place = {"start_index": block["start"], "end_index": self._length}
        return {"type": "url_citation", "url": url, "title": citation.get("title"), **place}

    def finish(self, event: JSONMapping) -> list[Chunk]:
        """Return the stop reason and the usage."""
        delta, reason = json_object(event.get("delta")), json_object(event.get("delta")).get("stop_reason")
        self._count(json_object(event.get("usage")))
        chunk: Chunk = {}
        if usage := message_usage(self._total() if self._before else self._usage):
            chunk["usage"] = usage
        if tier := _TIERS.get(str(self._usage.get("service_tier"))):
            chunk["service_tier"] = tier
        self.paused = reason == "pause_turn" and self._pauses < _MOST_PAUSES
        if reason is None or self.paused:
            return [chunk] if chunk else []
        self.finished = True
        refusal = json_object(delta.get("stop_details")).get("explanation") if reason == "refusal" else None
        added: ChunkDelta = {"refusal": json_text(refusal) or _REFUSED} if reason == "refusal" else {}
        chunk["choices"] = [{"delta": added, "finish_reason": STOP_REASONS.get(str(reason), "stop")}]
        return [chunk]


_READ: dict[str, Callable[[MessageReader, JSONMapping], list[Chunk]]] = {
    "message_start": MessageReader.start,
    "content_block_start": MessageReader.start_block,
    "content_block_delta": MessageReader.delta,
    "content_block_stop": MessageReader.stop_block,
    "message_delta": MessageReader.finish,
    "message_stop": lambda reader, event: [],
    "ping": lambda reader, event: [],
}


def _whole(values: list[JSONObject]) -> list[RawOrRun]:
    """Return the events of a stream for a message that came at once; for anything else, that alone."""
    return [event for value in values for event in _events_of(value)]


def _events_of(message: JSONObject) -> list[JSONObject]:
    content = message.get("content")
    if message.get("error") or not isinstance(content, list):
        return [message]
    events: list[dict[str, object]] = [{"type": "message_start", "message": {**message, "content": []}}]
    for index, block in enumerate(content):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        if json_object(block).get("type") == "thinking" and "signature" in block:
            events.append({"type": "content_block_delta", "index": index, "delta": {"type": "signature_delta"}})
        events.append({"type": "content_block_stop", "index": index})
    ending = {name: message.get(name) for name in ("stop_reason", "stop_details")}
    return [*events, {"type": "message_delta", "delta": ending, "usage": {}}, {"type": "message_stop"}]


def _complete(block: JSONMapping) -> JSONObject:
    """Return a block as it is sent back, with what its deltas added."""
    written = "".join(block["pieces"])
    kept = {name: value for name, value in block.items() if name not in _OWN}
    match block.get("type"):
        case "text":
            citations = [*json_list(block.get("citations")), *block.get("cited", ())]
            return {**kept, "text": written} | ({"citations": citations} if citations else {})
        case "thinking":
            return {**kept, "thinking": written}
        case "tool_use" | "server_tool_use" if written:
            return {**kept, "input": as_object(written)}
    return kept


_OWN = frozenset({"pieces", "start", "call", "cited", "signed"})  # fields of open blocks that are not the server's


def message_usage(usage: JSONMapping) -> JSONObject | None:
    """Return the usage in OpenAI's form, in which cached tokens are part of the prompt; None without counts."""
    if not any(is_token_count(usage.get(name)) for name in ("input_tokens", "output_tokens")):
        return None
    cached = token_count(usage.get("cache_read_input_tokens"))
    written = token_count(usage.get("cache_creation_input_tokens"))
    prompt = token_count(usage.get("input_tokens")) + cached + written
    output = token_count(usage.get("output_tokens"))
    return chunk_usage(prompt, output, cached, written, _thinking_tokens(usage))


def _thinking_tokens(usage: JSONMapping) -> int | None:
    """Return the reported number of thinking tokens; None without a report."""
    return reported_count(json_object(usage.get(_DETAILS)).get("thinking_tokens"))


def _chunk(**delta: object) -> Chunk:
    return {"choices": [{"delta": cast(ChunkDelta, delta)}]}


def _index(event: JSONMapping) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else -1
