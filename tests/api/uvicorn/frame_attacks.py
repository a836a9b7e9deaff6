"""Floods of small WebSocket frames, and how the connection ends."""

from __future__ import annotations

from typing import NamedTuple

CONTINUATION, TEXT, BINARY, PING, PONG = 0, 1, 2, 9, 10
POLICY_VIOLATION = 1008


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame with an all-zero mask, which changes nothing."""
    return bytes([(0x80 if fin else 0) | opcode, 0x80 | len(data)]) + bytes(4) + data


def fragment(data: bytes = b"") -> bytes:
    return frame(CONTINUATION, data, fin=False)


class FrameAttack(NamedTuple):
    """A `first` frame, and `repeated` frames sent `times` times."""

    repeated: bytes
    times: int
    first: bytes = b""
    last: bytes = b""
    answers: int | None = None  # error messages on a connection that stays open; None: it is closed with 1008


BEGUN, ENDED = frame(TEXT, b"[", fin=False), frame(CONTINUATION, b"]")

FRAME_ATTACKS = {
    "empty pings": FrameAttack(frame(PING), 200_000),
    "pings of the largest size": FrameAttack(frame(PING, b"x" * 125), 20_000),
    "unsolicited pongs": FrameAttack(frame(PONG), 200_000),
    "pings and pongs in turn": FrameAttack(frame(PING) + frame(PONG), 100_000),
    "pings between fragments": FrameAttack(frame(PING), 200_000, first=BEGUN),
    "pings between messages": FrameAttack(frame(TEXT) + frame(PING), 10_000),
    "empty fragments": FrameAttack(fragment(), 200_000, first=BEGUN),
    "fragments of a byte": FrameAttack(fragment(b" "), 200_000, first=BEGUN),
    "fragments of a byte in a binary message": FrameAttack(fragment(b" "), 200_000, first=frame(BINARY, fin=False)),
    "fragments of a byte, then the end": FrameAttack(fragment(b" "), 20_000, first=BEGUN, last=ENDED),
    "as many fragments as are allowed": FrameAttack(fragment(b" "), 19_998, first=BEGUN, last=ENDED, answers=1),
    "as many pings as are allowed": FrameAttack(frame(PING), 100, last=frame(TEXT), answers=1),
    "empty messages": FrameAttack(frame(TEXT), 2_000, answers=2_000),
    "messages of a byte": FrameAttack(frame(TEXT, b"1"), 2_000, answers=2_000),
    "empty binary messages": FrameAttack(frame(BINARY), 2_000, answers=2_000),
    "messages of two fragments": FrameAttack(BEGUN + ENDED, 2_000, answers=2_000),
}
