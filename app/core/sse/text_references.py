"""
Encode events for an event log, which stores each large text once.

The text of a message is in its deltas, in three events that end its part and its item, and in the terminal event. In an
event log, the later ones have a reference in place of a large text; readers of the log replace it by the text, which
they find in the earlier events. A reference is between two NUL bytes, which JSON does not contain.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import orjson

from app.core.bounded_json import cuts_of_text, json_weight, parts_of_json, pieces_of_text
from app.core.size import TEXT_PIECE
from app.core.sse.encoder import encode_sse
from app.core.stream.event_batch import DeltaEvents, DeltaFields, EventBatch
from app.core.types.request import Event

_MARK = b"\0"
_DELTA = 1024  # characters that the deltas of a text have on average, so that it is worth reading them again
_HEAD = 200  # bytes
_FRAME = 200  # characters of a delta event besides its text


class TextReference(NamedTuple):
    """A text in earlier events of the log: as JSON, without quotation marks, in one event or in several."""

    first: int  # sequence number of the first of these events
    last: int  # and of the last; others may be between them
    head: bytes  # what is before the text in each of them, up to its quotation mark

    def encoded(self) -> bytes:
        """Return the reference as it is in an event."""
        return b"%b%d %d %b%b" % (_MARK, *self, _MARK)

    @classmethod
    def decoded(cls, data: bytes) -> TextReference:
        """Return the reference that is between two marks."""
        first, last, head = data.split(b" ", 2)
        return cls(int(first), int(last), head)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the pieces of the text that are in encoded events."""
        begin = data.find(self.head)
        while begin >= 0:
            cuts = cuts_of_text(data, begin + len(self.head))
            assert cuts
            for start, end in pairwise(cuts):
                yield data[start:end]
            begin = data.find(self.head, cuts[-1]) if self.first < self.last else -1


def split_references(data: bytes) -> Iterator[bytes | TextReference]:
    """Yield the references in events of a log, and the bytes between them."""
    for index, part in enumerate(data.split(_MARK)):
        yield TextReference.decoded(part) if index % 2 else part


def has_references(data: bytes) -> bool:
    """Return whether events of a log have references."""
    return _MARK in data


class LogEncoder:
    """Encodes the events of one run for its log; takes all of them, in order."""

    def __init__(self) -> None:
        self._deltas: dict[tuple[object, ...], _Deltas] = {}  # of the open parts and calls, by their place
        # Where the log has a text, by the `id` of the string, which is kept so that the `id` stays its own.
        self._texts: dict[int, tuple[str, TextReference]] = {}

    def encode(self, events: EventBatch) -> bytes:
        """Encode the next events."""
        encoded = io.BytesIO()
        for entry in events.entries:
            if isinstance(entry, tuple):
                fields, first, texts = entry
                self._note_deltas(fields, first, texts)
                encoded.write(fields.sse(first, texts))
            else:
                self._note_end(entry)
                if json_weight(entry) > TEXT_PIECE:
                    encoded.writelines(self._pieces(entry))
                else:
                    encoded.write(encode_sse([entry]))
        return encoded.getvalue()

    def _note_deltas(self, fields: DeltaFields, first: int, texts: Sequence[str]) -> None:
        place = _place(fields.before)
        deltas = self._deltas.get(place)
        if deltas is None:
            deltas = self._deltas[place] = _Deltas(orjson.dumps(fields.before)[1:-1] + b',"delta":"', first)
        deltas.last = first + len(texts) - 1
        deltas.count += len(texts)
        deltas.characters += sum(map(len, texts))

    def _note_end(self, event: Event) -> None:
        """Note where the text of a part or call is, if the event is the one that ends its deltas."""
        deltas = self._deltas.pop(_place(event), None) if event["type"].endswith(".done") else None
        if deltas and deltas.characters > max(TEXT_PIECE, _DELTA * deltas.count):
            for value in event.values():
                if isinstance(value, str) and len(value) == deltas.characters:
                    self._texts[id(value)] = value, TextReference(deltas.first, deltas.last, deltas.head)

    def _pieces(self, event: Event) -> Iterator[bytes]:
        """Yield the pieces of an encoded event, with references in place of texts that are in the log."""
        number = event["sequence_number"]
        texts: dict[int, tuple[str, TextReference]] = {}
        rest = b"event: %b\ndata: " % event["type"].encode()  # the event without its large texts
        yield rest
        for part in parts_of_json(event):
            if isinstance(part, bytes):
                rest += part
                yield part
            elif known := self._texts.get(id(part)):
                rest += _MARK
                yield known[1].encoded()
            else:
                head = rest[rest.rfind(_MARK) + 1 :][-_HEAD:]
                if rest.find(head) + len(head) == len(rest):
                    texts[id(part)] = part, TextReference(number, number, head)
                rest += _MARK
                yield from pieces_of_text(part)
        self._texts |= texts
        yield b"\n\n"


@dataclass(slots=True)
class _Deltas:
    head: bytes  # see `TextReference`
    first: int
    last: int = 0
    count: int = 0
    characters: int = 0


def _place(fields: Mapping[str, object]) -> tuple[object, ...]:
    """Return what identifies a part or call in its events."""
    return tuple(map(fields.get, ("item_id", "output_index", "content_index", "summary_index")))


def weight_of_deltas(run: DeltaEvents) -> int:
    """Return about how many characters delta events take when they are encoded."""
    return sum(map(len, run[2])) + _FRAME * len(run[2])


def split_batch(events: EventBatch) -> Iterator[EventBatch]:
    """Yield events in parts that are encoded and appended one by one: a large event is one of its own."""
    part, size = EventBatch(), 0
    for entry in events.entries:
        weight = weight_of_deltas(entry) if isinstance(entry, tuple) else json_weight(entry)
        if part and size + weight > TEXT_PIECE:
            yield part
            part, size = EventBatch(), 0
        part.entries.append(entry)
        part.characters += weight
        size += weight
    if part:
        yield part
