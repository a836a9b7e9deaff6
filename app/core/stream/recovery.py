"""
Restore an `EventBuilder` from stored events.

If a process dies during generation, another process closes open items and ends the response.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from app.core.items import ITEM_TYPES
from app.core.stream import event_types
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import OpenCall, OpenItem, OpenPart, PartType
from app.core.types import JSONObject, with_fields
from app.core.types.request import Event, Item, Response

_ROWS = (
    *event_types.TEXT,
    *event_types.REFUSAL,
    *event_types.CONTENT_REASONING,
    *event_types.OPENAI_CONTENT_REASONING,
    *event_types.SUMMARY_REASONING,
)
# A part without deltas does not reveal its dialect, so the spec's is assumed.
_BY_TYPE: dict[str, PartType] = {row.type: row for row in reversed(_ROWS)}
_BY_DELTA: dict[str, PartType] = {row.delta: row for row in _ROWS}
_CALLS = {
    item_type: row
    for item_type, row in ITEM_TYPES.items()
    if row.role in ("call", "hosted") or row.added_events or row.progress
}
_ARGUMENTS = {row.delta for row in _CALLS.values() if row.delta}
_RESTORED = {event: restored for row in _CALLS.values() for event, restored in row.restored.items()}
_ARGUMENTS_DONE = {row.done for row in _CALLS.values() if row.done and row.hosted}


def recovered_builder(response: Response, events: Iterable[Event]) -> EventBuilder:
    """
    A builder in the state after these events; without events, it queues the response.

    `response` is the first stored resource.
    """
    state = _Recovered()
    for event in events:
        state.apply(event)
    begun: Response = {**response, "status": "in_progress" if state.started else "queued", "output": state.output}
    builder = EventBuilder(begun, new_id=_no_id)
    builder.started = state.started
    builder.restore(state.sequence_number, state.open, state.calls, state.running)
    if not state.sequence_number:
        builder.mark_queued()
    return builder


@dataclass
class _Recovered:
    started: bool = False
    sequence_number: int = 0
    output: list[Item] = field(default_factory=list)
    open: OpenItem | None = None
    calls: list[OpenCall] = field(default_factory=list)
    running: list[OpenCall] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        self.sequence_number = event["sequence_number"] + 1
        match event["type"]:
            case "response.in_progress":
                self.started = True
            case "response.output_item.added":
                index, item = event["output_index"], event["item"]
                self.output.append(item)
                if kind := _CALLS.get(item["type"]):
                    (self.calls if kind.field else self.running).append(OpenCall(index, item, kind))
                elif self.open is None:  # an unknown item type must not replace a known one
                    self.open = OpenItem(index, item)
            case "response.output_item.done":
                self._item_done(event["output_index"], event["item"])
            case type_ if "part" in event:
                self._part(event, added=type_.endswith(".added"))
            case type_ if type_ in _BY_DELTA:
                part = self._part_at(event)
                part.row = _BY_DELTA[type_]
                part.pieces.append(event["delta"])
                if logprobs := event.get("logprobs"):
                    part.extra.setdefault("logprobs", []).extend(logprobs)
            case type_ if type_ in _ARGUMENTS:
                self._call_at(event).pieces.append(event["delta"])
            case type_ if type_ in _ARGUMENTS_DONE:
                call = self._call_at(event)
                name = str(call.kind.field)
                self._restore(call, {name: event.get(name, call.written)})
            case type_ if type_ in _RESTORED:
                call = self._call_at(event)
                self._restore(call, _RESTORED[type_](call.item, event))
            case "response.output_text.annotation.added":
                self._part_at(event).extra["annotations"].append(event["annotation"])

    def _restore(self, call: OpenCall, fields: JSONObject) -> None:
        """Set fields implied by an event; the arguments are then complete, so the call can be running."""
        call.item = with_fields(call.item, fields)
        if call in self.calls:
            self.calls.remove(call)
            self.running.append(call)

    def _call_at(self, event: Event) -> OpenCall:
        return next(call for call in (*self.calls, *self.running) if call.index == event["output_index"])

    def _item_done(self, index: int, item: Item) -> None:
        """The logged `done` event can omit texts that were sent as deltas."""
        texts: JSONObject = {}
        if self.open and self.open.index == index:
            texts, self.open = self.open.closed, None
        for call in (*self.calls, *self.running):
            if call.index == index and call.kind.field and call.pieces:
                texts = {call.kind.field: call.kind.value(call.written)}
        self.output[index] = with_fields(item, {**texts, **item})
        self.calls = [call for call in self.calls if call.index != index]
        self.running = [call for call in self.running if call.index != index]

    def _part(self, event: Event, *, added: bool) -> None:
        assert self.open
        content = event["part"]
        row = _BY_TYPE[content["type"]]
        if added:
            where = {name: event.get(name) for name in ("item_id", "output_index", row.position)}
            self.open.parts.append(OpenPart(row, where))
        else:
            part = self._part_at(event)
            self.open.parts.remove(part)
            whole = content if row.field in content else part.content()
            self.open.closed.setdefault(row.list, []).append(whole)

    def _part_at(self, event: Event) -> OpenPart:
        assert self.open
        return next(
            part for part in self.open.parts if all(event.get(at) == value for at, value in part.before.items())
        )


def _no_id(prefix: str) -> str:
    raise AssertionError(f"a response that only ends needs no new id ({prefix})")
