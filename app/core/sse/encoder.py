from __future__ import annotations

from collections.abc import Iterable

from app.core.bounded_json import dumps
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
