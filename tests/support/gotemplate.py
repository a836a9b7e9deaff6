"""
As much of Helm's templates as our chart uses, to see it rendered where there is no `helm`. What is not known here is
an error: the chart stays as simple as this.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_ACTION = re.compile(r"(\s*)\{\{-\s(.*?)\}\}|\{\{\s(.*?)\}\}", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|:=|[|(),]|[^\s|(),]+')
_BLOCKS = {"if", "with", "range", "define"}

Node = tuple[str, list[str], list[Any], list[Any]]  # keyword, its tokens, what is inside, and what behind `else`


class Failed(Exception):
    """A template called `fail`."""


def to_yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=True, default_flow_style=False).removesuffix("\n...\n").rstrip("\n")


def fail(message: str) -> str:
    raise Failed(message)


def nindent(spaces: int, text: str) -> str:
    return "\n" + "\n".join(" " * spaces + line if line else line for line in text.split("\n"))


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda *numbers: sum(map(int, numbers)),
    "default": lambda default, value: value or default,
    "fail": fail,
    "gt": lambda one, other: one > other,
    "int": int,
    "kindIs": lambda kind, value: {"string": str}[kind] is type(value),
    "nindent": nindent,
    "not": lambda value: not value,
    "or": lambda *values: next(filter(None, values), values[-1]),
    "printf": lambda form, *values: form % tuple(map(shown, values)),
    "quote": lambda value: json.dumps(shown(value)),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "ternary": lambda one, other, chosen: one if chosen else other,
    "toJson": lambda value: json.dumps(value, separators=(",", ":")),
    "toString": shown,
    "toYaml": to_yaml,
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda length, text: text[:length],
    "upper": str.upper,
}


class Chart:
    """A chart, to be rendered with values."""

    def __init__(self, folder: Path) -> None:
        self.defaults = yaml.safe_load((folder / "values.yaml").read_text())
        about = yaml.safe_load((folder / "Chart.yaml").read_text())
        self._about = {name[0].upper() + name[1:]: value for name, value in about.items()}
        self._templates = {path.name: parsed(path.read_text()) for path in sorted((folder / "templates").iterdir())}
        self._defined = {
            json.loads(node[1][0]): node[2]
            for name, nodes in self._templates.items()
            if name.startswith("_")
            for node in nodes
            if not isinstance(node, str) and node[0] == "define"
        }

    def render(self, values: dict[str, Any], name: str = "answers") -> dict[str, str]:
        """Return what becomes of each template, by its name; raises `Failed`."""
        release = {"Name": name, "Namespace": "default", "Service": "Helm"}
        scope = {"Values": merged(self.defaults, values), "Chart": self._about, "Release": release}
        return {
            name: self._text(nodes, scope, {"$": scope})
            for name, nodes in self._templates.items()
            if not name.startswith("_")
        }

    def _text(self, nodes: list[Any], dot: Any, names: dict[str, Any]) -> str:
        return "".join(node if isinstance(node, str) else self._block(node, dot, names) for node in nodes)

    def _block(self, node: Node, dot: Any, names: dict[str, Any]) -> str:
        keyword, tokens, inside, otherwise = node
        match keyword:
            case "":
                return shown(self._value(tokens, dot, names))
            case "if":
                return self._text(inside if self._value(tokens, dot, names) else otherwise, dot, names)
            case "with":
                value = self._value(tokens, dot, names)
                return self._text(inside, value, names) if value else self._text(otherwise, dot, names)
            case "range" if ":=" in tokens:
                [key, _, one, _, *source] = tokens
                pairs = sorted(self._value(source, dot, names).items())
                return "".join(self._text(inside, dot, {**names, key: k, one: v}) for k, v in pairs)
            case "range":
                return "".join(self._text(inside, value, names) for value in self._value(tokens, dot, names))
        raise AssertionError(f"what is {keyword}?")

    def _value(self, tokens: list[str], dot: Any, names: dict[str, Any]) -> Any:
        value, stages = None, split(tokens)
        for number, stage in enumerate(stages):
            terms = [self._term(term, dot, names) for term in stage]
            piped = [value] if number else []
            value = terms[0](*terms[1:], *piped) if callable(terms[0]) else terms[0]
        return value

    def _term(self, term: str | list[str], dot: Any, names: dict[str, Any]) -> Any:
        if isinstance(term, list):
            return self._value(term, dot, names)
        if term.startswith('"'):
            return json.loads(term)
        if term.isdigit():
            return int(term)
        if term == "include":
            return lambda name, scope: self._text(self._defined[name], scope, {"$": scope})
        if term in FUNCTIONS:
            return FUNCTIONS[term]
        root, *path = term.split(".")
        value = names[root] if root else dot
        for name in filter(None, path):
            value = value.get(name)
        return value


def parsed(text: str) -> list[Any]:
    """Return a template as texts and nodes."""
    stack: list[tuple[Node, list[Any]]] = []
    top: list[Any] = []
    nodes, at = top, 0
    for action in _ACTION.finditer(text):
        nodes.append(text[at : action.start()])
        at = action.end()
        code = action[2] or action[3]
        if code.rstrip().endswith("-"):
            code, at = code.rstrip()[:-1], at + len(text[at:]) - len(text[at:].lstrip())
        keyword, *rest = tokens = _TOKEN.findall(code)
        if keyword in _BLOCKS:
            node: Node = (keyword, rest, [], [])
            nodes.append(node)
            stack.append((node, nodes))
            nodes = node[2]
        elif keyword == "else":
            assert not rest, "no `else if` here"
            nodes = stack[-1][0][3]
        elif keyword == "end":
            nodes = stack.pop()[1]
        else:
            nodes.append(("", tokens, [], []))
    assert not stack
    nodes.append(text[at:])
    return top


def split(tokens: list[str]) -> list[list[Any]]:
    """Return the stages of a pipeline, each with its terms; one in parentheses is a list."""
    stages: list[list[Any]] = [[]]
    rest: Iterator[str] = iter(tokens)
    for token in rest:
        if token == "|":
            stages.append([])
        elif token == "(":
            inner, depth = [], 1
            for one in rest:
                depth += {"(": 1, ")": -1}.get(one, 0)
                if not depth:
                    break
                inner.append(one)
            stages[-1].append(inner)
        else:
            stages[-1].append(token)
    return stages


def merged(defaults: Any, values: Any) -> Any:
    """Return values over their defaults, as Helm merges them."""
    if not (isinstance(defaults, dict) and isinstance(values, dict)):
        return values
    return {**defaults, **{name: merged(defaults.get(name), value) for name, value in values.items()}}
