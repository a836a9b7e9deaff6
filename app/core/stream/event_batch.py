"""
Batches of events from `EventBuilder`.

For deltas (nearly all events), a batch stores only sequence number and text; other fields are encoded once per part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import orjson

from app.core.bounded_json import LARGE
from app.core.types import JSONMapping
from app.core.types.request import Event


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
