"""
Build a response's events, and update the response resource.

    builder = EventBuilder(response)
    builder.start()
    builder.text("Hel", "lo")
    builder.complete()
    builder.end()
    events = builder.pop_events()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from app.core.items import ITEM_TYPES, ItemType, id_prefix
from app.core.items.readings import NOTES
from app.core.stream.citations import Citations
from app.core.stream.event_batch import DeltaFields, EventBatch
from app.core.stream.event_types import (
    CONTENT_REASONING,
    REFUSAL,
    SUMMARY_REASONING,
    TEXT,
    OpenCall,
    OpenItem,
    OpenPart,
    PartType,
    ToolBinding,
)
from app.core.stream.reasoning_fields import ReasoningEncryption
from app.core.types import JSONMapping, JSONObject, with_fields
from app.core.types.deltas import REASONING_CONTENT
from app.core.types.request import Item, Response
from app.errors import APIError

# An item's backend fields, to send back unchanged.
Upstream: TypeAlias = JSONObject

# Neither the spec nor OpenAI defines `response.cancelled`, and clients reject or ignore unknown events.
TERMINAL_EVENTS = {"cancelled": "response.incomplete"}

# Notes on hosted calls (see `NOTES`) that later turns need. They are encrypted for clients that store items themselves.
_NEEDED = frozenset({"output", "arguments", "session"})


class EventBuilder:
    """
    A response's state machine; events never change after `pop_events`.

    At most one message or reasoning item is open; any other output closes it. Several tool calls can also be open,
    because backends interleave arguments.
    """

    def __init__(
        self,
        response: Response,
        *,
        reasoning: tuple[PartType, ...] = CONTENT_REASONING,
        new_id: Callable[[str], str],
        clock: Callable[[], float] = time.time,
        encryption: ReasoningEncryption | None = None,
    ) -> None:
        """
        `reasoning`: forms in which raw reasoning is shown. `new_id` creates an id from a prefix. `encryption` creates
        `encrypted_content`.
        """
        self.response = response
        self.started = False
        self.delivered = False  # events were delivered, or would have been: errors must be part of the response
        self.on_delivery: Callable[[], None] | None = None  # called before a delivery, until it is cleared
        self.new_id = new_id
        self.upstream: dict[str, Upstream] = {}  # by item id; values can be callables: see `resolve_upstream`
        self.failure: APIError | None = None
        self.stop_sequence: str | None = None  # the matched sequence
        self.framework_events = False  # whether the caller requested `antiphon:*` events
        self._reasoning = reasoning
        self._clock = clock
        self._encryption = encryption
        self.events: EventBatch | None = EventBatch()  # undelivered; None: not built, because nobody reads them
        self._closed = 0  # characters in the output, except in open items
        self._sequence_number = 0
        self._open: OpenItem | None = None
        self._plain: OpenPart | None = None  # the open item's only part, unless citations are searched in its text
        self._calls: list[OpenCall] = []
        self.running: list[OpenCall] = []  # complete hosted calls, and items added by tools
        self._native: list[OpenItem] = []
        self._last_reasoning: str | None = None
        self._citations: Citations | None = None
        self._phase: str | None = None  # for the next message
        self._held_logprobs: list[Any] = []  # of text held back because it may begin a citation mark

    def restore(
        self, sequence_number: int, open_: OpenItem | None, calls: list[OpenCall], running: list[OpenCall]
    ) -> None:
        self._sequence_number = sequence_number
        self._open, self._calls, self.running = open_, calls, running

    def pop_events(self) -> EventBatch:
        """The events to deliver."""
        self.delivered = self.started
        if self.on_delivery:
            self.on_delivery()
        if self.events is None:
            return EventBatch()
        events, self.events = self.events, EventBatch()
        return events

    # Response status.

    def mark_queued(self) -> None:
        self.response["status"] = "queued"
        self._emit_response("response.created")
        self._emit_response("response.queued")

    def start(self) -> None:
        """Idempotent."""
        if self.started:
            return
        self.started = True
        self.response["status"] = "in_progress"
        if self.events is not None:
            if not self._sequence_number:
                self._emit_response("response.created")
            self._emit_response("response.in_progress")

    def complete(self) -> None:
        self.close()
        self.response.update({"status": "completed", "completed_at": int(self._clock())})

    def incomplete(self, reason: str) -> None:
        self.close("incomplete")
        self.response.update({"status": "incomplete", "incomplete_details": {"reason": reason}})

    def cancel(self) -> None:
        """Set the status `cancelled`, except after `fail`, which has emitted `error`."""
        self.close("incomplete")
        if self.failure is None:
            self.response.update({"status": "cancelled", "incomplete_details": None})

    def fail(self, error: APIError) -> None:
        """
        Set the status `failed`, even after `complete`.

        The `error` event contains the error twice: in the field `error`, as in the spec, and as top-level fields, as in
        OpenAI's API.
        """
        self.close("incomplete")
        self.failure = error
        headers = error.headers()
        payload = error.payload() | ({"headers": headers} if headers else {})
        self._emit("error", code=error.code, message=error.message, param=error.param, error=payload)
        self.response.update(
            {"status": "failed", "completed_at": None, "incomplete_details": None, "error": error.payload()}
        )

    def end(self) -> None:
        status = self.response["status"]
        self._emit_response(TERMINAL_EVENTS.get(status, f"response.{status}"))

    def keepalive(self) -> None:
        """Emit an event for clients whose idle timers ignore SSE comments."""
        self._emit("keepalive")

    # Model output.

    def cite(self, sources: Mapping[str, JSONMapping]) -> None:
        """Annotate later text that cites sources, keyed by number or URL."""
        if self._citations is None:
            self._citations = Citations()
        self._citations.add(sources)
        self._plain = None

    def text(self, *deltas: str, logprobs: list[Any] | None = None) -> None:
        self.write(TEXT, deltas, logprobs)

    def write(self, rows: tuple[PartType, ...], deltas: Sequence[str], logprobs: list[Any] | None = None) -> None:
        if (part := self._plain) is None or part.row is not rows[0] or logprobs:
            if self._citations is not None and rows is TEXT:
                self._search_citations(self._citations, deltas, logprobs)
            else:
                self._append(rows, deltas, logprobs)
            return
        part.pieces += deltas
        if (events := self.events) is not None:
            events.append((part, self._sequence_number, deltas))
            self._sequence_number += len(deltas)

    def _search_citations(self, citations: Citations, deltas: Sequence[str], logprobs: list[Any] | None) -> None:
        if not logprobs and not self._held_logprobs and citations.skip(deltas):
            self._append(TEXT, deltas, None)
            return
        self._held_logprobs += logprobs or ()
        for delta in deltas:
            self._write_cited(citations.feed(delta))

    def _write_cited(self, pieces: Iterable[str | JSONObject]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                logprobs, self._held_logprobs = self._held_logprobs, []
                self._append(TEXT, (piece,), logprobs)
            else:
                self.annotation(piece)

    def _flush_held(self) -> None:
        if self._citations is not None:
            self._write_cited(self._citations.end())

    def begin_item(self, item_type: str, phase: str | None = None) -> None:
        """Close the open item and begin the next. A reasoning item is added at once, a message with its first part."""
        self.close_item()
        self._phase = phase
        if item_type == "reasoning":
            fields = {"id": self.new_id("rs"), "summary": [], "status": "in_progress"}
            item = with_fields({"type": "reasoning"}, fields)
            self._open = OpenItem(self._add(item), item)

    def begin_part(self) -> None:
        """Close the open part; the next is added with its first text."""
        self._flush_held()
        if self._open:
            self._close_parts(self._open)
            self._open.rows = ()

    def refusal(self, *deltas: str) -> None:
        self.write(REFUSAL, deltas)

    def annotation(self, annotation: JSONObject) -> None:
        """For the open text part, or a new, empty part."""
        part = self._open_for(TEXT).parts[0]
        annotations = part.extra["annotations"]
        annotations.append(annotation)
        index = len(annotations) - 1
        self._emit(
            "response.output_text.annotation.added", **part.before, annotation_index=index, annotation=annotation
        )

    def reasoning(self, *deltas: str, source: str = REASONING_CONTENT) -> None:
        """Write reasoning; `source` is the backend field with the text."""
        self.write(self._reasoning, deltas)
        if self._open:
            self._open.source = source

    def reasoning_summary(self, *deltas: str) -> None:
        self.write(SUMMARY_REASONING, deltas)

    def reasoning_upstream(self) -> Upstream:
        """
        The current reasoning item's backend fields, open for additions until the response ends.

        The item is the open item, otherwise the last (signatures can arrive late), otherwise a new item (some backends
        send a signature without text). With `encryption`, the last item is not used, because its encrypted content was
        already sent.
        """
        if self._encryption:
            item_id = (self._open_reasoning or self._open_for(self._reasoning)).item["id"]
        else:
            item_id = self._last_reasoning or self._open_for(self._reasoning).item["id"]
        return self.upstream.setdefault(item_id, {})

    def message_upstream(self) -> Upstream:
        """The open message's backend fields, open for additions until it closes."""
        return self.upstream.setdefault(self._open_for(TEXT).item["id"], {})

    @property
    def _open_reasoning(self) -> OpenItem | None:
        return self._open if self._open and self._open.item["type"] == "reasoning" else None

    def call(self, call_id: str, binding: ToolBinding, **upstream: object) -> OpenCall:
        """`upstream`: the call's other backend fields."""
        if upstream and self._encryption and binding.kind.call_id:  # hosted calls have none: see `encrypt_calls`
            self._encryption.hold(call_id, upstream)
            if not self._open_reasoning:
                self._add_encrypted(self._encryption)
        self.close_item()
        kind = binding.kind
        fields: JSONObject = {
            "type": kind.type,
            "id": self.new_id(kind.prefix),
            **({"call_id": call_id} if kind.call_id else {}),
            **binding.fields,
            **({kind.field: "" if kind.delta else kind.value("")} if kind.field else {}),
            **{name: value for name, value in kind.empty.items() if name not in binding.fields},
            **({"status": "in_progress"} if kind.has_status else {}),
        }
        item = cast(Item, fields)
        if not kind.call_id:
            upstream[NOTES] = {"call_id": call_id}
        if upstream:
            self.upstream[item["id"]] = upstream
        call = OpenCall(None if kind.added_when_complete else self._add(item), item, kind, binding, call_id)
        self._calls.append(call)
        self._emit_each(call, kind.added_events)
        return call

    def arguments(self, call: OpenCall, *deltas: str) -> None:
        call.pieces += deltas
        if call.kind.delta:
            if call.delta is None:
                call.delta = DeltaFields(call.kind.delta, {"item_id": call.item["id"], "output_index": call.index}, {})
            self._emit_deltas(call.delta, deltas)

    def close_call(self, call: OpenCall, status: str = "completed") -> None:
        """
        `status` is `incomplete` if the arguments were truncated.

        A completed hosted call stays in `running` until `end_call`.
        """
        self._calls.remove(call)
        kind, item, written = call.kind, call.item, call.written
        self._note_closed(len(written))
        if kind.added_when_complete and status != "completed":
            return
        if kind.field:
            item = with_fields(item, {kind.field: kind.value(written)})
        if call.index is None:
            call.index = self._add(item)
        if kind.done:
            fields = {name: item.get(name) for name in (*kind.done_fields, kind.field or "")}
            self._emit(kind.done, item_id=item["id"], output_index=call.index, **fields)
        call.item = item
        for event_type, fields in kind.details(item):
            self._emit(event_type, output_index=call.index, **fields)
        if kind.hosted and status == "completed":
            self.running.append(call)
            return
        if kind.hosted:
            item, status = with_fields(item, {**kind.final(written), **_interruption(kind)}), kind.interrupted
        self._done(call.index, {**item, "status": status} if kind.has_status else item)

    # Hosted tools.

    def run_call(self, call: OpenCall) -> None:
        self._emit_each(call, call.kind.running)

    def add_item(self, kind: ItemType, fields: JSONMapping) -> OpenCall:
        """For a tool's item that is not a call; open until `end_call`."""
        self.close_item()
        status = {"status": "in_progress"} if kind.has_status else {}
        item = with_fields({"type": kind.type, "id": self.new_id(kind.prefix)}, {**kind.empty, **fields, **status})
        call = OpenCall(self._add(item), item, kind)
        self.running.append(call)
        self._emit_each(call, kind.added_events)
        return call

    def progress(self, call: OpenCall, name: str, fields: JSONMapping) -> None:
        """Ignored after `end_call`."""
        if call in self.running:
            event_type = call.kind.progress[name]
            self._emit(event_type, item_id=call.item["id"], output_index=call.index, **fields)

    def end_call(self, call: OpenCall, status: str, fields: JSONMapping) -> None:
        """For a running call or an added item; ignored if already ended."""
        if call not in self.running:
            return
        self.running.remove(call)
        if ended := call.kind.ended.get(status):
            self._emit_each(call, (ended,))
        assert call.index is not None
        item = with_fields(call.item, {**call.kind.final(call.written), **fields})
        self._done(call.index, {**item, "status": status} if call.kind.has_status else item)

    # Native items.

    def add_native_item(self, item: JSONMapping) -> OpenItem:
        """Add an item that is sent to the client unchanged, except for its id."""
        self.close_item()
        added = with_fields({"type": item["type"], "id": self.new_id(id_prefix(item["type"]))}, _without_id(item))
        native = OpenItem(self._add(added), added)
        self._native.append(native)
        return native

    def native_event(self, native: OpenItem, event: JSONMapping) -> None:
        """Ignored after the item's end."""
        if native in self._native:
            ours = {"item_id": native.item["id"], "output_index": native.index}
            self._note_closed(_length(event))
            self._emit(
                event["type"], **{name: ours.get(name, value) for name, value in event.items() if name not in _HEAD}
            )

    def end_native_item(self, native: OpenItem, item: JSONMapping, upstream: Upstream) -> None:
        """`upstream`: fields to send back."""
        if native in self._native:
            self._native.remove(native)
            if upstream:
                self.upstream[native.item["id"]] = upstream
            self._note_closed(_length(item))
            self._done(native.index, with_fields(native.item, _without_id(item)))

    # Items finished elsewhere.

    def add_finished(self, item: Item, events: Iterable[tuple[str, JSONObject]]) -> None:
        """For `events` see `replay.item_events`."""
        self.close_item()
        self.response["output"].append(item)
        for event_type, fields in events:
            self._note_closed(len(fields.get("delta", ())) or _length(fields.get("item", {})))
            self._emit(event_type, **fields)

    def encrypt_calls(self, item_ids: Iterable[str]) -> None:
        """Add an encrypted reasoning item with the calls' fields, for clients that store items themselves."""
        if self._encryption is None:
            return
        for item_id in item_ids:
            upstream = self.upstream.get(item_id, {})
            if upstream.get(NOTES, {}).keys() & _NEEDED or upstream.keys() - {NOTES}:
                self._encryption.hold(item_id, resolve_upstream(upstream))
        if self._encryption.holds:
            self._add_encrypted(self._encryption)

    def _add_encrypted(self, encryption: ReasoningEncryption) -> None:
        self._close_open("completed")
        item: Item = {"type": "reasoning", "id": self.new_id("rs"), "summary": [], "status": "in_progress"}
        index = self._add(item)
        self._done(index, {**item, "status": "completed", "encrypted_content": encryption.content({})})

    def begin_step(self, kind: str) -> str | None:
        """The step id for `end_step`; None without `framework_events`."""
        if not self.framework_events:
            return None
        step_id = self.new_id("step")
        self.framework("step_started", step_id=step_id, kind=kind)
        return step_id

    def end_step(self, step_id: str | None, kind: str) -> None:
        if step_id:
            self.framework("step_completed", step_id=step_id, kind=kind)

    def framework(self, event_type: str, **fields: object) -> None:
        if self.framework_events:
            self._emit(f"antiphon:{event_type}", source="framework", **fields)

    def close_item(self) -> None:
        self._flush_held()
        self._close_open("completed")

    def close(self, status: str = "completed") -> None:
        while self._calls:
            self.close_call(self._calls[0], status)
        while self.running:
            call = self.running[0]
            self.end_call(call, call.kind.interrupted, _interruption(call.kind))
        for native in [*self._native]:
            kind = ITEM_TYPES.get(native.item["type"])
            ended = {"status": kind.interrupted if kind else "incomplete"} if "status" in native.item else {}
            self.end_native_item(native, ended, {})
        self._flush_held()
        self._close_open(status)

    def partial_output(self) -> list[Any]:
        parts = (part.text for part in (self._open.parts if self._open else ()))
        return [*self.response["output"], *parts, *(call.written for call in (*self._calls, *self.running))]

    def _emit(self, event_type: str, **fields: object) -> None:
        if (events := self.events) is not None:
            event = {"type": event_type, "sequence_number": self._sequence_number, **fields}
            events.append(event)  # type: ignore[arg-type]  # its fields depend on its type
            self._sequence_number += 1

    def _emit_deltas(self, fields: DeltaFields, deltas: Sequence[str]) -> None:
        if (events := self.events) is not None:
            events.append((fields, self._sequence_number, deltas))
            self._sequence_number += len(deltas)

    def _emit_response(self, event_type: str) -> None:
        if (events := self.events) is not None:
            response = self.response
            events.characters += self._closed + len(response.get("instructions") or ())
            self._emit(event_type, response={**response, "output": [*response["output"]]})

    def _emit_each(self, call: OpenCall, types: Iterable[str]) -> None:
        for event_type in types:
            self._emit(event_type, item_id=call.item["id"], output_index=call.index)

    def _note_closed(self, length: int) -> None:
        """Count characters added to items; call before their events are emitted."""
        if self.events is not None:
            self._closed += length
            self.events.characters += length

    def _add(self, item: Item) -> int:
        index = len(self.response["output"])
        self.response["output"].append(item)
        if item["type"] == "reasoning":
            self._last_reasoning = item["id"]
        if self.events is not None:
            self._emit("response.output_item.added", output_index=index, item=item)
        return index

    def _done(self, index: int, item: Item) -> None:
        self.response["output"][index] = item
        if self.events is not None:
            self._emit("response.output_item.done", output_index=index, item=item)

    def _append(self, rows: tuple[PartType, ...], deltas: Sequence[str], logprobs: list[Any] | None) -> None:
        open_ = self._open_for(rows)
        # With two parts, each delta is an event for the first, then for the second.
        for texts in (deltas,) if len(rows) == 1 else [(delta,) for delta in deltas]:
            for part in open_.parts:
                part.pieces += texts
                if logprobs:
                    part.extra["logprobs"] += logprobs
                    for delta in texts:
                        self._emit(part.row.delta, **part.before, delta=delta, logprobs=logprobs)
                else:
                    self._emit_deltas(part, texts)

    def _open_for(self, rows: tuple[PartType, ...]) -> OpenItem:
        if rows is not TEXT:
            self._flush_held()
        open_ = self._open
        if open_ is not None and open_.rows is rows:
            return open_
        kind = rows[0]
        if open_ is not None and open_.item["type"] == kind.item:
            self._close_parts(open_)
            open_.rows = rows
        else:
            if open_ is not None:
                self._close_open("completed")
            phase, self._phase = self._phase, None
            fields = {"type": kind.item, "id": self.new_id(kind.prefix), **kind.empty, "status": "in_progress"}
            if phase and kind.item == "message":
                fields["phase"] = phase
            item: Item = fields  # type: ignore[assignment]  # its fields depend on its type
            open_ = self._open = OpenItem(self._add(item), item, rows)
        for row in rows:
            index = len(open_.closed.get(row.list, ()))
            where = {"item_id": open_.item["id"], "output_index": open_.index, row.position: index}
            part = OpenPart(row, where)
            open_.parts.append(part)
            if self.events is not None:
                self._emit(row.part_added, **where, part=row.blank())
        if len(rows) == 1 and not (rows is TEXT and self._citations is not None):
            self._plain = open_.parts[0]
        return open_

    def _close_parts(self, open_: OpenItem) -> None:
        for part in open_.parts:
            content = part.content()
            if self.events is not None:
                self._note_closed(len(content[part.row.field]))
                fields = {name: content.get(name, []) for name in part.row.done_fields}
                self._emit(part.row.done, **part.before, **fields)
                self._emit(part.row.part_done, **part.before, part=content)
            open_.closed.setdefault(part.row.list, []).append(content)
        open_.parts = []
        self._plain = None

    def _close_open(self, status: str) -> None:
        open_, self._open = self._open, None
        if open_ is None:
            return
        fields = self.upstream.get(open_.item["id"], {})
        if open_.source:
            fields = {open_.source: open_.parts[0].text, **fields}
        if fields:
            self.upstream[open_.item["id"]] = fields
        self._close_parts(open_)
        item: Item = {**open_.item, **open_.closed, "status": status}  # type: ignore[typeddict-item]
        if self._encryption and item["type"] == "reasoning":
            item["encrypted_content"] = self._encryption.content(resolve_upstream(fields))
        # Hold a message's fields for the next reasoning item: clients expect the message to be the last item.
        elif self._encryption and fields:
            self._encryption.hold(item["id"], fields)
        self._done(open_.index, item)


_HEAD = frozenset({"type", "sequence_number"})


def _without_id(item: JSONMapping) -> JSONObject:
    return {name: value for name, value in item.items() if name != "id"}


def _length(fields: JSONMapping) -> int:
    return sum(len(value) for value in fields.values() if isinstance(value, str))


def _interruption(kind: ItemType) -> JSONObject:
    return kind.error("The response ended before this call was complete.") if kind.interrupted == "failed" else {}


def resolve_upstream(upstream: Upstream) -> Upstream:
    """Replace callables by their values. A callable stands for a value that was still being assembled."""
    return {name: value() if callable(value) else value for name, value in upstream.items()}
