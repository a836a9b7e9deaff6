"""Put events on the wire."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from app.core.types.request import Event

DONE_FRAME = b"data: [DONE]\n\n"
COMMENT = b": keepalive\n\n"


def encode_sse(events: Iterable[Event]) -> bytes:
    """Encode events as one run of server-sent events: one write, however many events."""
    dumps = orjson.dumps
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), dumps(event)) for event in events])
