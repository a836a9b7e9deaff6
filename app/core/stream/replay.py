"""Rebuild a finished response's events, for callers that request its stream later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

from app.core.items import ITEM_TYPES, ItemType
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_builder import TERMINAL_EVENTS
from app.core.stream.event_types import REFUSAL, SUMMARY_REASONING, TEXT, PartType
from app.core.types import JSONMapping, JSONObject, json_list, with_fields
from app.core.types.request import Event, Item, Response

_PART_LISTS = ("summary", "content")

_Events: TypeAlias = Iterator[tuple[str, JSONObject]]  # types and fields


def replayed_events(response: Response, reasoning: tuple[PartType, ...]) -> EventBatch:
    """With one delta per part and call."""
    batch = EventBatch()
    characters = len(response.get("instructions") or ()) * 3  # repeated in the first two events and the last
    for number, (event_type, fields) in enumerate(_events(response, reasoning)):
        batch.append(cast(Event, {"type": event_type, "sequence_number": number, **fields}))
        characters += 2 * len(fields.get("delta", ()))  # repeated when the item and the response end
    batch.characters = characters
    return batch


def _events(response: Response, reasoning: tuple[PartType, ...]) -> _Events:
    ending = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    started = {**response, **ending, "status": "in_progress", "output": []}
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(response["output"]):
        yield from item_events(index, item, reasoning)
    if error := response.get("error"):
        fields = {name: error.get(name) for name in ("code", "message", "param")}
        yield "error", {**fields, "error": {"type": "server_error", **error}}
    status = response["status"]
    yield TERMINAL_EVENTS.get(status, f"response.{status}"), {"response": response}


def item_events(index: int, item: Item, reasoning: tuple[PartType, ...]) -> _Events:
    if item["type"] in ("message", "reasoning"):
        rows = {row.type: row for row in (*TEXT, *REFUSAL, *SUMMARY_REASONING, *reasoning)}
        yield from _text_item(index, item, rows)
    elif kind := ITEM_TYPES.get(item["type"]):
        yield from _call(index, item, kind)
    else:
        yield "response.output_item.added", {"output_index": index, "item": item}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _text_item(index: int, item: Item, rows: JSONMapping) -> _Events:
    lists = [name for name in _PART_LISTS if isinstance(item.get(name), list)]
    started = with_fields(item, {**{name: [] for name in lists}, "status": "in_progress"})
    started.pop("encrypted_content", None)
    yield "response.output_item.added", {"output_index": index, "item": started}
    for name in lists:
        shown = [part for part in json_list(item.get(name)) if part.get("type") in rows]
        for position, part in enumerate(shown):
            row = rows[part["type"]]
            yield from _part(row, {"item_id": item["id"], "output_index": index, row.position: position}, part)


def _part(row: PartType, where: JSONObject, part: JSONObject) -> _Events:
    text = part.get(row.field) or ""
    extra = {name: part.get(name) or [] for name in row.extra}
    yield row.part_added, {**where, "part": row.blank()}
    if text:
        yield row.delta, {**where, "delta": text, **row.delta_fields}
    for at, annotation in enumerate(extra.get("annotations", ())):
        yield "response.output_text.annotation.added", {**where, "annotation_index": at, "annotation": annotation}
    content = {"type": row.type, row.field: text, **extra}
    yield row.done, {**where, **{name: content.get(name, []) for name in row.done_fields}}
    yield row.part_done, {**where, "part": content}


def _call(index: int, item: Item, kind: ItemType) -> _Events:
    where = {"item_id": item["id"], "output_index": index}
    initial: JSONObject = {}
    if not kind.added_when_complete:
        initial = {**kind.empty, **({"status": "in_progress"} if kind.has_status else {})}
        if kind.field:
            initial[kind.field] = "" if kind.delta else kind.value("")
    yield "response.output_item.added", {"output_index": index, "item": with_fields(item, initial)}
    for event_type in kind.added_events:
        yield event_type, where
    written = item.get(kind.field) if kind.field else None
    if kind.delta and isinstance(written, str) and written:
        yield kind.delta, {**where, "delta": written}
    if kind.done:
        yield kind.done, {**where, **{name: item.get(name) for name in (*kind.done_fields, kind.field or "")}}
    for event_type, fields in kind.details(item):
        yield event_type, {"output_index": index, **fields}
    for event_type in kind.running:
        yield event_type, where
    if ended := kind.ended.get(str(item.get("status"))):
        yield ended, where
