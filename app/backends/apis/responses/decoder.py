"""
Decodes the answers of servers of the Responses API into chunks: see `AnswerDecoder`.

Copies of OpenAI's API leave out events, number items as they like, and end without a terminal event. So an item counts
by its id or else by its index, and what the deltas did not say is taken from the item, or from the final response.
Ids, indexes and sequence numbers are not passed on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from app.backends.apis.api_decoder import APIDecoder
from app.backends.apis.body_decoder import BodyDecoder
from app.backends.apis.chat.usage import normal_usage
from app.backends.apis.responses.items import NATIVE, passed_items
from app.backends.server.errors.classification import failure
from app.core.items.arguments import INPUT
from app.core.json_values import json_object, json_objects
from app.core.profile import Profile
from app.core.request.question import EncodedQuestion
from app.core.request.reasoning import bound
from app.core.stream.answer import ErrorIn
from app.core.types import JSONObject
from app.core.types.chunk import (
    DONE,
    REASONING_CONTENT,
    CallFragment,
    Chunk,
    ChunkDelta,
    ChunkOrRun,
    ChunkRun,
    PassedItem,
    RawOrRun,
)
from app.errors import label

_Event = JSONObject

# The finish reasons for the reasons of incomplete responses; any other means that the answer was cut short, too.
_REASONS = {"content_filter": "content_filter"}


@dataclass(slots=True)
class _Output:
    """An item that the server is writing."""

    type: str
    number: int  # among the calls and the items of the server's tools
    written: bool = False  # whether there was a delta
    parts: int = 0  # that were begun
    named: bool = False  # whether the name of the call is known
    opened: bool = False  # whether the input of a custom tool has begun
    done: bool = False
    passed: bool = False  # whether it is of a tool that only the server has
    item: _Event = field(default_factory=dict)


class ResponsesDecoder(APIDecoder):
    """Decodes the bytes of one answer."""

    def __init__(self, asked: EncodedQuestion, profile: Profile, error_in: ErrorIn) -> None:
        super().__init__(BodyDecoder(_whole, named=True), error_in)
        self._profile = profile
        self._passed = passed_items(profile.request)
        self._has_events = False
        self._by_id: dict[str, _Output] = {}
        self._by_index: dict[int, _Output] = {}
        self._last: _Output | None = None
        self._run_of: _Output | None = None  # whose pieces the last run has
        self._calls = 0
        self._complete = 0  # items that are done
        # The names of functions in the request, by namespace and name.
        self._names = {
            (binding.fields.get("namespace"), binding.fields.get("name")): name
            for name, binding in asked.bindings.items()
            if binding.fields.get("namespace") and binding.kind.role == "call"
        }

    def _has_begun(self) -> bool:
        return self._has_events

    def _chunks(self, events: list[RawOrRun]) -> list[ChunkOrRun]:
        chunks: list[ChunkOrRun] = []
        for event in events:
            if self.done or self.failure:
                break
            self._has_events = True
            if event is DONE:  # which says nothing by itself
                self.done = self.finished
                continue
            assert isinstance(event, dict)
            type_ = event.get("type")
            if pieces := _PIECES.get(type_) if isinstance(type_, str) else None:
                self._piece(event, *pieces, chunks)
            elif read := _EVENTS.get(type_) if isinstance(type_, str) else None:
                chunks += read(self, event)
            elif not isinstance(type_, str) or event.get("error"):
                self.failure = self._error_in(event)
            elif passed := self._passed_by(event):
                chunks.append(_chunk({"passed": {"number": passed.number, "event": event}}))
            elif type_ not in _REPEATED:
                self._warn(f"Events of type {label(type_)} of the backend are not known and were left out.")
        return [*chunks, DONE] if self.done else chunks

    def _piece(self, event: _Event, type_: str, name: str, chunks: list[ChunkOrRun]) -> None:
        """Add a piece of the text of an item; those that came together without anything between them are one run."""
        delta, logprobs = event.get("delta"), event.get("logprobs")
        if not isinstance(delta, str) or not delta:
            return
        output, item_id = self._last, event.get("item_id")
        if output is None or output.type != type_ or item_id is None or output.item.get("id") != item_id:
            output = self._output(event, type_)
        output.written = True
        last = chunks[-1] if chunks else None
        if logprobs:
            chunks.append(_text(delta, logprobs))
        elif name == "arguments" and not output.named:
            chunks += self._call(output, delta)
        elif isinstance(last, ChunkRun) and self._run_of is output:
            last.texts.append(delta)
        else:
            self._run_of = output
            fragment = {"index": output.number, "function": {"arguments": delta}}
            like: object = {"tool_calls": [fragment]} if name == "arguments" else {name: delta}
            chunks.append(ChunkRun({"choices": [{"delta": like}]}, name, [delta]))

    # Items.

    def _output(self, event: _Event, type_: str) -> _Output:
        """Return the item that an event belongs to; one that was not added is begun."""
        item_id, index = event.get("item_id"), event.get("output_index")
        output = self._item_of(event)
        if output is None and not isinstance(item_id, str) and not isinstance(index, int):
            output = self._last
        if output is None or output.type != type_:
            output = self._begin({"type": type_, "id": item_id}, index)
        return output

    def _begin(self, item: _Event, index: object) -> _Output:
        output = self._last = _Output(str(item.get("type")), self._calls, item=item)
        if isinstance(item_id := item.get("id"), str) and item_id:
            self._by_id[item_id] = output
        if isinstance(index, int):
            self._by_index[index] = output
        output.passed = output.type in self._passed
        self._calls += output.passed or output.type in _ARGUMENTS
        return output

    def _item_of(self, event: _Event) -> _Output | None:
        """Return the item that an event names, by its id or else by its index."""
        item_id, index = event.get("item_id"), event.get("output_index")
        output = self._by_id.get(item_id) if isinstance(item_id, str) else None
        return self._by_index.get(index) if output is None and isinstance(index, int) else output

    def _passed_by(self, event: _Event) -> _Output | None:
        """Return the item of a tool of the server that an event is about; None if it is about no such item."""
        output = self._item_of(event)
        return output if output and output.passed and not output.done else None

    def _delta(self, event: _Event, type_: str) -> str:
        """Return the text of a delta, after noting that its item has one."""
        delta = event.get("delta")
        if not isinstance(delta, str) or not delta:
            return ""
        self._output(event, type_).written = True
        return delta

    def added(self, event: _Event) -> list[ChunkOrRun]:
        item = json_object(event.get("item"))
        output = self._begin(item, event.get("output_index"))
        return self._started(output)

    def _started(self, output: _Output) -> list[ChunkOrRun]:
        item, type_ = output.item, output.type
        if type_ == "message":
            phase = item.get("phase")
            started = {"type": "message", "phase": phase} if isinstance(phase, str) else {"type": "message"}
            return [_chunk({"starts_item": started})]  # type: ignore[typeddict-item]
        if type_ == "reasoning":
            return [_chunk({"starts_item": {"type": "reasoning"}})]
        if type_ in _ARGUMENTS:
            return self._call(output, "")
        if output.passed:
            return [_chunk({"passed": {"number": output.number, "item": item}})]
        self._warn(f"Items of type {label(type_)} of the backend are not known and were left out.")
        return []

    def _call(self, output: _Output, arguments: str) -> list[ChunkOrRun]:
        """Return the fragment of a call, with its id and name if these have not been there yet."""
        function: JSONObject = {}
        fragment: CallFragment = {"index": output.number, "function": function}  # type: ignore[typeddict-item]
        name = output.item.get("name")
        if not output.named and isinstance(name, str) and name:
            output.named = True
            function["name"] = self._names.get((str(output.item.get("namespace")), name), name)
            call_id = output.item.get("call_id") or output.item.get("id")
            fragment["id"] = call_id if isinstance(call_id, str) else None
        if output.type == "custom_tool_call" and not output.opened:
            output.opened = True
            arguments = _OPENING + arguments
        if arguments:
            function["arguments"] = arguments
        return [_chunk({"tool_calls": [fragment]})] if function else []

    def item_done(self, event: _Event) -> list[ChunkOrRun]:
        """Add what the deltas did not say of an item."""
        item, index = json_object(event.get("item")), event.get("output_index")
        type_, chunks = str(item.get("type")), list[ChunkOrRun]()
        output = self._known(item, index)
        if output is None:
            output = self._begin(item, index)
            chunks += self._started(output)
        if output.done:
            return []
        output.item = {**output.item, **item}
        output.done = True
        self._complete += 1
        if output.passed:
            return [*chunks, self._passed_done(output)]
        if type_ in _ARGUMENTS:
            return chunks + self._call_done(output)
        if type_ == "message" and not output.written:
            chunks += _message_parts(item)
        elif type_ == "reasoning":
            chunks += [] if output.written else _reasoning_parts(item)
            chunks += self._replayed(item)
        return chunks

    def _known(self, item: _Event, index: object) -> _Output | None:
        output = self._by_id.get(str(item.get("id")))
        if output is None and isinstance(index, int):
            output = self._by_index.get(index)
        return output if output is not None and output.type == item.get("type") else None

    def _call_done(self, output: _Output) -> list[ChunkOrRun]:
        written = output.item.get(_ARGUMENTS[output.type])
        text = written if isinstance(written, str) and not output.written else ""
        is_whole = output.item.get("status") != "incomplete"
        if output.type == "custom_tool_call":
            return self._call(output, _escaped(text) + (_CLOSING if is_whole else ""))
        return self._call(output, text or ("{}" if is_whole and not output.written else ""))

    def _passed_done(self, output: _Output) -> Chunk:
        upstream = bound(self._profile, id=output.item["id"]) if isinstance(output.item.get("id"), str) else {}
        passed: PassedItem = {"number": output.number, "item": output.item, "done": True, "upstream": upstream}
        return _chunk({"passed": passed})

    def _replayed(self, item: _Event) -> list[ChunkOrRun]:
        """Return a chunk with a reasoning item as the server is to be sent it again, if it can read it."""
        if not item.get("encrypted_content") and not item.get("content"):
            return []  # without its content, the server would look for the id
        kept = {name: value for name, value in item.items() if name != "status" and value is not None}
        kept.setdefault("summary", [])
        return [_chunk({"reasoning_upstream": bound(self._profile, **{NATIVE: kept})})]

    # Parts.

    def part_added(self, event: _Event) -> list[ChunkOrRun]:
        """Begin a part; the first begins with its item."""
        output = self._item_of(event)
        if output is None:
            return []
        output.parts += 1
        return [_chunk({"starts_part": True})] if output.parts > 1 else []

    def refusal(self, event: _Event) -> list[ChunkOrRun]:
        delta = self._delta(event, "message")
        return [_chunk({"refusal": delta})] if delta else []

    def summary(self, event: _Event) -> list[ChunkOrRun]:
        delta = self._delta(event, "reasoning")
        return [_chunk({"reasoning_summary": delta})] if delta else []

    def annotation(self, event: _Event) -> list[ChunkOrRun]:
        annotation = event.get("annotation")
        return [_chunk({"annotations": [annotation]})] if isinstance(annotation, dict) else []

    def custom_input(self, event: _Event) -> list[ChunkOrRun]:
        delta = self._delta(event, "custom_tool_call")
        return self._call(self._output(event, "custom_tool_call"), _escaped(delta)) if delta else []

    # The response.

    def ended(self, event: _Event) -> list[ChunkOrRun]:
        """Read the final response: its items, if no events told them, its usage, and how it ended."""
        response = json_object(event.get("response"))
        chunks: list[ChunkOrRun] = []
        unknown = not self._complete  # otherwise, those with another id and index may have been there
        for index, item in enumerate(json_objects(response.get("output"))):
            if unknown or self._known(item, index):
                chunks += self.item_done({"item": item, "output_index": index})
        status = response.get("status") or str(event.get("type")).removeprefix("response.")
        if usage := normal_usage(json_object(response.get("usage"))):
            chunks.append(
                {"usage": usage, "id": str(response.get("id") or ""), "model": str(response.get("model") or "")}
            )
        if isinstance(tier := response.get("service_tier"), str):
            chunks.append({"service_tier": tier})
        if status in ("failed", "cancelled"):
            error = response.get("error") or {"message": "The backend's response failed.", "code": "server_error"}
            self.failure = self._error_in({"error": error}) or failure("failure")
            return chunks
        reason = "stop"
        if status == "incomplete":
            details = json_object(response.get("incomplete_details"))
            reason = _REASONS.get(str(details.get("reason")), "length")
        chunks.append({"choices": [{"delta": {}, "finish_reason": reason}]})
        self.finished = self.done = True
        return chunks

    def done_as(self, event: _Event) -> list[ChunkOrRun]:
        """Read `response.done`, with which some gateways end every response: as the event of the response's status."""
        response = json_object(event.get("response"))
        status = response.get("status")
        known = status if status in ("completed", "incomplete", "cancelled") else "failed"
        return self.ended({"response": {**response, "status": known}})

    def error(self, event: _Event) -> list[ChunkOrRun]:
        """Read an error event, whose fields are nested or not."""
        nested = event.get("error")
        fields = nested if nested else {name: event.get(name) for name in ("code", "message", "param")}
        self.failure = self._error_in({"error": fields}) or failure("failure")
        return []

    def _warn(self, warning: str) -> None:
        if warning not in self.warnings:
            self.warnings.append(warning)


# Events with a piece of text: the type of their item, and the name of the text in chunks.
_PIECES = {
    "response.output_text.delta": ("message", "content"),
    "response.reasoning_text.delta": ("reasoning", REASONING_CONTENT),
    "response.reasoning.delta": ("reasoning", REASONING_CONTENT),
    "response.function_call_arguments.delta": ("function_call", "arguments"),
}

_Read = Callable[[ResponsesDecoder, _Event], list[ChunkOrRun]]

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

# Events that say nothing, or what others said.
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

# The types of items that are calls, with their field.
_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}

# The input of a custom tool is text, and in chunks the argument of a function, as it is by all other APIs.
_OPENING, _CLOSING = f'{{"{INPUT}":"', '"}'


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _whole(values: list[JSONObject]) -> list[RawOrRun]:
    """Return the events for a response that came as one JSON value."""
    response = next((value for value in values if isinstance(value.get("output"), list)), None)
    if response is None:
        return [*values]  # errors, or nothing that is known
    return [{"type": f"response.{response.get('status') or 'completed'}", "response": response}]


def _chunk(delta: ChunkDelta) -> Chunk:
    return {"choices": [{"delta": delta}]}


def _text(text: str, logprobs: object) -> Chunk:
    if logprobs:
        return {"choices": [{"delta": {"content": text}, "logprobs": {"content": logprobs}}]}
    return {"choices": [{"delta": {"content": text}}]}


def _message_parts(item: _Event) -> list[ChunkOrRun]:
    """Return the chunks of a message whose text came in no delta."""
    chunks: list[ChunkOrRun] = []
    for number, part in enumerate(json_objects(item.get("content"))):
        chunks += [_chunk({"starts_part": True})] if number else []
        if isinstance(text := part.get("text"), str) and text:
            chunks.append(_text(text, part.get("logprobs")))
        elif isinstance(refusal := part.get("refusal"), str) and refusal:
            chunks.append(_chunk({"refusal": refusal}))
        if isinstance(annotations := part.get("annotations"), list) and annotations:
            chunks.append(_chunk({"annotations": annotations}))
    return chunks


def _reasoning_parts(item: _Event) -> list[ChunkOrRun]:
    chunks: list[ChunkOrRun] = []
    for name in ("summary", "content"):
        for number, part in enumerate(json_objects(item.get(name))):
            if isinstance(text := part.get("text"), str) and text:
                chunks += [_chunk({"starts_part": True})] if number else []
                chunks.append(_chunk({"reasoning_summary" if name == "summary" else "reasoning_content": text}))  # type: ignore[misc]
    return chunks
