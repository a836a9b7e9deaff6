r"""
Translate a custom tool's grammar into a regular expression, for servers that enforce patterns.

    pattern("lark", 'start: "a" line+\nline: /.+/ LF\n%import common.LF')    # ^(a([^\n]+\n)+)$

Grammars with recursion or unsupported syntax have no pattern.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from app.core.request.grammar.regex import (
    MAX_PATTERN_LENGTH,
    TIMES,
    Alt,
    Many,
    Node,
    Regex,
    Seq,
    UnsupportedPattern,
    is_escaped,
    is_plain,
    literal,
    many,
    render,
)


def pattern(syntax: str, definition: str, form: str = "pattern") -> str | None:
    """
    An anchored regular expression for a `lark` or `regex` grammar; None if impossible.

    `form` is a value of the option `request.grammar`: `pattern` matches the text itself, `json_pattern` its JSON string
    encoding without the quotation marks. `xgrammar` equals `json_pattern`, but returns None if only some texts contain
    escapes: for such a pattern that library (0.2.8) only allows texts without escapes.
    """
    if syntax not in _SYNTAXES or len(definition) > _LONGEST_DEFINITION:
        return None
    try:
        node = _SYNTAXES[syntax](definition)
        expression = f"^({render(node, escaped=form != 'pattern')})$"
    except (ValueError, RecursionError):  # unsupported, or a number too large for Python
        return None
    if len(expression) > MAX_PATTERN_LENGTH or (form == "xgrammar" and not (is_escaped(node) or is_plain(node))):
        return None
    return expression


# Higher, because names and comments are not part of the expression.
_LONGEST_DEFINITION = 4 * MAX_PATTERN_LENGTH

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


class LarkParser:
    """Parses a Lark grammar; raises `UnsupportedPattern` for recursion, flags, templates, and most directives."""

    _TOKEN = re.compile(
        r"(?P<skip>\s+|//[^\n]*)"
        r"|%import[ \t]+common\.(?P<import>\w+)(?:[ \t]*->[ \t]*(?P<alias>\w+))?"
        r"|(?P<define>[?!]?\w+(?:\.\d+)?)[ \t]*:|(?P<name>\w+)"
        r'|(?P<string>"(?:\\.|[^"\\\n])*")(?!i)|/(?P<regex>(?:\\.|[^/\\\n])+)/(?![imslux])'
        r"|~[ \t]*(?P<least>\d+)(?:\.\.(?P<most>\d+))?|->[ \t]*(?P<called>\w+)|(?P<mark>[|()\[\]*+?])"
    )

    def __init__(self, text: str) -> None:
        self._rules: dict[str, Node | list[re.Match[str]]] = {}
        self._open: set[str] = set()  # rules being parsed, to detect recursion
        self._tokens: list[re.Match[str]] = []
        rule: list[re.Match[str]] = []
        at = 0
        while at < len(text):
            token = self._TOKEN.match(text, at)
            if token is None:
                raise UnsupportedPattern
            at = token.end()
            if token["import"]:
                regex = _COMMON.get(token["import"])
                if regex is None:
                    raise UnsupportedPattern
                self._rules[token["alias"] or token["import"]] = Regex(regex).parse()
            elif token["define"]:
                rule = []
                self._rules[token["define"].lstrip("?!").partition(".")[0]] = rule
            elif token["skip"] is None and token["called"] is None:
                rule.append(token)

    def start(self) -> Node:
        return self._rule("start")

    def _rule(self, name: str) -> Node:
        rule = self._rules.get(name)
        if rule is None or name in self._open:
            raise UnsupportedPattern
        if not isinstance(rule, list):
            return rule
        self._open.add(name)
        tokens, self._tokens = self._tokens, rule[::-1]
        node = self._either()
        if self._tokens:
            raise UnsupportedPattern
        self._tokens = tokens
        self._open.discard(name)
        self._rules[name] = node
        return node

    @property
    def _mark(self) -> str | None:
        return self._tokens[-1]["mark"] if self._tokens else None

    def _either(self) -> Node:
        parts = [self._sequence()]
        while self._mark == "|":
            self._tokens.pop()
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alt(tuple(parts))

    def _sequence(self) -> Seq:
        parts: list[Node] = []
        while self._tokens and self._mark not in ("|", ")", "]"):
            parts.append(self._times(self._atom()))
        return Seq(tuple(parts))

    def _times(self, part: Node) -> Node:
        while self._tokens and (self._tokens[-1]["least"] or self._mark in ("*", "+", "?")):
            token = self._tokens.pop()
            if token["least"]:
                part = many(part, int(token["least"]), int(token["most"] or token["least"]))
            else:
                part = Many(part, *TIMES[token["mark"]])
        return part

    def _atom(self) -> Node:
        token = self._tokens.pop()
        if token["name"]:
            return self._rule(token["name"])
        if token["string"]:
            return literal(_string(token["string"]))
        if token["regex"]:
            return Regex(token["regex"].replace(r"\/", "/")).parse()
        closing = {"(": ")", "[": "]"}.get(token["mark"] or "")
        if closing is None:
            raise UnsupportedPattern
        node = self._either()
        if self._mark != closing:
            raise UnsupportedPattern
        self._tokens.pop()
        return Many(node, 0, 1) if closing == "]" else node


def _string(quoted: str) -> str:
    try:
        return str(ast.literal_eval(quoted))
    except (SyntaxError, ValueError):
        raise UnsupportedPattern from None


_SYNTAXES: dict[str, Callable[[str], Node]] = {
    "lark": lambda definition: LarkParser(definition).start(),
    "regex": lambda definition: Regex(definition).parse(),
}
