"""Build the events of a finished response again, for a caller that requests its stream later."""

from __future__ import annotations

from app.core.items import ITEM_TYPES, ItemType
from app.core.stream.event_batch import EventBatch
from app.core.stream.event_builder import EventBuilder
from app.core.stream.event_types import CONTENT_REASONING, REFUSAL, SUMMARY_REASONING, TEXT, PartType
from app.core.stream.open_items import OpenCall, OpenItem
from app.core.types import JSONObject, list_field, with_fields
from app.core.types.request import Item, Response

_PART_LISTS = ("summary", "content")


class ReplayedBuilder(EventBuilder):
    """Builds the events of a response that has ended, with one delta for each part and each call."""

    def __init__(self, response: Response, *, reasoning: tuple[PartType, ...] = CONTENT_REASONING) -> None:
        """`reasoning` lists the parts in which the caller's dialect shows raw reasoning."""
        started: Response = {
            **response,
            "status": "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        super().__init__(started, new_id=_no_id)
        self._final = response
        self._rows = {row.type: row for row in (*TEXT, *REFUSAL, *SUMMARY_REASONING, *reasoning)}

    def replay(self) -> EventBatch:
        """Return all events, from `response.created` to the terminal one."""
        self.start()
        for item in self._final["output"]:
            kind = ITEM_TYPES.get(item["type"])
            if item["type"] in ("message", "reasoning"):
                self._replay_parts(item)
            elif kind:
                self._replay_call(item, kind)
            else:
                self._done(self._add(item), item)
        self.response = self._final
        if error := self._final.get("error"):
            fields = {name: error.get(name) for name in ("code", "message", "param")}
            self._emit("error", **fields, error={"type": "server_error", **error})
        self.end()
        return self.take()

    def _replay_parts(self, item: Item) -> None:
        lists = [name for name in _PART_LISTS if isinstance(item.get(name), list)]
        started = with_fields(item, {**{name: [] for name in lists}, "status": "in_progress"})
        started.pop("encrypted_content", None)
        open_ = OpenItem(self._add(started), started, ())
        for name in lists:
            for part in list_field(item, name):
                if row := self._rows.get(part.get("type")):
                    self._replay_part(open_, row, part)
        self._done(open_.index, item)

    def _replay_part(self, open_: OpenItem, row: PartType, part: JSONObject) -> None:
        open_.rows = (row,)
        self._open, before = open_, self._open
        self._open_part(open_, row)
        if text := part.get(row.field):
            self._write(open_.rows, [text])
        for annotation in part.get("annotations") or () if "annotations" in row.extra else ():
            self._annotate(open_.parts[0], annotation)
        if "logprobs" in row.extra:
            open_.parts[0].extra["logprobs"] = part.get("logprobs") or []
        self._close_parts(open_)
        self._open = before

    def _replay_call(self, item: Item, kind: ItemType) -> None:
        fields = item
        initial = {**kind.empty, **({"status": "in_progress"} if kind.has_status else {})}
        written = fields.get(kind.field) if kind.field else None
        if kind.field:
            initial[kind.field] = "" if kind.delta else kind.value("")
        if kind.added_when_complete:
            initial = {}
        opened = with_fields(item, initial)
        call = OpenCall(self._add(opened), opened, kind)
        self._emit_each(call, kind.added_events)
        if kind.delta and isinstance(written, str) and written:
            self._note_closed(len(written))
            self.arguments(call, written)
        if kind.done:
            done = {name: fields.get(name) for name in (*kind.done_fields, kind.field or "")}
            self._emit(kind.done, item_id=item["id"], output_index=call.index, **done)
        for part_type, details in kind.details(item):
            self._emit(part_type, output_index=call.index, **details)
        self._emit_each(call, kind.running)
        if ended := kind.ended.get(str(fields.get("status"))):
            self._emit_each(call, (ended,))
        assert call.index is not None
        self._done(call.index, item)


def _no_id(prefix: str) -> str:
    raise AssertionError(f"a response that is replayed needs no new id ({prefix})")
