"""
Decode events that differ from an earlier event only in a text, and in a count.

A pattern holds the bytes around a parsed event's text. In later events with the same bytes (nearly all of a
stream), only that JSON string is parsed. The digits of a count, such as `sequence_number`, are left out of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import orjson

from app.core.types import JSONObject
from app.core.types.deltas import Delta

RawEvent: TypeAlias = JSONObject

# Returns the delta for repeated events; None if their texts are ignored.
ReadTexts: TypeAlias = Callable[[list[str]], Delta | None]

# An event's text field and the reader for later texts; None without a text, or with another relevant field.
FindText: TypeAlias = Callable[[RawEvent], tuple[str, ReadTexts] | None]


class RepeatedEvent:
    __slots__ = ("read", "texts")

    def __init__(self, read: ReadTexts, texts: list[str]) -> None:
        self.read = read
        self.texts = texts


ServerEvent: TypeAlias = RawEvent | RepeatedEvent


# As integers, because `in` is slow with a bytes operand.
LINE_END = b"\n"[0]
_BACKSLASH = b"\\"[0]
_DIGITS = b"0123456789"

# Patterns without a match before learning stops: some servers add random padding to chunks.
_ATTEMPTS = 4


class PatternMatcher:
    def __init__(self, find_text: FindText, count: re.Pattern[bytes] | None = None) -> None:
        """`count` finds a number that differs in each event, as its group 1."""
        self._find_text = find_text
        self._count = count
        self._pattern: _EventPattern | None = None
        self._attempts = _ATTEMPTS
        self._frame: _EventPattern | None = None  # for the next read, if its first byte begins an event

    def learn(self, event: bytes, parsed: RawEvent) -> None:
        if (
            self._attempts
            and (found := self._find_text(parsed))
            and (pattern := _pattern_of(event, *found, self._count))
        ):
            self._pattern = pattern
            self._attempts -= 1

    def match(self, events: Sequence[bytes], start: int) -> RepeatedEvent | None:
        """Match single-line events from index `start` up to the first mismatch; None if the first does not match."""
        pattern = self._pattern
        if pattern is None or not events[start].startswith(pattern.head):
            return None
        head, inner, tail, count_first = pattern.head, pattern.inner, pattern.tail, pattern.count_first
        around, strings = pattern.size, []
        for event in events[start:]:
            string = event.removeprefix(head).removesuffix(tail)
            if len(event) - len(string) != around:
                break
            # As in `match_frame`: a shared function would cost a call per event. `_parsed` stops if `inner` remains.
            if inner:
                if count_first:
                    string = string.lstrip(_DIGITS).removeprefix(inner)
                else:
                    string = string.rstrip(_DIGITS).removesuffix(inner)
            strings.append(string)
        texts = _parsed(strings) if strings else None
        if not texts:
            return None
        self._attempts = _ATTEMPTS
        return RepeatedEvent(pattern.read, texts)

    def expect_frame(self, between_events: bool) -> None:
        """Called after each read; `between_events`: the next byte begins an event."""
        pattern = self._pattern if between_events else None
        if pattern and pattern.frame is None:
            pattern.frame = pattern.with_blank_line()
        self._frame = pattern.frame if pattern else None

    def match_frame(self, frame: bytes) -> Delta | None:
        """The delta for a read with exactly one event and its blank line; None without a match."""
        pattern = self._frame
        if pattern is None:
            return None
        value = frame.removeprefix(pattern.head).removesuffix(pattern.tail)
        # Several events are separated by line ends, which JSON strings cannot contain.
        if len(frame) - len(value) != pattern.size or LINE_END in value:
            return None
        if inner := pattern.inner:
            if pattern.count_first:
                value = value.lstrip(_DIGITS).removeprefix(inner)
            else:
                value = value.rstrip(_DIGITS).removesuffix(inner)
        try:
            text = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
        if type(text) is not str or not text:
            return None
        self._attempts = _ATTEMPTS
        read = pattern.read  # in Python 3.11, `x.f()` is slow if `f` is not a method
        return read([text])


def _parsed(strings: list[bytes]) -> list[str]:
    """Without quotes, up to the first invalid or empty string."""
    joined = b'","'.join(strings)
    # An escaped quote results in fewer texts.
    if joined.count(b'"') == 2 * (len(strings) - 1) and all(strings):
        try:
            texts: list[str] = orjson.loads(b'["%b"]' % joined)
        except orjson.JSONDecodeError:
            pass
        else:
            if len(texts) == len(strings):
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


class _EventPattern:
    """The bytes around a text: `head`, `tail`, and `inner` between the text and a count; empty without a count."""

    __slots__ = ("count_first", "frame", "head", "inner", "read", "size", "tail")

    def __init__(self, head: bytes, inner: bytes, tail: bytes, read: ReadTexts, *, count_first: bool = False) -> None:
        self.head, self.inner, self.tail = head, inner, tail
        self.size = len(head) + len(tail)
        self.read = read
        self.count_first = count_first
        self.frame: _EventPattern | None = None

    def with_blank_line(self) -> _EventPattern:
        """For whole frames; the JSON string's quotes are part of the text."""
        head, inner, tail = self.head.removesuffix(b'"'), self.inner.strip(b'"'), self.tail.removeprefix(b'"')
        return _EventPattern(head, inner, tail + b"\n\n", self.read, count_first=self.count_first)


def _pattern_of(event: bytes, field: str, read: ReadTexts, count: re.Pattern[bytes] | None) -> _EventPattern | None:
    if _BACKSLASH in event:
        return None
    # In JSON without backslashes, a quoted name followed by a colon is a member name.
    name = b'"%b"' % field.encode()
    before, colon, value = event.partition(name + b":")
    if not colon or event.count(name) != 1:
        return None
    padding = len(value) - len(value := value.lstrip(b" "))
    end = value.find(b'"', 1) + 1
    if value[:1] != b'"' or not end:
        return None
    head, tail = before + colon + b" " * padding + b'"', value[end - 1 :]
    number = count.search(event) if count else None
    if number is None:
        return _EventPattern(head, b"", tail, read)
    begin, end = number.span(1)
    if begin < len(head):
        return _EventPattern(head[:begin], head[end:], tail, read, count_first=True)
    return _EventPattern(head, event[len(event) - len(tail) : begin], event[end:], read)
