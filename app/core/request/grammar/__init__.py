"""
Translate a custom tool's grammar into a regular expression, for servers that enforce patterns.

    pattern("lark", 'start: "a" line+\nline: /.+/ LF\n%import common.LF')    # ^(a([^\n]+\n)+)$

Grammars with recursion or unsupported syntax have no pattern. Patterns only use syntax that all engines support:
unnamed groups, classes and repetitions, without `.`. They match texts, or their JSON string encoding:

    render(Regex("a.").parse())                  # a[^\n]
    render(Regex('"?').parse(), escaped=True)    # (\\")?
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

MAX_PATTERN_LENGTH = 8000  # characters; longer patterns are too slow for servers
_LONGEST_DEFINITION = 4 * MAX_PATTERN_LENGTH  # names and comments are not part of the expression


def pattern(syntax: str, definition: str, form: str = "pattern") -> str | None:
    """
    An anchored regular expression for a `lark` or `regex` grammar; None if impossible.

    `form` is a value of the option `request.grammar`: `pattern` matches the text itself, `json_pattern` its JSON string
    encoding without the quotation marks. `xgrammar` equals `json_pattern`, but returns None if only some texts contain
    escapes: for such a pattern that library (0.2.8) only allows texts without escapes.
    """
    if syntax not in ("lark", "regex") or len(definition) > _LONGEST_DEFINITION:
        return None
    try:
        regex = lark_regex(definition) if syntax == "lark" else definition
        if len(regex) > MAX_PATTERN_LENGTH:
            return None
        node = Regex(regex).parse()
        expression = f"^({render(node, escaped=form != 'pattern')})$"
    except (ValueError, RecursionError):  # unsupported, or a number too large for Python
        return None
    if len(expression) > MAX_PATTERN_LENGTH or (form == "xgrammar" and not (is_escaped(node) or is_plain(node))):
        return None
    return expression


# For `%import common.NAME`.
_COMMON = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "LETTER": "[a-zA-Z]",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
}


_LARK_TOKEN = re.compile(
    r"(?P<skip>\s+|//[^\n]*|->[ \t]*\w+)"
    r"|%import[ \t]+common\.(?P<import>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?"
    r"|(?P<define>[?!]?\w+(?:\.\d+)?)[ \t]*:|(?P<name>\w+)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*")(?!i)|/(?P<regex>(?:\\.|[^/\\\n])+)/(?![imslux])'
    r"|~[ \t]*(?P<least>\d+)(?:\.\.(?P<most>\d+))?|(?P<mark>[|()\[\]*+?])"
)
# By name: tokens, or the expression once translated; None for an unknown import.
_Rules: TypeAlias = dict[str, str | list[re.Match[str]] | None]
_LARK_MARKS = {"[": "((", "]": ")?)"}  # others mean the same in a regular expression
_ANCHORS = re.compile(r"\A\^|(?<!\\)\$\Z")


def lark_regex(grammar: str) -> str:
    """
    The expression for a Lark grammar's rule `start`, with all other rules put in.

    Raises `UnsupportedPattern` for recursion, flags, templates, and most directives. Does not check the expression.
    """
    rules: _Rules = {}
    rule: list[re.Match[str]] = []
    at = 0
    while at < len(grammar):
        token = _LARK_TOKEN.match(grammar, at)
        if token is None:
            raise UnsupportedPattern
        at = token.end()
        if token["import"]:
            rules[token["alias"] or token["import"]] = _COMMON.get(token["import"])
        elif token["define"]:
            rule = []
            rules[token["define"].lstrip("?!").partition(".")[0]] = rule
        elif token["skip"] is None:
            rule.append(token)
    return _rule_regex("start", rules)


def _rule_regex(name: str, rules: _Rules) -> str:
    rule = rules.pop(name, None)  # unknown until it is translated, so that recursion is an error
    if rule is None:
        raise UnsupportedPattern
    if isinstance(rule, list):
        text = ""
        for token in rule:
            text += _token_regex(token, rules)
            if len(text) > MAX_PATTERN_LENGTH:  # before it doubles again
                raise UnsupportedPattern
        rule = text
    rules[name] = rule
    return rule


def _token_regex(token: re.Match[str], rules: _Rules) -> str:
    if token["name"]:
        return f"({_rule_regex(token['name'], rules)})"
    if token["string"]:
        try:
            return f"({re.escape(ast.literal_eval(token['string']))})"
        except (SyntaxError, ValueError):
            raise UnsupportedPattern from None
    if token["regex"]:
        return f"({_ANCHORS.sub('', token['regex'])})"
    if token["least"]:
        return f"{{{token['least']},{token['most'] or token['least']}}}"
    return _LARK_MARKS.get(token["mark"], token["mark"])


_LAST = 0x10FFFF
_MAX_REPETITIONS = 1000


class Chars(NamedTuple):
    """Ranges of code points, sorted and disjoint."""

    ranges: tuple[tuple[int, int], ...]


class Seq(NamedTuple):
    parts: tuple[Node, ...]


class Alt(NamedTuple):
    parts: tuple[Node, ...]


class Many(NamedTuple):
    """Without limit if `most` is None."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = Chars | Seq | Alt | Many


class UnsupportedPattern(ValueError):
    """An invalid regular expression, or unsupported syntax."""


TIMES: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def _chars(ranges: Iterable[tuple[int, int]]) -> Chars:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return Chars(tuple(joined))


def _complement(chars: Chars) -> Chars:
    starts = [0, *(high + 1 for _, high in chars.ranges)]
    ends = [*(low - 1 for low, _ in chars.ranges), _LAST]
    return Chars(tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high))


def _of(members: str) -> Chars:
    """Parse a notation like `a-z0-9_`."""
    return _chars((ord(item[0]), ord(item[-1])) for item in re.findall(r".-.|.", members, re.DOTALL))


_DIGITS, _WORD, _SPACE, _LINE_END = _of("0-9"), _of("a-zA-Z0-9_"), _of(" \t\n\r\f\v"), _of("\n")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CLASSES |= {name.upper(): _complement(chars) for name, chars in _CLASSES.items()}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}


class Regex:
    """Raises `UnsupportedPattern` for lookaround, back-references and flags."""

    _GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)")
    _TIMES = re.compile(r"([*+?]|\{(\d+)(,?)(\d*)\})\??")
    _ODD_TIMES = re.compile(r"\{[\d\s,]+\}")  # `{,3}`, `{ 2 }`, a second `{3}`: engines differ
    _CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> Node:
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
        least = int(match[2])
        most = int(match[4]) if match[4] else None if match[3] else least
        if max(least, most or 0) > _MAX_REPETITIONS or (most is not None and most < least):
            raise UnsupportedPattern
        return Many(part, least, most)

    def _atom(self) -> Node:
        first, self._at = self._next, self._at + 1
        if first == "(":
            return self._group()
        if first == "[":
            return self._class()
        if first == "\\":
            return self._escape()
        if first == ".":
            return _complement(_LINE_END)
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
        if chars := _CLASSES.get(name):
            return chars
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
        return _complement(_chars(ranges)) if negated else _chars(ranges)

    def _member(self) -> Chars:
        first, self._at = self._next, self._at + 1
        if not first:
            raise UnsupportedPattern
        return self._escape() if first == "\\" else _of(first)


def render(node: Node, *, escaped: bool = False) -> str:
    """Raises `UnsupportedPattern` for characters without a portable class."""
    match node:
        case Chars():
            return _escaped(node) if escaped else _plain(node)
        case Seq(parts):
            texts = [(part, render(part, escaped=escaped)) for part in parts]
            return "".join(f"({text})" if isinstance(part, Alt) else text for part, text in texts)
        case Alt(parts):
            return "|".join(render(part, escaped=escaped) for part in parts)
        case Many(part, least, most):
            text = render(part, escaped=escaped)
            alone = isinstance(part, Chars) and (not escaped or len(text) == 1 or text[0] == "[")
            return f"{text if alone else f'({text})'}{_times(least, most)}"


def _times(least: int, most: int | None) -> str:
    for mark, times in TIMES.items():
        if times == (least, most):
            return mark
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _member(code: int, special: str) -> str:
    character = chr(code)
    if character in _ESCAPES:
        return _ESCAPES[character]
    if code < 0x20:
        return f"\\x{code:02x}"
    return f"\\{character}" if character in special else character


def _plain(chars: Chars) -> str:
    if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        return _member(chars.ranges[0][0], r"\^$.|?*+()[]{}")
    negated = bool(chars.ranges) and chars.ranges[-1][1] == _LAST
    ranges = _complement(chars).ranges if negated else chars.ranges
    if not ranges:
        raise UnsupportedPattern  # any character, or none
    return f"[{'^' * negated}{''.join(_range(low, high) for low, high in ranges)}]"


def _range(low: int, high: int) -> str:
    ends = [_member(code, r"\]^-[") for code in (low, high)]
    return ends[0] if low == high else "-".join(ends) if high > low + 1 else "".join(ends)


_RAW = Chars(((0x20, 0x21), (0x23, 0x5B), (0x5D, _LAST)))
_SHORT = {'"': '"', "\\": "\\\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}


def _escaped(chars: Chars) -> str:
    raw = _raw(chars)
    options = [_plain(raw)] if raw.ranges else []
    short = "".join(
        escape
        for character, escape in _SHORT.items()
        if any(low <= ord(character) <= high for low, high in chars.ranges)
    )
    if short:
        options.append(rf"\\[{short}]" if short not in _SHORT.values() else rf"\\{short}")
    if chars.ranges and chars.ranges[-1][1] == _LAST:
        options.append(r"\\u[0-9a-fA-F]{4}")
    if not options:
        raise UnsupportedPattern
    return options[0] if len(options) == 1 else f"({'|'.join(options)})"


def _raw(chars: Chars) -> Chars:
    return _complement(_chars([*_complement(chars).ranges, *_complement(_RAW).ranges]))


def is_escaped(node: Node) -> bool:
    """Whether every match contains an escape in JSON."""
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
    """Whether no match contains an escape in JSON."""
    match node:
        case Chars():
            return _raw(node) == node
        case Seq(parts) | Alt(parts):
            return all(map(is_plain, parts))
        case Many(part):
            return is_plain(part)
