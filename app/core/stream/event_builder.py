"""
Build the events of one response.

`EventBuilder` is told what the model produced, piece by piece, and answers with the Responses events that say so. It
keeps the response resource up to date as it goes, and it does no I/O:

    builder = EventBuilder(response)
    builder.start()
    builder.text("Hel", "lo")
    builder.complete()
    builder.end()
    events = builder.take()

An event is a plain dict, and never changes once it has been taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from app.core.stream.citations import Citations
from app.core.stream.event_batch import DeltaFields, EventBatch
from app.core.stream.event_types import CONTENT_REASONING, REFUSAL, TEXT, PartType, ToolBinding
from app.core.types import list_field, with_fields
from app.core.types.chunk import REASONING_CONTENT
from app.core.types.items import ItemType
from app.core.types.readings import NOTES
from app.core.types.request import Item, Response
from app.errors import APIError

# What the backend really said for an item, by its own names of fields, to be sent back to it as it was.
Upstream: TypeAlias = dict[str, Any]

# Statuses whose terminal event has another name. The spec and OpenAI have no `response.cancelled`, and clients throw at
# or pass over what they do not know. All of them know `response.incomplete` as an end, and that the output was cut.
TERMINAL_EVENTS = {"cancelled": "response.incomplete"}


@dataclass(slots=True)
class OpenPart:
    """A part of a message or of reasoning that the model is still writing."""

    row: PartType
    where: dict[str, Any]  # item_id, output_index, and the part's index: the head of each of its events
    delta: DeltaFields = field(init=False)
    pieces: list[str] = field(default_factory=list)  # joined once, at the end
    extra: dict[str, list[Any]] = field(default_factory=dict)  # annotations and logprobs, as they come

    def __post_init__(self) -> None:
        self.delta = DeltaFields(self.row.delta, self.where, self.row.delta_fields)

    def content(self) -> dict[str, Any]:
        """Return the part as it stands, sharing nothing with it."""
        extra = {name: [*values] for name, values in self.extra.items()}
        return {"type": self.row.type, self.row.field: "".join(self.pieces), **extra}


@dataclass(slots=True)
class OpenItem:
    """A message or reasoning item that the model is still writing."""

    index: int
    item: Item
    rows: tuple[PartType, ...]
    parts: list[OpenPart] = field(default_factory=list)
    source: str | None = None  # the backend's field that a reasoning item came in


@dataclass(slots=True)
class OpenCall:
    """
    A tool call whose arguments are not all in yet, or a hosted one that is still to be run.

    A type of item that is shown only when it is `whole` has no index before.
    """

    index: int | None
    item: Item
    kind: ItemType
    callee: ToolBinding | None = None
    call_id: str = ""  # as the backend knows it
    delta: DeltaFields | None = None  # of the events of its arguments, once there are any
    pieces: list[str] = field(default_factory=list)

    @property
    def written(self) -> str:
        """What the model has written, as the item keeps it."""
        return "".join(self.pieces)


class EventBuilder:
    """
    The state machine of one response.

    At most one message or reasoning item is open at a time; it closes as soon as the model turns to something else.
    Tool calls may be open side by side, and beside an item: backends are free to interleave their arguments. What is
    open is the state, and there is no other.
    """

    def __init__(
        self,
        response: Response,
        *,
        reasoning: tuple[PartType, ...] = CONTENT_REASONING,
        new_id: Callable[[str], str],
        clock: Callable[[], float] = time.time,
        seal: Callable[[Upstream], str] | None = None,
    ) -> None:
        """
        `reasoning` names the forms in which raw reasoning is shown; `new_id` makes an id from a prefix; `seal`, if
        given, makes the `encrypted_content` of a reasoning item from what the backend said.
        """
        self.response = response
        self.new_id = new_id
        self.upstream: dict[str, Upstream] = {}  # by the id of the item; `settled` when asked for
        self.failure: APIError | None = None
        self.framework_events = False  # does the caller want events of ours, too?
        self._reasoning = reasoning
        self._clock = clock
        self._seal = seal
        self._events = EventBatch()
        self._sequence_number = 0
        self._open: OpenItem | None = None
        self._calls: list[OpenCall] = []
        self.running: list[OpenCall] = []  # hosted calls that the model has made, and items that tools have added
        self._last_reasoning: str | None = None  # the id of the output's last reasoning item
        self._citations: Citations | None = None
        self._held_logprobs: list[Any] = []  # of text that is held back, since it may be a mark

    def take(self) -> EventBatch:
        """Return the events built since the last call."""
        events, self._events = self._events, EventBatch()
        return events

    # The life of the response.

    def queue(self) -> None:
        """The response is to be made in the background."""
        self.response["status"] = "queued"
        self._emit("response.created", response=self._snapshot())
        self._emit("response.queued", response=self._snapshot())

    @property
    def started(self) -> bool:
        """Whether `response.in_progress` has been emitted."""
        return bool(self._sequence_number) and self.response["status"] != "queued"

    def start(self) -> None:
        self.response["status"] = "in_progress"
        if not self._sequence_number:
            self._emit("response.created", response=self._snapshot())
        self._emit("response.in_progress", response=self._snapshot())

    def complete(self) -> None:
        self.close()
        self.response.update({"status": "completed", "completed_at": int(self._clock())})

    def incomplete(self, reason: str) -> None:
        """What is open was cut off: for want of room (`max_output_tokens`), or by a filter (`content_filter`)."""
        self.close("incomplete")
        self.response.update({"status": "incomplete", "incomplete_details": {"reason": reason}})

    def cancel(self) -> None:
        """The caller has had enough: what is open was cut off. One that has failed stays so, since it said `error`."""
        self.close("incomplete")
        if self.failure is None:
            self.response.update({"status": "cancelled", "incomplete_details": None})

    def fail(self, error: APIError) -> None:
        """
        The response failed; even one that was complete but not yet ended.

        The `error` event has the fields nested, as the spec has them, and flat, as OpenAI has them; some clients look
        only at `response.failed`, which follows.
        """
        self.close("incomplete")
        self.failure = error
        headers = error.headers()
        told = error.payload() | ({"headers": headers} if headers else {})
        self._emit("error", code=error.code, message=error.message, param=error.param, error=told)
        self.response.update(
            {"status": "failed", "completed_at": None, "incomplete_details": None, "error": error.payload()}
        )

    def end(self) -> None:
        """Emit the terminal event, after one of the four above: nothing follows."""
        status = self.response["status"]
        self._emit(TERMINAL_EVENTS.get(status, f"response.{status}"), response=self._snapshot())

    def keepalive(self) -> None:
        """Say that the response lives: the heartbeat of clients whose idle timer ignores comments."""
        self._emit("keepalive")

    # What the model produces.

    def cite(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        """Turn what cites these sources, by their numbers or URLs, into annotations of the text from now on."""
        if self._citations is None:
            self._citations = Citations()
        self._citations.add(sources)

    def text(self, *deltas: str, logprobs: list[Any] | None = None) -> None:
        """Write text, with an event for each delta; `logprobs` are those of its tokens, where they were requested."""
        if self._citations is None:
            self._write(TEXT, deltas, logprobs)
            return
        self._held_logprobs += logprobs or ()
        for delta in deltas:
            self._write_cited(self._citations.feed(delta))

    def _write_cited(self, pieces: Iterable[str | dict[str, Any]]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                logprobs, self._held_logprobs = self._held_logprobs, []
                self._write(TEXT, (piece,), logprobs)
            else:
                self.annotation(piece)

    def _write_held(self) -> None:
        """Write what was held back of a text that ends."""
        if self._citations is not None:
            self._write_cited(self._citations.end())

    def refusal(self, *deltas: str) -> None:
        """Write a refusal."""
        self._write(REFUSAL, deltas)

    def annotation(self, annotation: dict[str, Any]) -> None:
        """Annotate the text that is being written; it is opened, empty, if there is none."""
        part = self._turn_to(TEXT).parts[0]
        annotations = part.extra["annotations"]
        annotations.append(annotation)
        index = len(annotations) - 1
        self._emit("response.output_text.annotation.added", **part.where, annotation_index=index, annotation=annotation)

    def reasoning(self, *deltas: str, source: str = REASONING_CONTENT) -> None:
        """Write reasoning; `source` is the backend's name of the field that it came in."""
        self._write(self._reasoning, deltas).source = source

    def reasoning_upstream(self) -> Upstream:
        """
        Return what the backend said for the reasoning item of this moment, to be added to until the response ends.

        That is the open one, else the last one (signatures may come late), else one that is opened for the purpose:
        there are backends whose reasoning is only a signature.
        """
        id = self._last_reasoning or self._turn_to(self._reasoning).item["id"]
        return self.upstream.setdefault(id, {})

    def call(self, call_id: str, callee: ToolBinding, **upstream: Any) -> OpenCall:
        """Open a call of a function, and return it."""
        self.close_item()
        kind = callee.kind
        fields: dict[str, Any] = {
            "type": kind.type,
            "id": self.new_id(kind.prefix),
            **({"call_id": call_id} if kind.call_id else {}),
            **callee.fields,
            **({kind.field: "" if kind.delta else kind.value("")} if kind.field else {}),
            **{name: value for name, value in kind.empty.items() if name not in callee.fields},
            **({"status": "in_progress"} if kind.has_status else {}),
        }
        item = cast(Item, fields)
        if not kind.call_id:
            upstream[NOTES] = {"call_id": call_id}
        if upstream:
            self.upstream[item["id"]] = upstream
        call = OpenCall(None if kind.whole else self._add(item), item, kind, callee, call_id)
        self._calls.append(call)
        self._tell(call, kind.begun)
        return call

    def arguments(self, call: OpenCall, *deltas: str) -> None:
        """Write arguments of an open call."""
        call.pieces += deltas
        if call.kind.delta:
            if call.delta is None:
                call.delta = DeltaFields(call.kind.delta, {"item_id": call.item["id"], "output_index": call.index}, {})
            self._events.entries.append((call.delta, self._sequence_number, deltas))
            self._sequence_number += len(deltas)

    def close_call(self, call: OpenCall, status: str = "completed") -> None:
        """
        The model has written the call; one that was cut off is `incomplete`.

        A hosted call that is whole is `running` from now on, until `end_call`. An item that is shown only when it is
        whole is shown now, if it is.
        """
        self._calls.remove(call)
        kind, item, written = call.kind, call.item, call.written
        if kind.whole and status != "completed":
            return
        if kind.field:
            item = with_fields(item, {kind.field: kind.value(written)})
        if call.index is None:
            call.index = self._add(item)
        if kind.done:
            fields = {name: item.get(name) for name in (*kind.done_fields, kind.field or "")}
            self._emit(kind.done, item_id=item["id"], output_index=call.index, **fields)
        call.item = item
        for type, fields in kind.details(item):
            self._emit(type, output_index=call.index, **fields)
        if kind.hosted and status == "completed":
            self.running.append(call)
            return
        if kind.hosted:
            item, status = with_fields(item, {**kind.final(written), **_interruption(kind)}), kind.interrupted
        self._done(call.index, {**item, "status": status} if kind.has_status else item)

    # What hosted tools do.

    def run_call(self, call: OpenCall) -> None:
        """A hosted call is begun to be run."""
        self._tell(call, call.kind.running)

    def add_item(self, kind: ItemType, fields: Mapping[str, Any]) -> OpenCall:
        """Add an item that a tool makes, beside its calls; it is open until `end_call`."""
        self.close_item()
        status = {"status": "in_progress"} if kind.has_status else {}
        item = with_fields({"type": kind.type, "id": self.new_id(kind.prefix)}, {**kind.empty, **fields, **status})
        call = OpenCall(self._add(item), item, kind)
        self.running.append(call)
        self._tell(call, kind.begun)
        return call

    def progress(self, call: OpenCall, name: str, fields: Mapping[str, Any]) -> None:
        """Tell how a running call or an added item gets on, by an event that its type has; void when it has ended."""
        if call in self.running:
            type = call.kind.progress[name]
            self._emit(type, item_id=call.item["id"], output_index=call.index, **fields)

    def end_call(self, call: OpenCall, status: str, fields: Mapping[str, Any]) -> None:
        """A running call or an added item is over, with these fields of its item; void when it has ended before."""
        if call not in self.running:
            return
        self.running.remove(call)
        if ended := call.kind.ended.get(status):
            self._tell(call, (ended,))
        assert call.index is not None
        item = with_fields(call.item, {**call.kind.final(call.written), **fields})
        self._done(call.index, {**item, "status": status} if call.kind.has_status else item)

    def seal_calls(self, item_ids: Iterable[str]) -> None:
        """
        Let what is noted of calls that were run come back with the items, where clients keep these.

        Only a builder that encrypts does something here.
        """

    def begin_step(self, kind: str) -> str | None:
        """Tell those who want events of ours that a step begins; returns its id, for `end_step`."""
        if not self.framework_events:
            return None
        step_id = self.new_id("step")
        self.framework("step_started", step_id=step_id, kind=kind)
        return step_id

    def end_step(self, step_id: str | None, kind: str) -> None:
        """Tell that a step is over."""
        if step_id:
            self.framework("step_completed", step_id=step_id, kind=kind)

    def framework(self, type: str, **fields: Any) -> None:
        """Emit an event of ours, for callers that include `antiphon:events`; for all others this does nothing."""
        if self.framework_events:
            self._emit(f"antiphon:{type}", source="framework", **fields)

    def close_item(self) -> None:
        """Close the message or reasoning item that is open, if there is one."""
        self._write_held()
        self._close_open("completed")

    def close(self, status: str = "completed") -> None:
        """Close all that is open, with that status."""
        while self._calls:
            self.close_call(self._calls[0], status)
        while self.running:
            call = self.running[0]
            self.end_call(call, call.kind.interrupted, _interruption(call.kind))
        self._write_held()
        self._close_open(status)

    def standing(self) -> list[Any]:
        """Return the output as it stands: the items, and the text of what is still being written."""
        written: list[OpenPart | OpenCall] = [*(self._open.parts if self._open else ()), *self._calls, *self.running]
        return [*self.response["output"], *("".join(one.pieces) for one in written)]

    # Private.

    def _emit(self, type: str, **fields: Any) -> None:
        event = {"type": type, "sequence_number": self._sequence_number, **fields}
        self._events.entries.append(event)  # type: ignore[arg-type]  # its fields depend on its type
        self._sequence_number += 1

    def _tell(self, call: OpenCall, types: Iterable[str]) -> None:
        for type in types:
            self._emit(type, item_id=call.item["id"], output_index=call.index)

    def _snapshot(self) -> Response:
        return {**self.response, "output": [*self.response["output"]]}

    def _add(self, item: Item) -> int:
        index = len(self.response["output"])
        self.response["output"].append(item)
        if item["type"] == "reasoning":
            self._last_reasoning = item["id"]
        self._emit("response.output_item.added", output_index=index, item=item)
        return index

    def _done(self, index: int, item: Item) -> None:
        self.response["output"][index] = item
        self._emit("response.output_item.done", output_index=index, item=item)

    def _write(self, rows: tuple[PartType, ...], deltas: Sequence[str], logprobs: list[Any] | None = None) -> OpenItem:
        open_ = self._open
        if open_ is None or open_.rows is not rows:
            open_ = self._turn_to(rows)
        # Two parts take turns: each delta is an event of the one, then of the other.
        for texts in (deltas,) if len(rows) == 1 else [(delta,) for delta in deltas]:
            for part in open_.parts:
                part.pieces += texts
                if logprobs:
                    part.extra["logprobs"] += logprobs
                    for delta in texts:
                        self._emit(part.row.delta, **part.where, delta=delta, logprobs=logprobs)
                else:
                    self._events.entries.append((part.delta, self._sequence_number, texts))
                    self._sequence_number += len(texts)
        return open_

    def _turn_to(self, rows: tuple[PartType, ...]) -> OpenItem:
        """Resolve where a piece belongs; if that is not what is open, close the one and open the other."""
        if rows is not TEXT:
            self._write_held()
        open_ = self._open
        if open_ is not None and open_.rows is rows:
            return open_
        if open_ is not None and open_.rows[0].item == rows[0].item:
            self._close_parts(open_)
            open_.rows = rows
        else:
            self._close_open("completed")
            started = {"id": self.new_id(rows[0].prefix), **rows[0].empty, "status": "in_progress"}
            item = with_fields({"type": rows[0].item}, started)
            open_ = self._open = OpenItem(self._add(item), item, rows)
        for row in rows:
            self._open_part(open_, row)
        return open_

    def _open_part(self, open_: OpenItem, row: PartType) -> None:
        index = len(list_field(open_.item, row.list))
        where = {"item_id": open_.item["id"], "output_index": open_.index, row.position: index}
        part = OpenPart(row, where, extra={name: [] for name in row.extra})
        open_.parts.append(part)
        self._emit(row.part_added, **part.where, part=part.content())

    def _close_parts(self, open_: OpenItem) -> None:
        for part in open_.parts:
            content = part.content()
            fields = {name: content.get(name, []) for name in part.row.told}
            self._emit(part.row.done, **part.where, **fields)
            self._emit(part.row.part_done, **part.where, part=content)
            open_.item = with_fields(open_.item, {part.row.list: [*list_field(open_.item, part.row.list), content]})
        open_.parts = []

    def _close_open(self, status: str) -> None:
        open_, self._open = self._open, None
        if open_ is None:
            return
        if open_.source:
            text = "".join(open_.parts[0].pieces)
            self.upstream.setdefault(open_.item["id"], {}).setdefault(open_.source, text)
        self._close_parts(open_)
        item: Item = {**open_.item, "status": status}
        if self._seal and item["type"] == "reasoning":
            item["encrypted_content"] = self._seal(settled(self.upstream.get(item["id"], {})))
        self._done(open_.index, item)


def _interruption(kind: ItemType) -> dict[str, Any]:
    """Return what an item says of having been interrupted, beside its status."""
    return kind.error("The response ended before this was done.") if kind.interrupted == "failed" else {}


def settled(upstream: Upstream) -> Upstream:
    """Return what a backend said, with what was still being put together (a callable) as it stands now."""
    return {name: value() if callable(value) else value for name, value in upstream.items()}
