"""
A batch of events, as `EventBuilder.take` returns it.

Nearly all events are deltas of an open part and differ only in sequence number and text. Only these two are stored per
event; the shared fields are encoded once per part. Iterating over a batch yields dicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import orjson

from app.core.size import LARGE
from app.core.types import JSONMapping
from app.core.types.request import Event


class DeltaFields:
    """The shared fields of the delta events of one part or call: all except sequence number and text."""

    __slots__ = ("_after", "_template", "before", "type")

    def __init__(self, event_type: str, before: JSONMapping, after: JSONMapping) -> None:
        """The events have the fields of `before`, then `delta`, then those of `after`."""
        self.type = event_type
        self.before, self._after = before, after
        self._template: bytes | None = None

    def event(self, number: int, delta: str) -> Event:
        """Return an event with its sequence number and text."""
        event = {"type": self.type, "sequence_number": number, **self.before, "delta": delta, **self._after}
        return event  # type: ignore[return-value]  # its fields depend on its type

    def sse(self, number: int, deltas: Sequence[str]) -> bytes:
        """Return the server-sent events with these texts, of which the first has that sequence number."""
        template = self._template
        if template is None:
            template = self._template = self._sse_template()
        if len(deltas) == 1:
            return template % (number, orjson.dumps(deltas[0]))
        return b"".join([template % (at, orjson.dumps(delta)) for at, delta in enumerate(deltas, number)])

    def _sse_template(self) -> bytes:
        """Return a format string of an event that takes the sequence number and the JSON of the text."""
        head, tail = orjson.dumps(self.event(-1, "\\")).split(b'"\\\\"')
        before, after = head.replace(b"%", b"%%").split(b":-1,")
        name = self.type.encode()
        return b"event: %b\ndata: %b:%%d,%b%%b%b\n\n" % (name, before, after, tail.replace(b"%", b"%%"))


# Consecutive delta events: their shared fields, the sequence number of the first, and their texts.
DeltaEvents: TypeAlias = tuple[DeltaFields, int, Sequence[str]]


def events_of(run: DeltaEvents) -> list[Event]:
    """Return the events of a run of deltas."""
    fields, first, deltas = run
    return [fields.event(number, delta) for number, delta in enumerate(deltas, first)]


class EventBatch:
    """A sequence of events, in order."""

    __slots__ = ("characters", "entries")

    def __init__(self, entries: list[Event | DeltaEvents] | None = None) -> None:
        self.entries = [] if entries is None else entries
        self.characters = 0  # of the texts in its events, other than deltas

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __iter__(self) -> Iterator[Event]:
        for entry in self.entries:
            if isinstance(entry, tuple):
                yield from events_of(entry)
            else:
                yield entry

    def extend(self, later: EventBatch) -> None:
        """Append the events of a later batch."""
        self.entries += later.entries
        self.characters += later.characters

    def parts(self) -> list[EventBatch]:
        """Return the batch, or one batch per entry if it is large: the final events repeat a text up to four times."""
        if self.characters <= LARGE or len(self.entries) == 1:
            return [self]
        return [EventBatch([entry]) for entry in self.entries]

    @property
    def first(self) -> Event:
        """The first event of a batch that is not empty."""
        entry = self.entries[0]
        return events_of(entry)[0] if isinstance(entry, tuple) else entry

    @property
    def last(self) -> Event:
        """The last event of a batch that is not empty."""
        entry = self.entries[-1]
        return events_of(entry)[-1] if isinstance(entry, tuple) else entry
