r"""
Parse tool call arguments incrementally.

Function arguments are forwarded unchanged. A custom tool's input is extracted as it arrives:

    reader = InputReader()
    reader.feed('{"input": "a\\')    # "a"
    reader.feed('nb"}')              # "\nb"
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import orjson

from app.core.bounded_json import loads

INPUT = "input"  # a custom tool's function argument


_NEVER = 1 << 62  # never closed by braces


class ObjectReader:
    """
    Forwards JSON text unchanged, up to the brace that closes the top-level object.

    A string is buffered to its end, because some servers encode arguments twice, as a JSON string.
    """

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self.closed = False  # the arguments are complete; later text does not belong to them
        self._started = False
        self._depth = 0
        self._string = False
        self._skip = 0  # characters to skip in the next piece, after a backslash
        self._quoted: list[str] | None = None  # pieces of a string

    def feed(self, piece: str) -> str:
        if self.closed:
            return ""
        if self._quoted is None and not self._started and piece.lstrip()[:1] == '"':
            self._quoted = []
            self._started = True
            self._depth = _NEVER
        if self._quoted is not None:
            self._quoted.append(piece)
            return ""
        if rest := self._follow(piece).lstrip():
            return piece.removesuffix(rest)  # template tokens, an extra brace, a repetition
        return piece

    def end(self) -> str:
        if self._quoted is not None:
            text = self.held()
            if isinstance(inner := _value_of(text), str) and isinstance(_value_of(inner), dict):
                text, self.closed = inner, True
            self._quoted = []
            return text
        text = "" if self._started else "{}"
        self._started = True
        return text

    def held(self) -> str:
        """Text that was not emitted, from truncated arguments."""
        return "".join(self._quoted or ())

    def cut(self, emitted: Sequence[str], *, broken: bool) -> bool:
        """Whether the arguments are truncated; `broken`: the answer broke off after `emitted`."""
        if self._started and not self.closed and self._depth < _NEVER:
            return True
        written = self.held() or "".join(emitted)
        return _value_of(written) is _INVALID if written.strip() else broken

    def _follow(self, piece: str) -> str:
        if not self._started:
            if not (piece := piece.lstrip()):
                return ""
            self._started = True
            self._depth = 0 if piece[0] == "{" else _NEVER  # only objects are ever closed
        at, self._skip = self._skip, 0
        if len(piece) - at > _LONG:
            depths, in_string = _depths(self._depth, '"' * self._string + piece[at:])
            ends = not in_string and piece.rstrip().endswith(("}", "]"))
            if min(depths[:-1] if ends else depths, default=1) > 0:  # it does not close earlier
                self._depth = depths[-1] if depths else self._depth
                self.closed = self._depth == 0
                self._string = in_string
                self._skip = in_string and (len(piece) - max(at, len(piece.rstrip("\\")))) % 2
                return ""
        while match := (self._INSIDE if self._string else self._OUTSIDE).search(piece, at):
            at = match.end()
            character = match[0]
            if character == '"':
                self._string = not self._string
            elif character == "\\":
                at += 1
            elif character in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    self.closed = True
                    return piece[at:]
        self._skip = max(0, at - len(piece))
        return ""


_LONG = 512  # characters; longer pieces are read in larger steps
_NO_BRACKETS = bytes({*range(256)} - {*b"{}[]"})
_STEPS = [(code in b"{[") - (code in b"}]") for code in range(256)]


def _depths(depth: int, text: str) -> tuple[list[int], bool]:
    """Depth after each bracket, and whether the text ends in a string."""
    data = text.encode(errors="replace")
    if b"\\" in data:
        data = data.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")  # in place, which is twice as fast
    parts = data.split(b'"')  # every other part is inside a string
    brackets = b"".join(parts[::2]).translate(None, _NO_BRACKETS)
    depths = [*accumulate(map(_STEPS.__getitem__, brackets), initial=depth)]
    return depths[1:], len(parts) % 2 == 0


_INVALID = object()


def _value_of(text: str) -> object:
    try:
        return loads(text)
    except ValueError:
        return _INVALID


class InputReader:
    """
    Extracts the member `input` from a JSON object: as it arrives if it is the first member, otherwise at the end.

    Anything else is forwarded unchanged: plain text, or an object without `input`. A lone JSON string is decoded, and
    parsed again if the server encoded the object twice.
    """

    def __init__(self, argument: str = INPUT) -> None:
        self._argument = argument
        # begin (only space), object, quoted (a lone string), text, input (inside its string), rest (after it)
        self._state = "begin"
        self._held: list[str] = []  # pieces, while the kind of text is undecided
        self._length = 0  # characters in them
        self._string = _String()
        self._object = ObjectReader()  # finds the object's end

    @property
    def closed(self) -> bool:
        return self._state == "rest" and self._object.closed

    def feed(self, piece: str) -> str:
        if self._state == "input":
            return self._input(piece, 0)
        if self._state == "text":
            return piece
        if self._state == "rest":
            self._object.feed(piece)
            return ""
        self._held.append(piece)
        if self._state == "begin":
            self._state = _KINDS.get(piece.lstrip()[:1], "text")
        if self._state == "object":
            return self._member(piece)
        return self._text() if self._state == "text" else ""

    def end(self) -> str:
        held = self._flush()
        if self._state == "quoted" and isinstance(text := _value_of(held), str):
            inner = _member_of(text, self._argument)
            return text if inner is None else inner
        return "" if self._state == "object" else held

    def held(self) -> str:
        return ""

    def cut(self, emitted: Sequence[str], *, broken: bool) -> bool:
        return broken if self._state in ("begin", "quoted", "text") else not self.closed

    def _member(self, piece: str) -> str:
        """Read a piece that continues text with a brace at its start."""
        if self._length < _LONGEST_START:
            held = "".join(self._held)
            if match := re.match(rf'\s*\{{\s*"{self._argument}"\s*:\s*"', held):
                self._state, self._held, self._object = "input", [], ObjectReader()
                self._object.feed("{")
                return self._input(held, match.end())
            if not _OBJECT.match(held):
                return self._text()
            self._length = len(held)
        inside = self._object.feed(piece)
        if not self._object.closed:
            return ""
        held = "".join(self._held)
        inner = _member_of(held[: len(held) - len(piece) + len(inside)], self._argument)
        if inner is None:
            return self._text()
        self._state, self._held = "rest", []
        return inner

    def _input(self, piece: str, at: int) -> str:
        text, end = self._string.read(piece, at)
        if end is not None:
            self._state = "rest"
            self._object.feed(piece[end:])
        return text

    def _text(self) -> str:
        self._state = "text"
        return self._flush()

    def _flush(self) -> str:
        held, self._held = "".join(self._held), []
        return held


ArgumentsReader: TypeAlias = ObjectReader | InputReader

_KINDS = {"": "begin", "{": "object", '"': "quoted"}  # by the first character other than space
_OBJECT = re.compile(r'\s*\{\s*(?:["}]|\Z)')
_LONGEST_START = 200  # characters before an `input` that is emitted as it arrives


def _member_of(document: str, name: str) -> str | None:
    """The string with this name in a JSON object; None without it, but "" for an empty object."""
    value = _value_of(document)
    inner = (value.get(name) if value else "") if isinstance(value, dict) else None
    return inner if isinstance(inner, str) else None


class _String:
    """Decodes a JSON string incrementally, starting after its opening quotation mark."""

    _TOKEN = re.compile(
        r'[^"\\]+|"'
        r"|\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
        r"|\\u(?P<code>[0-9a-fA-F]{4})"
        r"|\\(?P<escaped>.)",
        re.DOTALL,
    )
    _VALID = re.compile(
        r'(?:[^"\\]++|\\(?:["\\/bfnrt]|u(?:[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
        r"|(?![dD][89a-fA-F])[0-9a-fA-F]{4})))++"
    )
    # An incomplete escape or surrogate pair, which the next piece can complete.
    _INCOMPLETE = re.compile(
        r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
    )

    def __init__(self) -> None:
        self._partial = ""

    def read(self, piece: str, at: int) -> tuple[str, int | None]:
        """The text from `at`, and the position after the closing quotation mark, if reached."""
        if at and len(piece) - at > _LONG and (ended := _ended_string(piece, at)):
            return ended
        before = len(self._partial)
        text = self._partial + piece[at:] if before else piece[at:]
        self._partial = ""
        output: list[str] = []
        position = 0
        while True:
            if len(text) - position > _LONG and (valid := self._VALID.match(text, position)):
                output.append(json.loads(f'"{valid[0]}"', strict=False))
                position = valid.end()
            if not (match := self._TOKEN.match(text, position)):
                break
            if match[0] == '"':
                return "".join(output), at + match.end() - before
            if match[0][0] == "\\" and self._INCOMPLETE.fullmatch(text, position):
                break
            output.append(self._unescaped(match))
            position = match.end()
        self._partial = text[position:]
        return "".join(output), None

    @staticmethod
    def _unescaped(match: re.Match[str]) -> str:
        if low := match["low"]:
            return chr(0x10000 + ((int(match["high"], 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if code := match["code"]:
            number = int(code, 16)
            return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)  # an unpaired surrogate
        if escaped := match["escaped"]:
            return _ESCAPED.get(escaped, match[0])  # models forget to escape backslashes
        return match[0]


def _ended_string(piece: str, at: int) -> tuple[str, int] | None:
    end = piece.replace("\\\\", "\0\0").replace('\\"', "\0\0").find('"', at) + 1
    if not end:
        return None
    try:
        return orjson.loads(piece[at - 1 : end]), end
    except ValueError:
        return None


_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
