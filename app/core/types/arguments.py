"""
Read the arguments of a tool call while they come.

A backend writes all arguments as JSON, piece by piece. A function's go to the client as they are; the input of a custom
tool is the text inside of them, `{"input": "..."}`, and is taken out again as it comes:

    reader = InputReader()
    reader.feed('{"input": "a\\')    # "a"
    reader.feed('nb"}')              # "\nb"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from app.core.types.bounded_json import loads

INPUT = "input"  # the one argument of a custom tool, as the backend is told of it


class ArgumentsReader(Protocol):
    """What is told of arguments, and when they are over."""

    @property
    def closed(self) -> bool:
        """Tell if nothing that follows belongs to them."""
        ...

    def feed(self, piece: str) -> str:
        """Take the next piece of what the backend wrote; return what is to be told of it."""
        ...

    def end(self) -> str:
        """Return what is left to be told: the arguments are whole."""
        ...

    def held(self) -> str:
        """Return what has not been told, of arguments that stop in the middle."""
        ...

    def cut(self, written: str, *, broken: bool) -> bool:
        """Tell if arguments, of which this was `written`, stop in the middle; `broken`: the answer did, behind them."""
        ...


class ObjectReader:
    """
    Follows a JSON text, piece by piece, to the brace that closes its top-level object; tells it as it is, so far.

    A string is held to its end: servers that encode arguments twice have the object in it.
    """

    _OUTSIDE = re.compile(r'["{}\[\]]')
    _INSIDE = re.compile(r'["\\]')

    def __init__(self) -> None:
        self._closed = False
        self._begun = False
        self._depth = 0
        self._string = False
        self._skip = 0  # of the next piece: the character behind a backslash
        self._quoted: list[str] | None = None  # the pieces of a string

    @property
    def closed(self) -> bool:
        return self._closed

    def feed(self, piece: str) -> str:
        if self._closed:
            return ""
        if not self._begun and piece.lstrip()[:1] == '"':
            self._quoted = []
        behind = self._follow(piece).lstrip()
        if self._quoted is not None:
            self._quoted.append(piece)
            return ""
        if behind:
            return piece.removesuffix(behind)  # marks of the template, a brace too many, the same once more
        return piece

    def end(self) -> str:
        if self._quoted is None:
            return "" if self._begun else "{}"
        quoted = "".join(self._quoted)
        try:
            text = loads(quoted)
            return text if isinstance(loads(text), dict) else quoted
        except (ValueError, TypeError):
            return quoted

    def held(self) -> str:
        return "".join(self._quoted or ())

    def cut(self, written: str, *, broken: bool) -> bool:
        # An object that is not closed, or what is no JSON at all; without arguments it is the answer that tells.
        return not _is_json(written) if written.strip() else broken

    def _follow(self, piece: str) -> str:
        """Return what stands behind the object, where it closes."""
        if not self._begun:
            if not (piece := piece.lstrip()):
                return ""
            self._begun = True
            self._depth = 0 if piece[0] == "{" else 1 << 62  # what is no object is never closed by a brace
        at, self._skip = self._skip, 0
        while match := (self._INSIDE if self._string else self._OUTSIDE).search(piece, at):
            at = match.end()
            self._step(match[0])
            if self._closed:
                return piece[at:]
            if match[0] == "\\":
                at += 1
        self._skip = max(0, at - len(piece))
        return ""

    def _step(self, character: str) -> None:
        if character == '"':
            self._string = not self._string
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self._closed = self._depth == 0


class InputReader:
    """
    Tells the `input` of a JSON object as soon as it is written; other members, before or behind it, are passed over.

    What turns out to be something else was meant for the tool as it is: the text of a model that never learned to wrap
    it, an object without an `input`. A JSON string alone is taken for the text in it, or for the object, where a server
    encoded that twice. An object that holds nothing at all is how servers write that there are no arguments, so its
    input is empty.
    """

    def __init__(self, argument: str = INPUT) -> None:
        """`argument` is the member that is taken out of the object."""
        self._argument = argument
        self._state = "begin"
        self._held: list[str] = []  # while it may still turn out to be something else
        self._string = _String()
        self._key: list[str] = []
        self._depth = 0  # of the value that is passed over

    @property
    def closed(self) -> bool:
        return self._state == "closed"

    def feed(self, piece: str) -> str:
        told: list[str] = []
        if self._state in _UNDECIDED:
            self._held.append(piece)
        at = 0
        while at < len(piece):
            if expected := _EXPECTED.get(self._state):
                if piece[at] not in _SPACE:
                    self._turn(expected.get(piece[at], "raw"))
                at += 1
            elif read := _RUNS.get(self._state):
                at = read(self, piece, at, told)
            else:
                break
            if self._state == "raw" and self._held:
                told.append(self._give_up())
                at = len(piece)
        return "".join(told)

    def end(self) -> str:
        held = self._give_up()
        if self._state == "alone":
            try:
                return _once_more(str(loads(held)), self._argument)
            except ValueError:
                return held  # it only begins with a quotation mark
        return held if self._state == "begin" else ""

    def held(self) -> str:
        return ""

    def cut(self, written: str, *, broken: bool) -> bool:
        return broken if self._state in _WHOLE else not self.closed

    def _turn(self, state: str) -> None:
        self._state = state
        self._string = _String()
        self._depth = 0
        if state in _TOLD:
            self._held = []

    def _give_up(self) -> str:
        held, self._held = "".join(self._held), []
        return held

    # Runs of characters. Each takes what it can from `at` on, and returns where it stopped.

    def _raw(self, piece: str, at: int, told: list[str]) -> int:
        told.append(piece[at:])
        return len(piece)

    def _input(self, piece: str, at: int, told: list[str]) -> int:
        text, end = self._string.read(piece, at)
        told.append(text)
        if end is None:
            return len(piece)
        self._turn("rest")
        return end

    def _name(self, piece: str, at: int, told: list[str]) -> int:
        text, end = self._string.read(piece, at)
        self._key.append(text)
        if end is None:
            return len(piece)
        key, self._key = "".join(self._key), []
        self._turn("colon" if key == self._argument else "other colon")
        return end

    def _skip(self, piece: str, at: int, told: list[str]) -> int:
        """Pass over a value, and what stands behind it up to the next member or the end of the object."""
        match = _STRUCTURE.search(piece, at)
        if match is None:
            return len(piece)
        mark = match[0]
        if mark == '"':
            self._state = f"{self._state} string"
        elif mark in "{[":
            self._depth += 1
        elif self._depth:
            self._depth -= mark in "}]"
        else:
            self._turn(_BEHIND[self._state].get(mark, self._state))
        return match.end()

    def _skip_string(self, piece: str, at: int, told: list[str]) -> int:
        _, end = self._string.read(piece, at)
        if end is None:
            return len(piece)
        self._state = self._state.removesuffix(" string")
        self._string = _String()
        return end


def _once_more(text: str, argument: str) -> str:
    """Return the argument of an object that was encoded twice; a text that is none is the argument."""
    try:
        value = loads(text)
    except ValueError:
        return text
    told = value.get(argument) if isinstance(value, dict) else None
    return told if isinstance(told, str) else text


_SPACE = " \t\r\n"
_STRUCTURE = re.compile(r'["{}\[\],]')

# Where one character, apart from white space, decides what comes next; any other means that this is no such object.
_EXPECTED: dict[str, dict[str, str]] = {
    "begin": {"{": "first", '"': "alone"},
    "first": {'"': "name", "}": "closed"},
    "next": {'"': "name"},
    "colon": {":": "value"},
    "other colon": {":": "other"},
    "value": {'"': "input"},
}
# Behind a value that is passed over.
_BEHIND: dict[str, dict[str, str]] = {"other": {",": "next", "}": "raw", "]": "raw"}, "rest": {"}": "closed"}}

_RUNS: dict[str, Callable[[InputReader, str, int, list[str]], int]] = {
    "raw": InputReader._raw,
    "input": InputReader._input,
    "name": InputReader._name,
    "other": InputReader._skip,
    "rest": InputReader._skip,
    "other string": InputReader._skip_string,
    "rest string": InputReader._skip_string,
}
_TOLD = frozenset({"input", "closed"})  # from here on it is sure what the text is
_UNDECIDED = frozenset({*_EXPECTED, "alone", "name", "other", "other string"})
_WHOLE = frozenset({"begin", "alone", "raw"})  # such a text has no end of its own


class _String:
    """The characters of a JSON string, from behind its opening quotation mark."""

    _TOKEN = re.compile(
        r'[^"\\]+|"'
        r"|\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
        r"|\\u(?P<code>[0-9a-fA-F]{4})"
        r"|\\(?P<escaped>.)",
        re.DOTALL,
    )
    # The beginning of an escape, or of a pair of them, that the next piece may end.
    _BEGUN = re.compile(
        r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?"
    )

    def __init__(self) -> None:
        self._begun = ""

    def read(self, piece: str, at: int) -> tuple[str, int | None]:
        """Return the text from `at` on, and the position behind the closing quotation mark, if it is there."""
        before = len(self._begun)
        text = self._begun + piece[at:] if before else piece[at:]
        self._begun = ""
        told: list[str] = []
        position = 0
        while match := self._TOKEN.match(text, position):
            if match[0] == '"':
                return "".join(told), at + match.end() - before
            if match[0][0] == "\\" and self._BEGUN.fullmatch(text, position):
                break
            told.append(self._unescaped(match))
            position = match.end()
        self._begun = text[position:]
        return "".join(told), None

    @staticmethod
    def _unescaped(match: re.Match[str]) -> str:
        if low := match["low"]:
            return chr(0x10000 + ((int(match["high"], 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if code := match["code"]:
            number = int(code, 16)
            return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)  # half of a pair is no character
        if escaped := match["escaped"]:
            return _ESCAPED.get(escaped, match[0])  # models forget to escape a backslash
        return match[0]


_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True
