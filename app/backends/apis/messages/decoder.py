"""Decode Messages bodies: content blocks that start, grow by deltas, and stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from app.backends.apis.api_decoder import APIDecoder, BodyDecoder, ErrorIn, flat_annotations
from app.backends.apis.chat.usage import normal_usage
from app.backends.apis.filters import filters
from app.backends.apis.messages.conversation import THINKING
from app.backends.server.errors.classification import failure
from app.core.bounded_json import dumps
from app.core.items import as_object
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.request.reasoning import bound
from app.core.sse.decoder import END, EventDecoder
from app.core.sse.repeats import PatternMatcher, RawEvent, ReadTexts, RepeatedEvent, ServerEvent
from app.core.types import JSONMapping, JSONObject, json_list, json_object, json_text
from app.core.types.deltas import (
    AnnotationsAdded,
    AnswerMetadata,
    Delta,
    Finished,
    FinishReason,
    ItemStarted,
    ProviderFields,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from app.core.usage import reported_count, token_count
from app.errors import quote

# Others mean a complete message.
_FINISH_REASONS = {
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.LENGTH,  # after too many pauses
    "tool_use": FinishReason.TOOL_CALLS,
}
_MAX_PAUSES = 20  # per message
_DETAILS = "output_tokens_details"
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_REFUSED = "The model refused to answer."
_TIERS = {"standard": "default", "priority": "priority"}
_TEXTS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}  # by block type
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class MessagesDecoder(APIDecoder):
    def __init__(self, encoded: EncodedRequest, profile: Profile, error_in: ErrorIn) -> None:
        repeats = PatternMatcher(self.find_text)
        body = BodyDecoder(_as_events, EventDecoder(repeats, named=True))
        super().__init__(body, error_in, filters(profile, encoded.body), repeats)
        self._request_body = encoded.body
        self._profile = profile
        self._pauses = 0
        self._earlier_usage: JSONMapping = {}  # usage before the last pause
        self._usage: JSONObject = {}
        self._message: JSONMapping = {}  # the first event's
        self._blocks: dict[int, JSONObject] = {}  # open, by index
        self.content: list[JSONObject] = []  # complete blocks
        self._calls = 0
        self._length = 0  # characters in complete text blocks since the last other block

    def continuation(self) -> JSONObject:
        """The same request plus the message so far."""
        messages = [*self._request_body["messages"], {"role": "assistant", "content": self.content}]
        return {**self._request_body, "messages": messages}

    def resume(self) -> None:
        super().resume()
        self._repeats = PatternMatcher(self.find_text)
        self._body = BodyDecoder(_as_events, EventDecoder(self._repeats, named=True))
        self._pauses += 1
        self._earlier_usage, self._usage = self._total(), {}

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.done or self.failure:
                break
            if isinstance(event, RepeatedEvent):
                if delta := event.read(event.texts):
                    deltas.append(delta)
            elif event is END:  # sent by other implementations
                self.done = self.finished
            elif event.get("type") == "error" or event.get("error"):
                self.failure = self._error_in(event) or failure("failure")
            elif read := _READ.get(str(event.get("type"))):
                self._begun = self._begun or event["type"] != "ping"
                deltas += read(self, event)
                self.done = event["type"] == "message_stop"
            else:
                self._warn(f"Events of unknown type {quote(event.get('type'))} from the backend were ignored.")
        return deltas

    def _total(self) -> JSONObject:
        earlier, usage = self._earlier_usage, self._usage
        names = [name for name in _COUNTS if name in earlier or name in usage]
        counts = {name: token_count(earlier.get(name)) + token_count(usage.get(name)) for name in names}
        details = (json_object(each.get(_DETAILS)) for each in (earlier, usage))
        reported = (reported_count(each.get("thinking_tokens")) for each in details)
        thinking = [tokens for tokens in reported if tokens is not None]
        return {**usage, **counts, **({_DETAILS: {"thinking_tokens": sum(thinking)}} if thinking else {})}

    def start(self, event: JSONMapping) -> list[Delta]:
        self._message = json_object(event.get("message"))
        self._count(json_object(self._message.get("usage")))
        return []

    def _count(self, usage: JSONMapping) -> None:
        self._usage |= {name: value for name, value in usage.items() if value is not None}

    def start_block(self, event: Mapping[str, object]) -> list[Delta]:
        """Begin a block; some servers send it with content."""
        block = self._blocks[_index(event)] = {**json_object(event.get("content_block")), "pieces": []}
        match block.get("type"):
            case "text":
                block["start"] = self._length
                return self._piece(block, "text", block.get("text"))
            case "tool_use":
                self._length = 0
                block["call"], self._calls = self._calls, self._calls + 1
                return [ToolCallDelta(block["call"], json_text(block.get("id")), json_text(block.get("name")))]
            case "thinking":
                self._length = 0
                return [ItemStarted("reasoning"), *self._piece(block, "thinking", block.get("thinking"))]
            case "redacted_thinking":
                self._length = 0
                return [ItemStarted("reasoning")]
        self._warn(f"Content of unknown type {quote(block.get('type'))} from the backend was ignored.")
        return []

    def _piece(self, block: JSONObject, name: str, text: object) -> list[Delta]:
        delta = self._written(block, name, [text]) if isinstance(text, str) and text else None
        return [delta] if delta else []

    def delta(self, event: JSONMapping) -> list[Delta]:
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

    def find_text(self, event: RawEvent) -> tuple[str, ReadTexts] | None:
        """See `PatternMatcher`."""
        delta, index = json_object(event.get("delta")), _index(event)
        name = _DELTAS.get(str(delta.get("type")))
        if event.get("type") != "content_block_delta" or name is None or not json_text(delta.get(name)):
            return None
        block = self._blocks.get(index)
        if block is None or _TEXTS.get(str(block.get("type"))) != name:
            return None
        return name, partial(self._texts, index, block, name)

    def _texts(self, index: int, block: JSONObject, name: str, texts: list[str]) -> Delta | None:
        return self._written(block, name, texts) if self._blocks.get(index) is block else None

    def _written(self, block: JSONObject, name: str, texts: list[str]) -> Delta | None:
        """None if the block's type cannot contain the texts."""
        match block.get("type"), name:
            case "text", "text":
                block["pieces"] += texts
                return TextDelta(texts)
            case "thinking", "thinking":
                block["pieces"] += texts
                return ReasoningDelta(texts)
            case "server_tool_use", "partial_json":
                block["pieces"] += texts
            case "tool_use", "partial_json":
                block["pieces"] += texts
                return ToolCallDelta(block["call"], arguments=texts)
        return None

    def stop_block(self, event: JSONMapping) -> list[Delta]:
        block = self._blocks.pop(_index(event), None)
        if block is None:
            return []
        self.content.append(_complete(block))
        match block.get("type"):
            case "tool_use" if not block["pieces"]:
                arguments = dumps(json_object(block.get("input"))).decode()
                return [ToolCallDelta(block["call"], arguments=[arguments])]
            case "thinking":
                return self._signed("signature", block)
            case "redacted_thinking":
                return self._signed("data", block)
            case "text":
                self._length += sum(map(len, block["pieces"]))
                citations = json_list(self.content[-1].get("citations"))
                cited = (self._annotation(block, json_object(citation)) for citation in citations)
                annotations = [*flat_annotations([*filter(None, cited)])]
                return [AnnotationsAdded(annotations)] if annotations else []
        return []

    def _signed(self, name: str, block: JSONMapping) -> list[Delta]:
        """The server rejects unsigned blocks; local servers sign with an empty string."""
        if not (block.get("signed") or json_text(block.get(name))):
            return []
        return [ProviderFields(bound(self._profile, **{THINKING: self.content[-1]}))]

    def _annotation(self, block: JSONMapping, citation: JSONMapping) -> JSONObject | None:
        """Document citations have no counterpart."""
        url = citation.get("url") or citation.get("source")
        if not isinstance(url, str) or not url.startswith(("https://", "http://")):
            return None
        span = {"start_index": block["start"], "end_index": self._length}
        return {"type": "url_citation", "url": url, "title": citation.get("title"), **span}

    def finish(self, event: JSONMapping) -> list[Delta]:
        delta, reason = json_object(event.get("delta")), json_object(event.get("delta")).get("stop_reason")
        self._count(json_object(event.get("usage")))
        deltas: list[Delta] = []
        if usage := normal_usage(self._total() if self._earlier_usage else self._usage):
            deltas.append(UsageReported(usage))
        answer_id, model = (json_text(self._message.get(name)) or None for name in ("id", "model"))
        deltas.append(AnswerMetadata(answer_id, model, _TIERS.get(str(self._usage.get("service_tier")))))
        self.paused = reason == "pause_turn" and self._pauses < _MAX_PAUSES
        if reason is None or self.paused:
            return deltas
        self.finished = True
        if reason == "refusal":
            refusal = json_object(delta.get("stop_details")).get("explanation")
            deltas.append(RefusalDelta(json_text(refusal) or _REFUSED))
        stop_sequence = json_text(delta.get("stop_sequence")) or None
        return [*deltas, Finished(_FINISH_REASONS.get(str(reason), FinishReason.STOP), stop_sequence)]


_READ: dict[str, Callable[[MessagesDecoder, JSONMapping], list[Delta]]] = {
    "message_start": MessagesDecoder.start,
    "content_block_start": MessagesDecoder.start_block,
    "content_block_delta": MessagesDecoder.delta,
    "content_block_stop": MessagesDecoder.stop_block,
    "message_delta": MessagesDecoder.finish,
    "message_stop": lambda decoder, event: [],
    "ping": lambda decoder, event: [],
}


def _as_events(values: list[JSONObject]) -> list[RawEvent]:
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
    written = "".join(block["pieces"])
    kept = {name: value for name, value in block.items() if name not in _DECODER_FIELDS}
    match block.get("type"):
        case "text":
            citations = [*json_list(block.get("citations")), *block.get("cited", ())]
            return {**kept, "text": written} | ({"citations": citations} if citations else {})
        case "thinking":
            return {**kept, "thinking": written}
        case "tool_use" | "server_tool_use" if written:
            return {**kept, "input": as_object(written)}
    return kept


_DECODER_FIELDS = frozenset({"pieces", "start", "call", "cited", "signed"})  # not the server's


def _index(event: JSONMapping) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else -1
