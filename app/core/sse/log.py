"""Read encoded server-sent events, as an event log stores them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from app.core.dialects import Dialect
from app.core.sse.encoder import event_pieces
from app.core.types.request import Event

# Encoded JSON has no line breaks, so a blank line ends a frame.
_END = b"\n\n"
_HEAD = 256  # bytes in which the names of an event's type are
_PIECE = 256 * 1024  # bytes
# The begin of an event, since only there are two fields in two lines; with `^` it takes many times as long.
_REASONING = re.compile(
    rb'event: response\.reasoning(?:_text)?\.(delta|done)\ndata: \{"type":"response\.reasoning(?:_text)?\.\1"'
)


def decode_events(data: bytes) -> list[Event]:
    """Decode encoded events."""
    return [orjson.loads(frame.partition(b"\ndata: ")[2]) for frame in data.split(_END) if frame]


def events_after(data: bytes, first: int, after: int) -> bytes:
    """Return the events after sequence number `after`; `first` is that of the first event in `data`."""
    skipped = after - first + 1
    return data if skipped <= 0 else data.split(_END, skipped)[-1]


def pieces_in_dialect(data: bytes, dialect: Dialect) -> Iterator[bytes]:
    """Yield what `translate_dialect` returns for large data, in pieces."""
    at = 0
    while at < len(data):
        end = data.find(_END, at)
        end = len(data) if end < 0 else end + len(_END)
        yield translate_dialect(data[at : min(at + _HEAD, end)], dialect)
        for begin in range(at + _HEAD, end, _PIECE):
            yield data[begin : min(begin + _PIECE, end)]
        at = end


def event_in_dialect(event: Event, dialect: Dialect) -> Iterator[bytes]:
    """Yield an event in a dialect, in pieces."""
    pieces = event_pieces(event)
    yield translate_dialect(next(pieces) + next(pieces), dialect)
    yield from pieces


def translate_dialect(data: bytes, dialect: Dialect) -> bytes:
    """Return encoded events with the names of their types in a dialect, whichever they have now."""
    row = dialect.both[0]
    names = {b"delta": row.delta.encode(), b"done": row.done.encode()}

    def renamed(match: re.Match[bytes]) -> bytes:
        name = names[match[1]]
        return b'event: %b\ndata: {"type":"%b"' % (name, name)

    return _REASONING.sub(renamed, data)
