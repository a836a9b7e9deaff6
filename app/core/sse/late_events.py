"""
Encode events for the event log of a background run, without large texts that the stored response has as well.

The text of a message is in its deltas, in three events that end its part and its item, and in the terminal event. Where
it is large, the log has the later events without it; whoever reads them takes it from the response, which is stored
before its terminal event.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from app.core.size import LARGE, TEXT_PIECE, Size
from app.core.sse.encoder import encode_sse, event_pieces
from app.core.stream.event_batch import DeltaEvents, EventBatch
from app.core.types.request import Event, Response

_MARK = b": the texts of this event are in the response\n"  # a comment before an event
_HOLDERS = ("response", "item", "part")  # the fields with objects of which texts are left out
_PARTS = ("content", "summary")  # the fields of an item that have its parts
_TEXTS = ("text", "refusal", "arguments", "input", "code")  # of a part or an item, which events repeat by itself
_FRAME = 200  # characters of an event besides its texts


def lacks_texts(data: bytes) -> bool:
    """Return whether the event in a batch of the log is one without its texts."""
    return data.startswith(_MARK)


def is_sent_in_pieces(data: bytes) -> bool:
    """Return whether a batch of the log is sent in pieces: one that is large, or will be with its texts."""
    return lacks_texts(data) or Size(len(data)).large


def with_texts(event: Mapping[str, Any], response: Response) -> Event:
    """Return an event with the texts that it lacks, from the response to which it belongs."""
    stored: Mapping[str, Any] = response
    if "response" not in event:
        stored = item = response["output"][event["output_index"]]
        for name in _PARTS:
            if "item" not in event and f"{name}_index" in event:
                stored = item[name][event[f"{name}_index"]]
    for holder in _HOLDERS:
        if holder in event:
            return cast(Event, {**event, holder: {**stored, **event[holder]}})
    return cast(Event, {**{name: stored[name] for name in _TEXTS if name in stored}, **event})


class LogEncoder:
    """Encodes the events of one run for its log; takes all of them, in order."""

    def __init__(self, response: Callable[[], Response]) -> None:
        """`response` returns the response as it is now."""
        self._response = response
        self._written: Counter[object] = Counter()  # characters of the deltas of items, by id

    def encode(self, events: EventBatch) -> bytes:
        """Encode the next events."""
        encoded = io.BytesIO()
        for entry in events.entries:
            if isinstance(entry, tuple):
                fields, first, texts = entry
                self._written[fields.before.get("item_id")] += sum(map(len, texts))
                encoded.write(fields.sse(first, texts))
            elif events.size.large:
                encoded.writelines(self._pieces(entry))
            else:
                encoded.write(encode_sse([entry]))
        return encoded.getvalue()

    def _pieces(self, event: Event) -> Iterator[bytes]:
        rest = _without_texts(event)
        if self._is_late(event) and rest != event and self._is_restored(rest, event):
            yield _MARK
            event = rest
        yield from event_pieces(event)

    def _is_late(self, event: Mapping[str, Any]) -> bool:
        """Return whether the texts of an event were in deltas; what was not, followers get before the end."""
        item_id = event.get("item_id") or event.get("item", {}).get("id")
        return "response" in event or Size(self._written[item_id]).large

    def _is_restored(self, rest: Event, event: Event) -> bool:
        try:
            return with_texts(rest, self._response()) == event
        except LookupError:  # a part of an item that is still open
            return False


def _without_texts(fields: Any) -> Any:
    return {
        name: _without_texts(value) if name in _HOLDERS else value
        for name, value in fields.items()
        if name in _HOLDERS or not Size.of(value).large
    }


def weight_of_deltas(run: DeltaEvents) -> int:
    """Return about how many characters delta events take when they are encoded."""
    return sum(map(len, run[2])) + _FRAME * len(run[2])


def split_batch(events: EventBatch) -> Iterator[EventBatch]:
    """
    Yield events in parts that are encoded and appended one by one: a large event is one of its own.

    The events are removed from the batch, so that each can be freed when it is stored.
    """
    part = EventBatch()
    entries = events.entries
    entries.reverse()
    while entries:
        entry = entries.pop()
        size = Size(weight_of_deltas(entry)) if isinstance(entry, tuple) else Size.of(entry) + Size(_FRAME)
        if isinstance(entry, tuple) and size.characters > TEXT_PIECE and len(entry[2]) > 1:
            entries += reversed(_halves(entry))
            continue
        weight = LARGE + 1 if size.large else size.characters
        if part and part.characters + weight > TEXT_PIECE:
            yield part
            part = EventBatch()
        part.entries.append(entry)
        part.characters += weight
    if part:
        yield part


def _halves(run: DeltaEvents) -> tuple[DeltaEvents, DeltaEvents]:
    fields, first, texts = run
    middle = len(texts) // 2
    return (fields, first, texts[:middle]), (fields, first + middle, texts[middle:])
