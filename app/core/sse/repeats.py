"""
Decode events that differ from an earlier one only in their text.

Nearly all events of a stream are the same bytes except for one JSON string, a piece of the answer's text. An
`EventPattern` is the bytes around that string, learned from an event that was parsed. In later events with the same
surroundings only the string is parsed, at a fraction of the cost.

The result is always that of parsing the whole event: a match is the event from which the pattern was learned, with
another JSON string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

import orjson

from app.core.types import JSONObject
from app.core.types.deltas import Delta

RawEvent: TypeAlias = JSONObject  # the JSON of an event, as the server sends it

# Returns the delta for repeated events, given their texts; None if the texts are to be ignored.
ReadTexts: TypeAlias = Callable[[list[str]], Delta | None]

# Returns an event's text field and the function that reads its texts in later events; None if the event has no text or
# another relevant field.
FindText: TypeAlias = Callable[[RawEvent], tuple[str, ReadTexts] | None]


class RepeatedEvent:
    """Consecutive events that differ from an earlier one only in their `texts`."""

    __slots__ = ("read", "texts")

    def __init__(self, read: ReadTexts, texts: list[str]) -> None:
        self.read = read
        self.texts = texts


ServerEvent: TypeAlias = RawEvent | RepeatedEvent


# Bytes as numbers: `in` tries first whether its operand is one, which takes long to find out for bytes.
_LINE_END, _BACKSLASH = b"\n\\"

# Consecutive patterns without a match, after which no more are learned: some servers add random padding to chunks.
_ATTEMPTS = 4


class RepeatDecoder:
    """Learns the pattern of one stream's events, and decodes the events that match it."""

    def __init__(self, find_text: FindText) -> None:
        self._find_text = find_text
        self._pattern: EventPattern | None = None
        self._attempts = _ATTEMPTS
        self.enabled = False  # whether `match_frame` may match: the next byte of the stream begins an event

    def learn(self, event: bytes, parsed: RawEvent) -> None:
        """Learn from an event that was parsed, if it has a text and no other relevant field."""
        if self._attempts and (pattern := pattern_of(event, parsed, self._find_text)):
            self._pattern = pattern
            self._attempts -= 1

    def match(self, events: Sequence[bytes], start: int = 0) -> RepeatedEvent | None:
        """
        Decode the events from index `start` on, up to the first that does not match; None if there are none.

        Each event is one line.
        """
        pattern = self._pattern
        if pattern is None:
            return None
        head, tail = pattern.head, pattern.tail
        around = len(head) + len(tail)
        strings = []
        for event in islice(events, start, None) if start else events:
            string = event.removeprefix(head).removesuffix(tail)
            if len(string) + around != len(event):
                break
            strings.append(string)
        texts = _parsed(strings) if strings else None
        if not texts:
            return None
        self._attempts = _ATTEMPTS
        return RepeatedEvent(pattern.read, texts)

    def match_frame(self, frame: bytes) -> Delta | None:
        """Return the delta of a read that is one event with the blank line after it; None if it does not match."""
        pattern = self._pattern
        if pattern is None or not self.enabled:
            return None
        value = frame.removeprefix(pattern.frame_head).removesuffix(pattern.frame_tail)
        # Several events have line ends between them, as JSON has not within a string.
        if len(value) + pattern.frame_size != len(frame) or _LINE_END in value:
            return None
        try:
            text = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
        if not (text and isinstance(text, str)):
            return None
        self._attempts = _ATTEMPTS
        return pattern.read([text])


def _parsed(strings: list[bytes]) -> list[str]:
    """Parse JSON strings without their quotes, up to the first that is invalid or empty."""
    joined = b'","'.join(strings)
    # If there are no other quotes than these, they can be parsed all at once.
    if joined.count(b'"') == 2 * (len(strings) - 1) and _BACKSLASH not in joined and b"" not in strings:
        try:
            texts: list[str] = orjson.loads(b'["%b"]' % joined)
        except orjson.JSONDecodeError:
            pass
        else:
            return texts
    texts = []
    for string in strings:
        try:
            text = orjson.loads(b'"%b"' % string)
        except orjson.JSONDecodeError:
            break
        if not text:
            break
        texts.append(text)
    return texts


class EventPattern:
    """The bytes around the text of an event, and how the text is read."""

    __slots__ = ("frame_head", "frame_size", "frame_tail", "head", "read", "tail")

    def __init__(self, head: bytes, tail: bytes, read: ReadTexts) -> None:
        """Each event begins with `head` and ends with `tail`; the quotes of the JSON string belong to them."""
        self.head, self.tail, self.read = head, tail, read
        # The bytes around the string with its quotes, in an event with the blank line after it.
        self.frame_head, self.frame_tail = head[:-1], tail[1:] + b"\n\n"
        self.frame_size = len(self.frame_head) + len(self.frame_tail)


def pattern_of(event: bytes, parsed: RawEvent, find_text: FindText) -> EventPattern | None:
    """
    Return the pattern of an event that was parsed.

    None if the event has no text, or another relevant field, or if its text is not easy to locate.
    """
    found = find_text(parsed)
    if found is None or b"\\" in event:
        return None
    field, read = found
    # In JSON without a backslash, a name in quotes with a colon behind it is the name of a member.
    name = b'"%b"' % field.encode()
    before, colon, value = event.partition(name + b":")
    if not colon or event.count(name) != 1:
        return None
    padding = len(value) - len(value := value.lstrip(b" "))
    end = value.find(b'"', 1) + 1
    if value[:1] != b'"' or not end:
        return None
    return EventPattern(before + colon + b" " * padding + b'"', value[end - 1 :], read)
