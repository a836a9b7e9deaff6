"""Encode events, and read encoded events."""

from __future__ import annotations

import re
from collections.abc import Iterable

import orjson

from app.core.bounded_json import dumps
from app.core.dialects import Dialect
from app.core.stream.event_batch import DeltaEvents, EventBatch
from app.core.types.request import Event

DONE_FRAME = b"data: [DONE]\n\n"
COMMENT = b": keepalive\n\n"


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


# Encoded JSON does not contain line breaks.
_END = b"\n\n"
# Without `^`, which is much slower: only an event starts with `event:` followed by `data:`.
_REASONING = re.compile(
    rb'event: response\.reasoning(?:_text)?\.(delta|done)\ndata: \{"type":"response\.reasoning(?:_text)?\.\1"'
)


def decode_events(data: bytes) -> list[Event]:
    return [orjson.loads(frame.partition(b"\ndata: ")[2]) for frame in data.split(_END) if frame]


def events_after(data: bytes, first: int, after: int) -> bytes:
    """Events after sequence number `after`; `first` is the first in `data`."""
    skipped = after - first + 1
    return data if skipped <= 0 else data.split(_END, skipped)[-1]


def translate_dialect(data: bytes, dialect: Dialect) -> bytes:
    row = dialect.both[0]
    names = {b"delta": row.delta.encode(), b"done": row.done.encode()}

    def renamed(match: re.Match[bytes]) -> bytes:
        name = names[match[1]]
        return b'event: %b\ndata: {"type":"%b"' % (name, name)

    return _REASONING.sub(renamed, data)
