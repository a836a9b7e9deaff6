"""
Decode chunks that differ from an earlier one only in their text.

Nearly all events of a stream are the same bytes but for one JSON string, a piece of the answer's text. An
`EventPattern` is what surrounds the string, learned from an event that was parsed. Of later events with the same
surroundings only the string is parsed, at a fraction of the cost.

For any bytes the result is that of parsing the whole event: what a pattern matches is the event that it was learned
from with another JSON string in place of one, so it is the same chunk with another text. Anything else does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

import orjson

from app.core.types.chunk import TEXT_PATHS, ChunkRun, RawChunk

# Returns the name of the member with a chunk's text; None if there is none, or another relevant one.
TextField: TypeAlias = Callable[[RawChunk], str | None]

# Bytes as numbers: `in` tries first whether its operand is one, which takes long to find out for bytes.
_LINE_END, _BACKSLASH = b"\n\\"

# Consecutive patterns without a match, after which no more are learned: some servers add random padding to chunks.
_ATTEMPTS = 4


class RepeatDecoder:
    """Learns the pattern of one stream's events, and decodes the events that match it."""

    def __init__(self, text_field: TextField | None = None) -> None:
        self._text_field = text_field or chat_text
        self._pattern: EventPattern | None = None
        self._attempts = _ATTEMPTS
        self.enabled = False  # whether `match_frame` may match: the next byte of the stream begins an event

    def learn(self, event: bytes, chunk: RawChunk) -> None:
        """Learn from an event that was parsed as a chunk, if it has a text and no other relevant field."""
        if self._attempts and (pattern := pattern_of(event, chunk, self._text_field)):
            self._pattern = pattern
            self._attempts -= 1

    def match(self, events: Sequence[bytes], start: int = 0) -> ChunkRun | None:
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
        return ChunkRun(pattern.chunk, pattern.field, texts)

    def match_frame(self, frame: bytes) -> ChunkRun | None:
        """Decode a read that is one event with the blank line after it; None if it does not match."""
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
        return ChunkRun(pattern.chunk, pattern.field, [text])


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
    """The bytes around the text of an event, and the chunk that the pattern was learned from."""

    __slots__ = ("chunk", "field", "frame_head", "frame_size", "frame_tail", "head", "tail")

    def __init__(self, head: bytes, tail: bytes, chunk: RawChunk, field: str) -> None:
        """Each event begins with `head` and ends with `tail`; the quotes of the JSON string belong to them."""
        self.head, self.tail, self.chunk, self.field = head, tail, chunk, field
        # What is around the string with its quotes, in an event with the blank line after it.
        self.frame_head, self.frame_tail = head[:-1], tail[1:] + b"\n\n"
        self.frame_size = len(self.frame_head) + len(self.frame_tail)


def pattern_of(event: bytes, chunk: RawChunk, text_field: TextField) -> EventPattern | None:
    """
    Return the pattern of an event that was parsed as a chunk.

    None if the chunk has no text, or another relevant field, or if its text is not easy to locate.
    """
    field = text_field(chunk)
    if field is None or b"\\" in event:
        return None
    # In JSON without a backslash, a name in quotes with a colon behind it is the name of a member.
    name = b'"%b"' % field.encode()
    before, colon, value = event.partition(name + b":")
    if not colon or event.count(name) != 1:
        return None
    padding = len(value) - len(value := value.lstrip(b" "))
    end = value.find(b'"', 1) + 1
    if value[:1] != b'"' or not end:
        return None
    return EventPattern(before + colon + b" " * padding + b'"', value[end - 1 :], chunk, field)


def chat_text(chunk: RawChunk) -> str | None:
    """Return the name in `TEXT_PATHS` of a chunk's text; None if there is none, or another relevant field."""
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1 or type(choice := choices[0]) is not dict:
        return None
    delta = choice.get("delta")
    if type(delta) is not dict or choice.get("finish_reason") or choice.get("logprobs"):
        return None
    names = [name for name, value in delta.items() if value and name != "role"]
    if names == ["tool_calls"]:
        return "arguments" if _is_arguments(delta["tool_calls"]) else None
    return names[0] if len(names) == 1 and names[0] in TEXT_PATHS and type(delta[names[0]]) is str else None


def _is_arguments(calls: object) -> bool:
    """Return whether the `tool_calls` of a delta are a piece of the arguments of one call, and nothing else."""
    if type(calls) is not list or len(calls) != 1 or type(call := calls[0]) is not dict or call.get("id"):
        return False
    function = call.get("function")
    if type(function) is not dict or type(function.get("arguments")) is not str or not function["arguments"]:
        return False
    return not any(value for name, value in function.items() if name != "arguments")
