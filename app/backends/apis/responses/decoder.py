"""
Decode Responses API bodies from any implementation.

Some omit events, number items differently, or end without a terminal event. Items are therefore found by id or index,
and text without deltas is read from the item or the final response.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from app.backends.apis.api_decoder import APIDecoder, BodyDecoder, ErrorIn, flat_annotations, flat_logprobs
from app.backends.apis.chat.usage import normal_usage
from app.backends.apis.filters import filters
from app.backends.apis.responses.items import NATIVE, native_item_types
from app.backends.server.errors.classification import failure
from app.core.items.arguments import INPUT
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest
from app.core.request.reasoning import bound
from app.core.sse.decoder import END, UNPARSED, EventDecoder
from app.core.sse.repeats import PatternMatcher, RawEvent, ReadTexts, RepeatedEvent, ServerEvent
from app.core.types import JSONObject, json_object, json_objects, json_text
from app.core.types.deltas import (
    AnnotationsAdded,
    AnswerMetadata,
    Delta,
    Finished,
    FinishReason,
    ItemStarted,
    NativeItem,
    PartStarted,
    ProviderFields,
    ReasoningDelta,
    ReasoningSummaryDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from app.errors import quote

_Event = JSONObject
_Kind: TypeAlias = type[TextDelta | ReasoningDelta] | None  # None: arguments of a call

SEQUENCE_NUMBER = re.compile(rb'"sequence_number": *(\d+)')

# Others mean truncation.
_FINISH_REASONS = {"content_filter": FinishReason.CONTENT_FILTER}


@dataclass(slots=True)
class _Output:
    type: str
    number: int  # among calls and native items
    written: bool = False
    parts: int = 0
    named: bool = False
    opened: bool = False  # a custom tool's input has begun
    done: bool = False
    native: bool = False  # for a tool in the server
    item: _Event = field(default_factory=dict)


class ServerItems:
    """The answer's items, found by id or index."""

    def __init__(self, encoded: EncodedRequest, profile: Profile) -> None:
        self._native_types = native_item_types(profile.request)
        self._names = {
            (binding.fields.get("namespace"), binding.fields.get("name")): name
            for name, binding in encoded.bindings.items()
            if binding.fields.get("namespace") and binding.kind.role == "call"
        }
        self._by_id: dict[str, _Output] = {}
        self._by_index: dict[int, _Output] = {}
        self._calls = 0
        self.begun = 0
        self.last: _Output | None = None

    def find_text(self, event: RawEvent) -> tuple[str, ReadTexts] | None:
        """See `PatternMatcher`."""
        type_ = event.get("type")
        piece = _PIECES.get(type_) if isinstance(type_, str) else None
        if piece is None or event.get("logprobs"):
            return None
        return "delta", _RepeatedPiece(self, event, *piece).read

    def written(self, event: _Event, type_: str) -> _Output:
        """The item of a delta with text."""
        output, item_id = self.last, event.get("item_id")
        if output is None or output.type != type_ or item_id is None or output.item.get("id") != item_id:
            output = self.of_delta(event, type_)
        output.written = True
        return output

    def of_delta(self, event: _Event, type_: str) -> _Output:
        """Begin an item that the server has not added."""
        item_id, index = event.get("item_id"), event.get("output_index")
        output = self.of_event(event)
        if output is None and not isinstance(item_id, str) and not isinstance(index, int):
            output = self.last
        if output is None or output.type != type_:
            output = self.begin({"type": type_, "id": item_id}, index)
        return output

    def begin(self, item: _Event, index: object) -> _Output:
        output = self.last = _Output(str(item.get("type")), self._calls, item=item)
        self.begun += 1
        if isinstance(item_id := item.get("id"), str) and item_id:
            self._by_id[item_id] = output
        if isinstance(index, int):
            self._by_index[index] = output
        output.native = output.type in self._native_types
        self._calls += output.native or output.type in _ARGUMENTS
        return output

    def of_event(self, event: _Event) -> _Output | None:
        item_id, index = event.get("item_id"), event.get("output_index")
        output = self._by_id.get(item_id) if isinstance(item_id, str) else None
        return self._by_index.get(index) if output is None and isinstance(index, int) else output

    def known(self, item: _Event, index: object) -> _Output | None:
        output = self._by_id.get(str(item.get("id")))
        if output is None and isinstance(index, int):
            output = self._by_index.get(index)
        return output if output is not None and output.type == item.get("type") else None

    def call(self, output: _Output, arguments: str) -> list[Delta]:
        """Only a call's first delta has id and name."""
        call_id: object = None
        name = output.item.get("name")
        if not output.named and isinstance(name, str) and name:
            output.named = True
            name = self._names.get((str(output.item.get("namespace")), name), name)
            call_id = output.item.get("call_id") or output.item.get("id")
        else:
            name = None
        if output.type == "custom_tool_call" and not output.opened:
            output.opened = True
            arguments = _OPENING + arguments
        if not (name or arguments):
            return []
        delta_id = call_id if isinstance(call_id, str) else None
        return [ToolCallDelta(output.number, delta_id, name, [arguments] if arguments else [])]


class _RepeatedPiece:
    """Reads the texts of events that otherwise repeat an event."""

    def __init__(self, items: ServerItems, event: _Event, type_: str, kind: _Kind) -> None:
        self._items, self._event, self._type, self._kind = items, event, type_, kind
        self._output: _Output | None = None

    # Not `__call__`, which Python 3.11 calls at twice the cost.
    def read(self, texts: list[str]) -> Delta | None:
        items, output, kind = self._items, self._output, self._kind
        if output is None or output is not items.last:
            output = self._output = items.written(self._event, self._type)
        if kind:
            return kind(texts)
        if output.named:
            return ToolCallDelta(output.number, arguments=texts)
        return next(iter(items.call(output, "".join(texts))), None)


class ResponsesDecoder(APIDecoder):
    def __init__(self, encoded: EncodedRequest, profile: Profile, error_in: ErrorIn) -> None:
        self._items = ServerItems(encoded, profile)
        repeats = PatternMatcher(self._items.find_text, SEQUENCE_NUMBER)
        body = BodyDecoder(_as_events, EventDecoder(repeats, named=True, skipped=SKIPPED))
        super().__init__(body, error_in, filters(profile, encoded.body), repeats)
        self._profile = profile
        self._last_piece: tuple[_Output, list[str]] | None = None  # the last delta's item and texts
        self._complete = 0

    def _read(self, events: list[ServerEvent]) -> list[Delta]:
        self._begun = True
        self._last_piece = None
        deltas: list[Delta] = []
        for event in events:
            if event is UNPARSED:
                continue
            if self.done or self.failure:
                break
            if event is END:  # not a reliable end
                self.done = self.finished
                continue
            if isinstance(event, RepeatedEvent):
                self._last_piece = None
                if delta := event.read(event.texts):
                    deltas.append(delta)
                continue
            type_ = event.get("type")
            if piece := _PIECES.get(type_) if isinstance(type_, str) else None:
                deltas += self._piece(event, *piece)
                continue
            self._last_piece = None
            if read := _EVENTS.get(type_) if isinstance(type_, str) else None:
                deltas += read(self, event)
            elif not isinstance(type_, str) or event.get("error"):
                self.failure = self._error_in(event)
            elif (output := self._items.of_event(event)) and output.native and not output.done:
                deltas.append(NativeItem(output.number, event=event))
            elif type_ not in _REPEATED:
                self._warn(f"Events of unknown type {quote(type_)} from the backend were ignored.")
        return deltas

    def _piece(self, event: _Event, type_: str, kind: _Kind) -> list[Delta]:
        """Consecutive deltas for an item are merged."""
        text, logprobs = event.get("delta"), event.get("logprobs")
        if not isinstance(text, str) or not text:
            return []
        output = self._items.written(event, type_)
        if logprobs and kind is TextDelta:
            self._last_piece = None
            return [TextDelta([text], flat_logprobs(logprobs))]
        if kind is None and not output.named:
            self._last_piece = None
            return self._items.call(output, text)
        if self._last_piece and self._last_piece[0] is output:
            self._last_piece[1].append(text)
            return []
        texts = [text]
        self._last_piece = output, texts
        return [kind(texts) if kind else ToolCallDelta(output.number, arguments=texts)]

    def _delta(self, event: _Event, type_: str) -> str:
        delta = event.get("delta")
        if not isinstance(delta, str) or not delta:
            return ""
        self._items.of_delta(event, type_).written = True
        return delta

    def added(self, event: _Event) -> list[Delta]:
        item = json_object(event.get("item"))
        output = self._items.begin(item, event.get("output_index"))
        return self._started(output)

    def _started(self, output: _Output) -> list[Delta]:
        item, type_ = output.item, output.type
        if type_ == "message":
            phase = item.get("phase")
            return [ItemStarted("message", phase if isinstance(phase, str) else None)]
        if type_ == "reasoning":
            return [ItemStarted("reasoning")]
        if type_ in _ARGUMENTS:
            return self._items.call(output, "")
        if output.native:
            return [NativeItem(output.number, item)]
        self._warn(f"Items of unknown type {quote(type_)} from the backend were ignored.")
        return []

    def item_done(self, event: _Event) -> list[Delta]:
        """Add content that deltas did not contain."""
        item, index = json_object(event.get("item")), event.get("output_index")
        type_ = str(item.get("type"))
        deltas: list[Delta] = []
        output = self._items.known(item, index)
        if output is None:
            output = self._items.begin(item, index)
            deltas += self._started(output)
        if output.done:
            return []
        output.item = {**output.item, **item}
        output.done = True
        self._complete += 1
        if output.native:
            upstream = bound(self._profile, id=output.item["id"]) if isinstance(output.item.get("id"), str) else {}
            return [*deltas, NativeItem(output.number, output.item, done=True, provider_fields=upstream)]
        if type_ in _ARGUMENTS:
            return deltas + self._call_done(output)
        if type_ == "message" and not output.written:
            deltas += _message_parts(item)
        elif type_ == "reasoning":
            deltas += [] if output.written else _reasoning_parts(item)
            deltas += self._replayed(item)
        return deltas

    def _call_done(self, output: _Output) -> list[Delta]:
        written = output.item.get(_ARGUMENTS[output.type])
        text = written if isinstance(written, str) and not output.written else ""
        is_whole = output.item.get("status") != "incomplete"
        if output.type == "custom_tool_call":
            return self._items.call(output, _escaped(text) + (_CLOSING if is_whole else ""))
        return self._items.call(output, text or ("{}" if is_whole and not output.written else ""))

    def _replayed(self, item: _Event) -> list[Delta]:
        """A reasoning item to send back, if the server can read it."""
        if not item.get("encrypted_content") and not item.get("content"):
            return []  # without content, the server would look up the id
        kept = {name: value for name, value in item.items() if name != "status" and value is not None}
        kept.setdefault("summary", [])
        return [ProviderFields(bound(self._profile, **{NATIVE: kept}))]

    def part_added(self, event: _Event) -> list[Delta]:
        """The first part begins with its item."""
        output = self._items.of_event(event)
        if output is None:
            return []
        output.parts += 1
        return [PartStarted()] if output.parts > 1 else []

    def refusal(self, event: _Event) -> list[Delta]:
        delta = self._delta(event, "message")
        return [RefusalDelta(delta)] if delta else []

    def summary(self, event: _Event) -> list[Delta]:
        delta = self._delta(event, "reasoning")
        return [ReasoningSummaryDelta(delta)] if delta else []

    def annotation(self, event: _Event) -> list[Delta]:
        annotations = [*flat_annotations([event.get("annotation")])]
        return [AnnotationsAdded(annotations)] if annotations else []

    def custom_input(self, event: _Event) -> list[Delta]:
        delta = self._delta(event, "custom_tool_call")
        return self._items.call(self._items.of_delta(event, "custom_tool_call"), _escaped(delta)) if delta else []

    def ended(self, event: _Event) -> list[Delta]:
        response = json_object(event.get("response"))
        deltas: list[Delta] = []
        unknown = not self._complete  # otherwise items may be repeated with other ids and indexes
        if unknown or self._complete < self._items.begun:
            for index, item in enumerate(json_objects(response.get("output"))):
                if unknown or self._items.known(item, index):
                    deltas += self.item_done({"item": item, "output_index": index})
        status = response.get("status") or str(event.get("type")).removeprefix("response.")
        if usage := normal_usage(json_object(response.get("usage"))):
            deltas.append(UsageReported(usage))
        if status in ("failed", "cancelled"):
            error = response.get("error") or {"message": "The backend's response failed.", "code": "server_error"}
            self.failure = self._error_in({"error": error}) or failure("failure")
            return deltas
        answer_id, model = json_text(response.get("id")), json_text(response.get("model"))
        deltas.append(AnswerMetadata(answer_id or None, model or None, json_text(response.get("service_tier")) or None))
        reason = FinishReason.STOP
        if status == "incomplete":
            details = json_object(response.get("incomplete_details"))
            reason = _FINISH_REASONS.get(str(details.get("reason")), FinishReason.LENGTH)
        deltas.append(Finished(reason))
        self.finished = self.done = True
        return deltas

    def done_as(self, event: _Event) -> list[Delta]:
        """`response.done` is some gateways' only terminal event."""
        response = json_object(event.get("response"))
        status = response.get("status")
        known = status if status in ("completed", "incomplete", "cancelled") else "failed"
        return self.ended({"response": {**response, "status": known}})

    def error(self, event: _Event) -> list[Delta]:
        nested = event.get("error")
        fields = nested if nested else {name: event.get(name) for name in ("code", "message", "param")}
        self.failure = self._error_in({"error": fields}) or failure("failure")
        return []


_PIECES: dict[str, tuple[str, _Kind]] = {
    "response.output_text.delta": ("message", TextDelta),
    "response.reasoning_text.delta": ("reasoning", ReasoningDelta),
    "response.reasoning.delta": ("reasoning", ReasoningDelta),
    "response.function_call_arguments.delta": ("function_call", None),
}

_Read = Callable[[ResponsesDecoder, _Event], list[Delta]]

_EVENTS: dict[str, _Read] = {
    "response.output_item.added": ResponsesDecoder.added,
    "response.output_item.done": ResponsesDecoder.item_done,
    "response.content_part.added": ResponsesDecoder.part_added,
    "response.reasoning_summary_part.added": ResponsesDecoder.part_added,
    "response.refusal.delta": ResponsesDecoder.refusal,
    "response.reasoning_summary_text.delta": ResponsesDecoder.summary,
    "response.output_text.annotation.added": ResponsesDecoder.annotation,
    "response.custom_tool_call_input.delta": ResponsesDecoder.custom_input,
    "response.completed": ResponsesDecoder.ended,
    "response.incomplete": ResponsesDecoder.ended,
    "response.failed": ResponsesDecoder.ended,
    "response.cancelled": ResponsesDecoder.ended,
    "response.done": ResponsesDecoder.done_as,
    "error": ResponsesDecoder.error,
}

# Without new information.
_REPEATED = frozenset(
    {
        "keepalive",
        "ping",
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.content_part.done",
        "response.output_text.done",
        "response.refusal.done",
        "response.reasoning.done",
        "response.reasoning_text.done",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.done",
    }
)

# The most frequent of them, as their first bytes: most repeat a text or the whole response.
SKIPPED = tuple(
    b'event: %b\ndata: {"type":%b"%b"' % (name, space, name)
    for name in (
        b"response.created",
        b"response.in_progress",
        b"response.content_part.done",
        b"response.output_text.done",
        b"response.reasoning_text.done",
        b"response.function_call_arguments.done",
    )
    for space in (b"", b" ")
)

# Argument fields of calls.
_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}

# A custom tool's input is text; its deltas contain a function argument, as in all other APIs.
_OPENING, _CLOSING = f'{{"{INPUT}":"', '"}'


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_events(values: list[JSONObject]) -> list[RawEvent]:
    response = next((value for value in values if isinstance(value.get("output"), list)), None)
    if response is None:
        return [*values]
    return [{"type": f"response.{response.get('status') or 'completed'}", "response": response}]


def _message_parts(item: _Event) -> list[Delta]:
    deltas: list[Delta] = []
    for number, part in enumerate(json_objects(item.get("content"))):
        deltas += [PartStarted()] if number else []
        if text := json_text(part.get("text")):
            deltas.append(TextDelta([text], flat_logprobs(part.get("logprobs")) or None))
        elif refusal := json_text(part.get("refusal")):
            deltas.append(RefusalDelta(refusal))
        if annotations := [*flat_annotations(part.get("annotations"))]:
            deltas.append(AnnotationsAdded(annotations))
    return deltas


def _reasoning_parts(item: _Event) -> list[Delta]:
    deltas: list[Delta] = []
    for name in ("summary", "content"):
        for number, part in enumerate(json_objects(item.get(name))):
            if text := json_text(part.get("text")):
                deltas += [PartStarted()] if number else []
                deltas.append(ReasoningSummaryDelta(text) if name == "summary" else ReasoningDelta([text]))
    return deltas
