"""
Restore an `EventBuilder` from the stored events of another one.

A process may die while it generates a response. Another process can then restore the builder from the events and end
the response properly: open items are closed, and the sequence numbers continue.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.items import ITEM_TYPES
from app.core.stream import event_types
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import PartType
from app.core.stream.open_items import OpenCall, OpenItem, OpenPart
from app.core.types import JSONObject, list_field, with_fields
from app.core.types.request import Event, Item, Response
from app.errors import APIError

_ROWS = (
    *event_types.TEXT,
    *event_types.REFUSAL,
    *event_types.CONTENT_REASONING,
    *event_types.OPENAI_CONTENT_REASONING,
    *event_types.SUMMARY_REASONING,
)
# The dialect of a part without a delta is unknown: the spec's is assumed, whose rows take precedence here.
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


class RecoveredBuilder(EventBuilder):
    """A builder with the state that results from the events of another one."""

    def __init__(self, response: Response, events: Iterable[Event]) -> None:
        """`response` is the resource as it was stored, when the response began; its output comes from the events."""
        super().__init__({**response, "status": "queued", "output": []}, new_id=_no_id)
        for event in events:
            self._apply(event)

    def fail_abandoned(self, error: APIError) -> None:
        """Fail the response in whatever state it is: the process that generated it is gone."""
        if not self._sequence_number:
            self.queue()
        if self.response["status"] == "queued":
            self.start()
        self.fail(error)

    def _apply(self, event: Event) -> None:
        self._sequence_number = event["sequence_number"] + 1
        match event["type"]:
            case "response.in_progress":
                self.response["status"] = "in_progress"
            case "response.output_item.added":
                self._item_added(event["output_index"], event["item"])
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
                field = str(call.kind.field)
                call.item = with_fields(call.item, {field: event.get(field, call.written)})
                self._calls.remove(call)
                self.running.append(call)
            case type_ if type_ in _RESTORED:
                self._restore(self._call_at(event), event)
            case "response.output_text.annotation.added":
                self._part_at(event).extra["annotations"].append(event["annotation"])

    def _restore(self, call: OpenCall, event: Event) -> None:
        """Set the fields that an event implies; the arguments are complete by then, and the call may be running."""
        call.item = with_fields(call.item, _RESTORED[event["type"]](call.item, event))
        if call in self._calls:
            self._calls.remove(call)
            self.running.append(call)

    def _call_at(self, event: Event) -> OpenCall:
        return next(call for call in (*self._calls, *self.running) if call.index == event["output_index"])

    def _item_added(self, index: int, item: Item) -> None:
        self.response["output"].append(item)
        if kind := _CALLS.get(item["type"]):
            opened = self._calls if kind.field else self.running
            opened.append(OpenCall(index, item, kind))
        elif self._open is None:  # an item of an unknown type must not replace a known one
            self._open = OpenItem(index, item, ())

    def _item_done(self, index: int, item: Item) -> None:
        texts = {name: value for name, value in self._texts_at(index).items() if name not in item}
        self.response["output"][index] = with_fields(item, texts)
        self._calls = [call for call in self._calls if call.index != index]
        self.running = [call for call in self.running if call.index != index]
        if self._open and self._open.index == index:
            self._open = None

    def _texts_at(self, index: int) -> JSONObject:
        """Return the texts of an item so far: the log may have its end without those that were in deltas."""
        if self._open and self._open.index == index:
            return {name: parts for name in ("summary", "content") if (parts := list_field(self._open.item, name))}
        calls = [call for call in (*self._calls, *self.running) if call.index == index]
        return {call.kind.field: call.kind.value(call.written) for call in calls if call.kind.field and call.pieces}

    def _part(self, event: Event, *, added: bool) -> None:
        assert self._open
        content = event["part"]
        row = _BY_TYPE[content["type"]]
        if added:
            where = {name: event.get(name) for name in ("item_id", "output_index", row.position)}
            part = OpenPart(row, where, extra={name: [] for name in row.extra})
            self._open.parts.append(part)
        else:
            part = self._part_at(event)
            self._open.parts.remove(part)
            whole = content if row.field in content else part.content()
            parts = [*list_field(self._open.item, row.list), whole]
            self._open.item = with_fields(self._open.item, {row.list: parts})

    def _part_at(self, event: Event) -> OpenPart:
        assert self._open
        return next(
            part for part in self._open.parts if all(event.get(at) == value for at, value in part.where.items())
        )


def _no_id(prefix: str) -> str:
    raise AssertionError(f"a response that only ends needs no new id ({prefix})")
