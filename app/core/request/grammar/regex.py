"""
Regular expressions, read and written again: for texts, or for texts as they stand in a JSON string.

    written(Regex("a.").whole())                  # a[^\\n]
    written(Regex('"?').whole(), escaped=True)    # (\\\\")?

Servers that hold a model to one have engines of their own, so what is written is plain: groups without names, classes,
repetitions, and no `.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

_LAST = 0x10FFFF
_MOST = 1000  # repetitions
MAX_PATTERN_LENGTH = 8000  # characters; what is longer says more than a server should have to work out


class Chars(NamedTuple):
    """One character out of some: ranges, in order and apart from each other."""

    ranges: tuple[tuple[int, int], ...]


class Seq(NamedTuple):
    """One after the other."""

    parts: tuple[Node, ...]


class Alt(NamedTuple):
    """One of several."""

    parts: tuple[Node, ...]


class Many(NamedTuple):
    """Several times; `most` is None where there is no end."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = Chars | Seq | Alt | Many


class UnsupportedPattern(ValueError):
    """No regular expression, or none that is understood here."""


TIMES: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def many(part: Node, least: int, most: int | None) -> Many:
    """Return a repetition; raises `UnsupportedPattern` for one that there is not, or that is too much."""
    if max(least, most or 0) > _MOST or (most is not None and most < least):
        raise UnsupportedPattern
    return Many(part, least, most)


def _chars(ranges: Iterable[tuple[int, int]]) -> Chars:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return Chars(tuple(joined))


def _others(chars: Chars) -> Chars:
    """Return all characters but these."""
    ends = [-1, *(end for low, high in chars.ranges for end in (low - 1, high + 1)), _LAST + 1]
    ends = [ends[0] + 1, *ends[1:-1], ends[-1] - 1]
    return Chars(tuple((low, high) for low, high in zip(ends[::2], ends[1::2], strict=True) if low <= high))


def literal(text: str) -> Seq:
    """Return a text as it is."""
    return Seq(tuple(Chars(((ord(one), ord(one)),)) for one in text))


def _of(members: str) -> Chars:
    """Return characters and ranges, as `a-z0-9_` says them."""
    return _chars((ord(one[0]), ord(one[-1])) for one in re.findall(r".-.|.", members, re.DOTALL))


_DIGITS, _WORD, _SPACE, _LINE_END = _of("0-9"), _of("a-zA-Z0-9_"), _of(" \t\n\r\f\v"), _of("\n")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CLASSES |= {name.upper(): _others(chars) for name, chars in _CLASSES.items()}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


class Regex:
    """A regular expression, read from the left; raises `UnsupportedPattern` for what looks around, back or at flags."""

    _GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)")
    _TIMES = re.compile(r"([*+?]|\{(\d+)(,?)(\d*)\})\??")
    _ODD_TIMES = re.compile(r"\{[\d\s,]+\}")  # `{,3}`, `{ 2 }`, a second `{3}`: engines disagree on what these mean
    _CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Node:
        """Return what it says."""
        node = self._either()
        if self._at < len(self._text):
            raise UnsupportedPattern
        return node

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _either(self) -> Node:
        parts = [self._sequence()]
        while self._next == "|":
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _sequence(self) -> Seq:
        parts: list[Node] = []
        while self._next and self._next not in "|)":
            parts.append(self._times(self._atom()))
        return Seq(tuple(parts))

    def _times(self, part: Node) -> Node:
        match = self._TIMES.match(self._text, self._at)
        if match is None:
            return part
        self._at = match.end()
        if match[2] is None:
            return Many(part, *TIMES[match[1]])
        most = int(match[4]) if match[4] else None if match[3] else int(match[2])
        return many(part, int(match[2]), most)

    def _atom(self) -> Node:
        first, self._at = self._next, self._at + 1
        if first == "(":
            return self._group()
        if first == "[":
            return self._class()
        if first == "\\":
            return self._escape()
        if first == ".":
            return _others(_LINE_END)
        if (first == "^" and self._at == 1) or (first == "$" and self._at == len(self._text)):
            return Seq(())
        if first in "^$*+?" or self._ODD_TIMES.match(self._text, self._at - 1):
            raise UnsupportedPattern
        return _of(first)

    def _group(self) -> Node:
        if self._next == "?":
            if (match := self._GROUP.match(self._text, self._at - 1)) is None:
                raise UnsupportedPattern
            self._at = match.end()
        node = self._either()
        if self._next != ")":
            raise UnsupportedPattern
        self._at += 1
        return node

    def _escape(self) -> Chars:
        if code := self._CODE.match(self._text, self._at):
            self._at = code.end()
            return _of(chr(int(code[1] or code[2], 16)))
        name, self._at = self._next, self._at + 1
        if known := _CLASSES.get(name):
            return known
        if not name or (name.isalnum() and name not in _CONTROLS):
            raise UnsupportedPattern
        return _of(_CONTROLS.get(name, name))

    def _class(self) -> Chars:
        negated = self._next == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._next != "]":
            first = False
            low = self._member()
            if self._next == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member()
                if len(low.ranges) > 1 or len(high.ranges) > 1 or low.ranges[0][0] > high.ranges[0][0]:
                    raise UnsupportedPattern
                ranges.append((low.ranges[0][0], high.ranges[0][1]))
            else:
                ranges += low.ranges
        self._at += 1
        return _others(_chars(ranges)) if negated else _chars(ranges)

    def _member(self) -> Chars:
        first, self._at = self._next, self._at + 1
        if not first:
            raise UnsupportedPattern
        return self._escape() if first == "\\" else _of(first)


def render(node: Node, *, escaped: bool = False) -> str:
    """
    Return the regular expression; raises `UnsupportedPattern` where there is none, or only one that is too long.

    `escaped`: for texts as they stand in a JSON string, between its quotation marks.
    """
    if _size(node, {}) > MAX_PATTERN_LENGTH:
        raise UnsupportedPattern
    return _written(node, escaped)


def _size(node: Node, known: dict[int, int]) -> int:
    """Count the characters to be written, about, without writing them: rules may double with each step."""
    if id(node) not in known:
        match node:
            case Chars(ranges):
                known[id(node)] = len(ranges)
            case Many(part):
                known[id(node)] = 1 + _size(part, known)
            case Seq(parts) | Alt(parts):
                known[id(node)] = sum(1 + _size(part, known) for part in parts)
    return known[id(node)]


def _written(node: Node, escaped: bool) -> str:
    match node:
        case Chars():
            return _escaped(node) if escaped else _plain(node)
        case Seq(parts):
            texts = [(one, _written(one, escaped)) for one in parts]
            return "".join(f"({text})" if isinstance(one, Alt) else text for one, text in texts)
        case Alt(parts):
            return "|".join(_written(one, escaped) for one in parts)
        case Many(part, least, most):
            text = _written(part, escaped)
            alone = isinstance(part, Chars) and (not escaped or len(text) == 1 or text[0] == "[")
            return f"{text if alone else f'({text})'}{_times(least, most)}"


def _times(least: int, most: int | None) -> str:
    for mark, times in TIMES.items():
        if times == (least, most):
            return mark
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


_MARKED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _member(code: int, special: str) -> str:
    one = chr(code)
    if one in _MARKED:
        return _MARKED[one]
    if code < 0x20:
        return f"\\x{code:02x}"
    return f"\\{one}" if one in special else one


def _plain(chars: Chars) -> str:
    """Write one character of a text, as a class where there are several."""
    if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        return _member(chars.ranges[0][0], r"\^$.|?*+()[]{}")
    negated = bool(chars.ranges) and chars.ranges[-1][1] == _LAST
    ranges = _others(chars).ranges if negated else chars.ranges
    if not ranges:
        raise UnsupportedPattern  # any character, or none
    return f"[{'^' * negated}{''.join(_range(low, high) for low, high in ranges)}]"


def _range(low: int, high: int) -> str:
    ends = [_member(code, r"\]^-[") for code in (low, high)]
    return ends[0] if low == high else "-".join(ends) if high > low + 1 else "".join(ends)


# What stands for itself in a JSON string, and what may be written with a backslash.
_RAW = Chars(((0x20, 0x21), (0x23, 0x5B), (0x5D, _LAST)))
_SHORT = {'"': '"', "\\": "\\\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def _escaped(chars: Chars) -> str:
    """Write one character as it stands in a JSON string: as it is, or in an escape."""
    raw = _raw(chars)
    ways = [_plain(raw)] if raw.ranges else []
    short = "".join(written for one, written in _SHORT.items() if _holds(chars, ord(one)))
    if short:
        ways.append(rf"\\[{short}]" if short not in _SHORT.values() else rf"\\{short}")
    if chars.ranges and chars.ranges[-1][1] == _LAST:
        ways.append(r"\\u[0-9a-fA-F]{4}")
    if not ways:
        raise UnsupportedPattern
    return ways[0] if len(ways) == 1 else f"({'|'.join(ways)})"


def _raw(chars: Chars) -> Chars:
    return _others(_chars([*_others(chars).ranges, *_others(_RAW).ranges]))


def _holds(chars: Chars, code: int) -> bool:
    return any(low <= code <= high for low, high in chars.ranges)


def is_escaped(node: Node) -> bool:
    """Tell if every text of an expression has something that is escaped in a JSON string."""
    match node:
        case Chars():
            return not _raw(node).ranges
        case Seq(parts):
            return any(map(is_escaped, parts))
        case Alt(parts):
            return all(map(is_escaped, parts))
        case Many(part, least):
            return least > 0 and is_escaped(part)


def is_plain(node: Node) -> bool:
    """Tell if no text of an expression has anything that is escaped in a JSON string."""
    match node:
        case Chars():
            return _raw(node) == node
        case Seq(parts) | Alt(parts):
            return all(map(is_plain, parts))
        case Many(part):
            return is_plain(part)
