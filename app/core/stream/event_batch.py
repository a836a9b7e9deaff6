"""
Batches of events from `EventBuilder`, and events as server-sent events.

For deltas (nearly all events), a batch stores only sequence number and text; other fields are encoded once per part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import orjson

from app.core.bounded_json import LARGE, dumps
from app.core.types import JSONMapping
from app.core.types.request import Event

DONE_FRAME = b"data: [DONE]\n\n"
COMMENT = b": keepalive\n\n"
_END = b"\n\n"  # encoded JSON does not contain line breaks


class DeltaFields:
    """A part's or call's delta event fields, without sequence number and text."""

    __slots__ = ("_after", "_template", "before", "type")

    def __init__(self, event_type: str, before: JSONMapping, after: JSONMapping) -> None:
        """Events contain the `before` fields, then `delta`, then the `after` fields."""
        self.type = event_type
        self.before, self._after = before, after
        self._template: bytes | None = None

    def event(self, number: int, delta: str) -> Event:
        event = {"type": self.type, "sequence_number": number, **self.before, "delta": delta, **self._after}
        return event  # type: ignore[return-value]  # its fields depend on its type

    def sse(self, number: int, deltas: Sequence[str]) -> bytes:
        """Encode consecutive events; `number` is the first sequence number."""
        template = self._template
        if template is None:
            # The SSE frame, with placeholders for the number and the text.
            head, tail = orjson.dumps(self.event(-1, "\\")).split(b'"\\\\"')
            before, after = head.replace(b"%", b"%%").split(b":-1,")
            name, after_delta = self.type.encode(), tail.replace(b"%", b"%%")
            template = b"event: %b\ndata: %b:%%d,%b%%b%b\n\n" % (name, before, after, after_delta)
            self._template = template
        if len(deltas) == 1:
            return template % (number, orjson.dumps(deltas[0]))
        return b"".join(map(template.__mod__, enumerate(map(orjson.dumps, deltas), number)))


# Shared fields, first sequence number, and consecutive texts.
DeltaEvents: TypeAlias = tuple[DeltaFields, int, Sequence[str]]


def events_of(run: DeltaEvents) -> list[Event]:
    fields, first, deltas = run
    return [fields.event(number, delta) for number, delta in enumerate(deltas, first)]


class EventBatch(list["Event | DeltaEvents"]):
    characters = 0  # in texts other than deltas

    def events(self) -> list[Event]:
        return [event for entry in self for event in (events_of(entry) if isinstance(entry, tuple) else (entry,))]

    def add(self, later: EventBatch) -> None:
        self += later
        self.characters += later.characters

    def parts(self) -> list[EventBatch]:
        """Split by entry: the final events repeat a text up to four times."""
        if self.characters <= LARGE or len(self) == 1:
            return [self]
        return [EventBatch([entry]) for entry in self]

    @property
    def first(self) -> Event:
        entry = self[0]
        return events_of(entry)[0] if isinstance(entry, tuple) else entry

    @property
    def last(self) -> Event:
        entry = self[-1]
        return events_of(entry)[-1] if isinstance(entry, tuple) else entry


def encode_batch(events: EventBatch) -> bytes | list[EventBatch]:
    """Encode a batch, or return its parts if it is large."""
    if len(events) == 1:
        entry = events[0]
        if type(entry) is tuple:
            fields, number, deltas = entry
            return fields.sse(number, deltas)
    elif len(parts := events.parts()) > 1:
        return parts
    return encode_sse(events)


def encode_sse(events: Iterable[Event | DeltaEvents]) -> bytes:
    encoded: list[bytes] = []
    for entry in events:
        if isinstance(entry, tuple):
            fields, number, deltas = entry
            encoded.append(fields.sse(number, deltas))
        else:
            encoded.append(b"event: %b\ndata: %b\n\n" % (entry["type"].encode(), dumps(entry)))
    return b"".join(encoded)


def decode_events(data: bytes) -> list[Event]:
    return [orjson.loads(frame.partition(b"\ndata: ")[2]) for frame in data.split(_END) if frame]


def events_after(data: bytes, first: int, after: int) -> bytes:
    """Events after sequence number `after`; `first` is the first in `data`."""
    skipped = after - first + 1
    return data if skipped <= 0 else data.split(_END, skipped)[-1]
