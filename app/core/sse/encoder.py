"""Put events on the wire."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from app.core.types.request import Event

DONE = b"data: [DONE]\n\n"
COMMENT = b": keepalive\n\n"


def sse(events: Iterable[Event]) -> bytes:
    """Encode events as one run of server-sent events: one write, however many events."""
    dumps = orjson.dumps
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), dumps(event)) for event in events])
