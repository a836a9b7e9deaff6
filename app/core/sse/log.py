from __future__ import annotations

import re

import orjson

from app.core.dialects import Dialect
from app.core.types.request import Event

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
