"""
Split a model server's byte stream into server-sent events, and decode them.

The framing is WHATWG's, "9.2.6 Interpreting an event stream". Backends also send nulls, lists, bare words, unpaired
surrogates, and events without separators.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeAlias

import orjson

from app.core.bounded_json import MAX_VALUES, JSONTooLarge, check_values
from app.core.sse.repeats import LINE_END, PatternMatcher, RawEvent, ServerEvent
from app.errors import BackendError

# Real events with images or audio have a few million bytes.
MAX_EVENT_BYTES = 32 * 1024 * 1024
TOO_LONG = f"The backend sent more than {MAX_EVENT_BYTES // 1024**2} MiB in a single event or document."

_BLOCK = 1024 * 1024  # bytes
_CR = b"\r"[0]  # an integer, because `in` is slow with a bytes operand


class EventFramer:
    """
    Buffers a stream until events are complete, in linear time.

    `feed` raises `BackendError` if an event exceeds `MAX_EVENT_BYTES`.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # incomplete event, with LF line ends
        self._buffered = 0  # bytes in `_pieces`
        self._unmerged = 0
        self._after_cr = False  # the last byte was a CR; the next read can begin with its LF

    @property
    def between_events(self) -> bool:
        return not (self._pieces or self._after_cr)

    def feed(self, data: bytes) -> bytes | None:
        """The events that end in `data`, separated by blank lines, with LF line ends."""
        if self._after_cr or _CR in data:
            data = self._newlines(data)
        cut = data.rfind(b"\n\n")
        pieces = self._pieces
        if cut >= 0:
            block, rest = data[:cut], data[cut + 2 :]
        elif pieces and data.startswith(b"\n") and pieces[-1].endswith(b"\n"):
            pieces[-1] = pieces[-1][:-1]
            block, rest = b"", data[1:]
        else:
            self._buffer(data)
            return None
        if pieces:
            block = b"".join((*pieces, block))
            pieces.clear()
            self._buffered = 0
        if rest:
            pieces.append(rest)
            self._buffered = len(rest)
        return block

    def end(self) -> bytes:
        block = b"".join(self._pieces)
        self._pieces.clear()
        return block

    def _buffer(self, data: bytes) -> None:
        if not data:
            return
        self._pieces.append(data)
        self._buffered += len(data)
        self._unmerged += len(data)
        if self._unmerged > _BLOCK:
            self._merge()
        if self._buffered > MAX_EVENT_BYTES:
            self._pieces.clear()
            raise BackendError(TOO_LONG)

    def _merge(self) -> None:
        """Small pieces become a large block, which the allocator returns to the system when freed."""
        self._unmerged = 0
        small: list[bytes] = []
        while self._pieces and len(self._pieces[-1]) < _BLOCK:
            small.append(self._pieces.pop())
        self._pieces.append(b"".join(reversed(small)))

    def _newlines(self, data: bytes) -> bytes:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


_TOO_MANY_VALUES = f"The backend sent more than {MAX_VALUES} JSON values in a single event or document."

END: RawEvent = {"object": "done"}
UNPARSED: RawEvent = {"type": "ping"}  # in place of a skipped event

_END_MARK = b"data: [DONE]"
_PLAIN = b"data: {"  # the start of nearly all events

# Not JSON, but sent by Python servers. The spec writes -9999.0 for "very unlikely".
_CONSTANTS = {"-Infinity": -9999.0}


def _float(text: str) -> float | None:
    number = float(text)  # `-1e999` is another form of `-Infinity`
    return number if math.isfinite(number) else _CONSTANTS.get("-Infinity" if number < 0 else "Infinity")


class EventDecoder:
    """
    Decodes an event stream's body, fed in pieces of any size.

        decoder = EventDecoder()
        for data in reads:
            events += decoder.decode(data)
        events += decoder.end()

    The stream must have no byte order mark. `decode` raises `BackendError` for an event that is too long (see
    `EventFramer`) or has too many values.
    """

    def __init__(
        self, repeats: PatternMatcher | None = None, *, named: bool = False, skipped: tuple[bytes, ...] = ()
    ) -> None:
        """
        With `repeats`, an event that differs from an earlier event only in its text becomes a `RepeatedEvent`.

        `named`: event names become `type`. `skipped`: beginnings of named events that are not parsed.
        """
        self._named = named
        self._read = _event if named else _chunk
        self._framer = EventFramer()
        self._done = False
        self._joiner = _SurrogateJoiner()
        self._repeats = repeats
        self._skipped = skipped

    def decode(self, data: bytes) -> list[ServerEvent]:
        if self._done or not data:
            return []
        chunks = self._events(self._framer.feed(data))
        if self._repeats:
            between_events = self._framer.between_events and not (self._joiner.pending or self._done)
            self._repeats.expect_frame(between_events)
        return chunks

    def end(self) -> list[ServerEvent]:
        """Remaining events, possibly without a final blank line."""
        chunks = [] if self._done else self._events(self._framer.end())
        return chunks if self._done else [*chunks, *self._joiner.release()]

    def _events(self, block: bytes | None) -> list[ServerEvent]:
        if not block:
            return []
        events = block.split(b"\n\n")
        if is_long := len(block) > MAX_VALUES:  # shorter blocks have fewer values
            for event in events:
                check_piece(event)
        # Without second lines, each plain event is a whole frame.
        plain = LINE_END not in b"".join(events) and not self._joiner.pending
        del block  # free a large block before parsing its events
        chunks: list[ServerEvent] = []
        at = 0
        while at < len(events) and not self._done:
            if (plain or self._named) and self._repeats and (run := self._repeats.match(events, at)):
                chunks.append(run)
                at += len(run.texts)
                continue
            event = events[at]
            at += 1
            if event == _END_MARK and not self._joiner.pending:
                self._done = True
                chunks.append(END)
            elif plain and event.startswith(_PLAIN):
                text = memoryview(event)[6:] if is_long else event[6:]
                try:
                    chunk = orjson.loads(text)
                except orjson.JSONDecodeError:
                    plain = False  # from here on, a surrogate can be pending
                    del text
                    chunks += self._frame(b"", [event[6:]])
                    continue
                chunks.append(chunk)
                if self._repeats and not is_long:
                    self._repeats.learn(event, chunk)
            elif event.startswith(self._skipped):
                chunks.append(UNPARSED)
            else:
                quick = _two_lines(event) if self._named else None
                made = self._event(event) if quick is None else [quick]
                chunks += made
                if self._named and self._repeats and len(made) == 1 and not is_long:
                    self._repeats.learn(event, made[0])
        return chunks

    def _event(self, event: bytes) -> list[RawEvent]:
        name = b""
        data: list[bytes] = []
        chunks: list[RawEvent] = []
        for line in (*event.split(b"\n"), b""):
            if not line:
                chunks += self._frame(name, data)
                name, data = b"", []
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.strip() if value.strip() != b"message" else b""
            elif field == b"error":  # instead of `data`
                name, data = field, [value]
            elif line.lstrip()[:1] in (b"{", b"["):  # JSON without `data:`, or on the line after it
                data.append(line)
        return chunks

    def _frame(self, name: bytes, data: list[bytes]) -> list[RawEvent]:
        text = b"\n".join(data).strip()
        if not text or self._done:
            return []
        if text == b"[DONE]" or (len(text) < _SHORT and text.strip(b'"').upper() == b"[DONE]"):
            self._done = True
            return [*self._joiner.release(), END]
        try:
            chunk = self._read(name, orjson.loads(text))
            if not self._joiner.pending:
                return [] if chunk is None else [chunk]
        except orjson.JSONDecodeError:
            value = _loads(text)
            if isinstance(value, str) and not name and len(parts := _parts(text, data)) > 1:
                return [chunk for part in parts for chunk in self._frame(name, [part])]
            chunk = self._read(name, value)
        try:
            return [] if chunk is None else self._joiner.join(chunk)
        except RecursionError:  # hundreds of levels; real chunks have a few
            return []


def _two_lines(event: bytes) -> RawEvent | None:
    name, _, data = event.partition(b"\ndata: ")
    if not name.startswith(b"event: ") or LINE_END in name or LINE_END in data:
        return None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("type"), str) else None


def check_piece(data: bytes) -> None:
    """Raises `BackendError` for too many JSON values to parse."""
    try:
        check_values(data)
    except JSONTooLarge as error:
        raise BackendError(_TOO_MANY_VALUES) from error


_SHORT = 12  # bytes; all spellings of `[DONE]` are shorter
_BORDER = re.compile(rb"data: ?(?=[{\[])|(?<=[}\]])\s*(?=\{)")


def _parts(text: bytes, lines: list[bytes]) -> list[bytes]:
    """
    Split an invalid frame.

    Servers omit blank lines between events, or line ends; write `data: data: `; or stop in the middle of a chunk and
    continue with the next.
    """
    return lines if len(lines) > 1 else _BORDER.split(text)


def _chunk(name: bytes, value: object) -> RawEvent | None:
    """None for a ping, a list of ids, a bare word, or broken JSON."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "error" in value[0]:
        value = value[0]
    if name == b"error":
        return value if isinstance(value, dict) and "error" in value else {"error": value or "unknown error"}
    if not isinstance(value, dict):
        return None
    return value if not name or "choices" in value or value.get("error") else None


def _event(name: bytes, value: object) -> RawEvent | None:
    """The event's name becomes `type` if the server omits it."""
    if not isinstance(value, dict):
        return {"type": "error", "error": value or "unknown error"} if name == b"error" else None
    if name and not isinstance(value.get("type"), str):
        value["type"] = name.decode(errors="replace")
    return value


def _loads(text: bytes) -> Any:
    """For JSON that orjson rejects (broken UTF-8, unpaired surrogates, NaN); anything else is text."""
    string = text.decode(errors="replace")
    try:
        return json.loads(string, parse_constant=_CONSTANTS.get, parse_float=_float)
    except (ValueError, RecursionError):
        return string


def encodable(value: object) -> Any:
    """Replace unpaired surrogates in a JSON value with U+FFFD."""
    return _SurrogateJoiner().walk((), value, {})


_Path: TypeAlias = tuple[str | int, ...]


class _SurrogateJoiner:
    r"""
    Joins surrogate pairs that are split between chunks.

    JavaScript gateways cut strings between the two surrogates of a character (`"\ud83d"`, then `"\ude00"`). A high
    surrogate at the end of a delta's string stays pending until the next chunk with choices. If no low surrogate
    follows, U+FFFD replaces it.
    """

    def __init__(self) -> None:
        self.pending: dict[_Path, str] = {}

    def join(self, chunk: RawEvent) -> list[RawEvent]:
        """The joined chunk, after replacements for pending surrogates that it does not complete."""
        if not chunk.get("choices"):
            return [self.walk((), chunk, {})]
        previous, self.pending = self.pending, {}
        joined = self.walk((), chunk, previous)
        return [*map(_replacement, previous), joined]

    def release(self) -> list[RawEvent]:
        previous, self.pending = self.pending, {}
        return [*map(_replacement, previous)]

    def walk(self, path: _Path, value: object, previous: dict[_Path, str]) -> Any:
        """An encodable value; a string is prefixed with the `previous` surrogate for its path."""
        if isinstance(value, str):
            if first := previous.pop(path, ""):
                value = _SURROGATE_PAIR.sub(_character, first + value[:1]) + value[1:]
            return self._string(path, value)
        if isinstance(value, dict):
            return {_encodable(name): self.walk((*path, name), inner, previous) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.walk((*path, _index(n, inner)), inner, previous) for n, inner in enumerate(value)]
        return value

    def _string(self, path: _Path, text: str) -> str:
        if "delta" in path and text and "\ud800" <= text[-1] <= "\udbff":
            self.pending[path], text = text[-1], text[:-1]
        return _encodable(text)


_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    if "?" in text:
        return _SURROGATE.sub("\ufffd", text)
    return text.encode(errors="replace").decode().replace("?", "\ufffd")  # ten times faster


def _character(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _index(position: int, value: object) -> int:
    index = value.get("index") if isinstance(value, dict) else None
    return index if isinstance(index, int) else position


def _replacement(path: _Path) -> RawEvent:
    value: Any = "\ufffd"
    for step in reversed(path):
        if isinstance(step, str):
            value = {step: value}
        else:
            value = [{"index": step, **value}] if isinstance(value, dict) else [value]
    chunk: RawEvent = value
    return chunk
