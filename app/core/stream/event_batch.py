"""
The events that an `EventBuilder` has built since it was last asked for them.

Nearly all events are deltas of a part that is open, and differ in their number and their text alone. They are stored as
that, and what they share is encoded once per part. To a reader a batch is a sequence of dicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from app.core.types.request import Event


class DeltaFields:
    """What the delta events of one part or call share: all but their number and their text."""

    __slots__ = ("_after", "_before", "_sse", "type")

    def __init__(self, type: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """The events have the fields of `before`, then `delta`, then those of `after`."""
        self.type = type
        self._before, self._after = before, after
        self._sse: bytes | None = None

    def event(self, number: int, delta: str) -> Event:
        """Return an event with its sequence number and text."""
        return {"type": self.type, "sequence_number": number, **self._before, "delta": delta, **self._after}  # type: ignore[typeddict-item]  # its fields depend on its type

    @property
    def sse(self) -> bytes:
        """A format string of the server-sent event, for its number and the JSON of its text."""
        if self._sse is None:
            head, tail = orjson.dumps(self.event(-1, "\\")).split(b'"\\\\"')
            before, after = head.replace(b"%", b"%%").split(b":-1,")
            name = self.type.encode()
            self._sse = b"event: %b\ndata: %b:%%d,%b%%b%b\n\n" % (name, before, after, tail.replace(b"%", b"%%"))
        return self._sse


class DeltaEvents(NamedTuple):
    """Delta events that follow one another, one for each of `deltas`; `number` is that of the first."""

    fields: DeltaFields
    number: int
    deltas: Sequence[str]

    def events(self) -> list[Event]:
        """Return the events."""
        return [self.fields.event(number, delta) for number, delta in enumerate(self.deltas, self.number)]


class EventBatch:
    """Events in their order."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[Event | DeltaEvents] = []

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __iter__(self) -> Iterator[Event]:
        for entry in self.entries:
            if isinstance(entry, dict):
                yield entry
            else:
                yield from entry.events()

    def extend(self, later: EventBatch) -> None:
        """Add the events of a later batch."""
        self.entries += later.entries

    @property
    def first(self) -> Event:
        """The first event of a batch that is not empty."""
        entry = self.entries[0]
        return entry if isinstance(entry, dict) else entry.events()[0]

    @property
    def last(self) -> Event:
        """The last event of a batch that is not empty."""
        entry = self.entries[-1]
        return entry if isinstance(entry, dict) else entry.events()[-1]
