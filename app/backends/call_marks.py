"""
Find the tool calls that a model writes into its text, between the marks of its chat template.

A server that has a parser for them takes them out by itself. For one that has none, or another model's, it is done
here: what stands between marks is a call if it can be read, whole, and names a function that is on offer. All else is
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson

from app.backends.think_tags import overlap

Schema: TypeAlias = Mapping[str, Any]


class Call(NamedTuple):
    """A call as it is written; some models give it an id."""

    name: str
    arguments: str | dict[str, str]  # JSON, or the text of each argument: the schema tells what it means
    id: str | None = None


class Thought(NamedTuple):
    """What the model thinks, where its thoughts have such marks, too."""

    text: str


Piece: TypeAlias = str | Thought | Call


class CallFinder:
    """
    Finds the calls in one text, fed piece by piece.

    `functions` are those on offer, by name, with the schemas of their parameters.
    """

    def __init__(self, functions: Mapping[str, Schema]) -> None:
        self._functions = functions
        self._held = ""  # what cannot be told yet
        self._mark: _Mark | None = None  # the one that is open: what is held stands behind it
        self._blanks = ""  # those before it, which go with it
        self._behind = False  # has there been nothing but blanks since a call?

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain after this piece, in order."""
        pieces: list[Piece] = []
        text, self._held = self._held + text, ""
        while text:
            if not (mark := self._mark):
                text = self._outside(text, pieces)
            elif mark.close and (end := text.find(mark.close)) >= 0:
                self._take(text[:end], mark.close, pieces)
                text = text[end + len(mark.close) :]
            else:
                self._held, text = text, ""
        return pieces

    def end(self) -> list[Piece]:
        """Return what is held: nothing follows."""
        pieces: list[Piece] = []
        held, self._held = self._held, ""
        if self._mark:
            self._take(held, "", pieces)  # the last mark is one at which servers stop, and not always there
        elif held and not (self._behind and held.isspace()):
            pieces.append(held)
        return pieces

    def _outside(self, text: str, pieces: list[Piece]) -> str:
        """Tell the text before the first mark, and return what stands behind it."""
        found = _OPEN.search(text)
        before = text[: found.start()] if found else text[: _certain(text)]
        if found is None:
            self._held = text[len(before) :]
        if self._behind and not before.isspace():
            before = before.lstrip()
        if found:
            before, self._blanks = before.rstrip(), before[len(before.rstrip()) :]
        if before:
            self._behind = False
            pieces.append(before)
        if found is None:
            return ""
        self._mark = _MARKS.get(found[0])
        return text[found.end() :]

    def _take(self, body: str, close: str, pieces: list[Piece]) -> None:
        """Tell what stood between marks: if it cannot be read, as it is, with them."""
        mark, self._mark = self._mark, None
        assert mark
        read = [self._fitting(one) for one in mark.read(body)]
        if read and None not in read:
            pieces += [one for one in read if one]
            self._behind = True
        else:
            pieces.append(self._blanks + mark.open + body + close)
            self._behind = False

    def _fitting(self, piece: Piece) -> Piece | None:
        """Return a call with its arguments as JSON; None if there is no such function, or no such JSON."""
        if not isinstance(piece, Call):
            return piece
        if piece.name not in self._functions:
            return None
        if isinstance(piece.arguments, str):
            return piece if _is_object(piece.arguments) else None
        properties = self._functions[piece.name].get("properties")
        schemas = properties if isinstance(properties, dict) else {}
        values = {name: _value(text, schemas.get(name)) for name, text in piece.arguments.items()}
        return piece._replace(arguments=json.dumps(values, ensure_ascii=False))


def _certain(text: str) -> int:
    """Return how much of the text can neither belong to a mark nor be blanks before one."""
    held = max(overlap(text, mark) for mark in (*_MARKS, *_DROPPED))
    return len(text[: len(text) - held].rstrip())


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except ValueError:
        return False


def _value(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return orjson.loads(text)
    except ValueError:
        return text


# How calls are written between marks. A reader yields nothing for what it cannot read.


def _json(body: str) -> Iterator[Piece]:
    """Hermes, Qwen, Llama, Phi: `{"name": "f", "arguments": {...}}`, one or several, or a list of them."""
    values, at, decoder = list[Any](), 0, json.JSONDecoder()
    body = body.strip()
    try:
        while at < len(body):
            value, at = decoder.raw_decode(body, at)
            values += value if isinstance(value, list) else [value]
            at += len(body[at:]) - len(body[at:].lstrip(" \t\r\n;,"))
    except (ValueError, RecursionError):
        return
    yield from map(_from_object, values)


def _from_object(value: Any) -> Call:
    called = value if isinstance(value, dict) else {}
    arguments: Any = next((called[name] for name in ("arguments", "parameters") if name in called), {})
    return Call(str(called.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments))


_FUNCTION = re.compile(r"\s*(?:<function=)?([\w.-]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def _function(body: str) -> Iterator[Piece]:
    """Qwen3-Coder: `f><parameter=a>...</parameter>`, Llama 3: `f>{...}`, both behind `<function=`."""
    if not (found := _FUNCTION.fullmatch(body)):
        return
    name, inner = found[1], found[2].strip()
    parameters = [*_following(_PARAMETER, inner)]
    if inner.startswith("{"):
        yield Call(name, inner)
    elif parameters or not inner:
        yield Call(name, {parameter[1]: parameter[2] for parameter in parameters})


_GLM = re.compile(r"\s*([\w.-]+)\s*(<arg_key>.*)?", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _tool_call(body: str) -> Iterator[Piece]:
    """`<tool_call>`, behind which each model writes something else."""
    if body.lstrip()[:1] in ("{", "["):
        yield from _json(body)
    elif body.lstrip().startswith("<function="):
        yield from _function(body)
    elif found := _GLM.fullmatch(body):  # its name, then keys and values
        arguments = [*_following(_ARGUMENT, found[2] or "")]
        if arguments or not found[2]:
            yield Call(found[1], {argument[1].strip(): argument[2] for argument in arguments})


_MISTRAL = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(body: str) -> Iterator[Piece]:
    """A list of objects; of newer models `f[ARGS]{...}`, for each call behind a mark of its own."""
    for one in body.split("[TOOL_CALLS]"):
        if found := _MISTRAL.match(one):
            yield Call(found[1], one[found.end() :].strip(), found[2])
        else:
            yield from _json(one)


_KIMI = re.compile(
    r"\s*<\|tool_call_begin\|>\s*(\S+?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>\s*", re.DOTALL
)


def _kimi(body: str) -> Iterator[Piece]:
    for found in _following(_KIMI, body):
        yield Call(re.sub(r"^functions\.|:\d+$", "", found[1]), found[2].strip(), found[1])


def _special(name: str) -> str:
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"  # DeepSeek's marks have characters that nobody types


_DEEPSEEK = re.compile(
    rf"\s*{_special('tool call begin')}(?:function{_special('tool sep')})?([\w.-]+)(?:{_special('tool sep')})?"
    rf"\s*(?:```json\s*)?(\{{.*?\}})\s*(?:```\s*)?{_special('tool call end')}\s*",
    re.DOTALL,
)


def _deepseek(body: str) -> Iterator[Piece]:
    for found in _following(_DEEPSEEK, body):
        yield Call(found[1], found[2])


_RECIPIENT = re.compile(r"[^<]*\bto=functions\.([\w-]+)")


def _commentary(body: str) -> Iterator[Piece]:
    """gpt-oss: ` to=functions.f <|constrain|>json<|message|>{...}`; without a recipient it speaks to the user."""
    head, _, said = body.partition("<|message|>")
    said, _, _ = said.partition("<|end|>")
    found = _RECIPIENT.match(head)
    yield Call(found[1], said.strip()) if found else said


def _thought(body: str) -> Iterator[Piece]:
    yield Thought(body)


def _following(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield matches that follow each other from end to end of the text; nothing if there is something else in it."""
    found, at = list[re.Match[str]](), 0
    while at < len(text):
        if not (match := pattern.match(text, at)):
            return
        found.append(match)
        at = match.end()
    yield from found


class _Mark(NamedTuple):
    open: str
    close: str  # empty: the end of the text
    read: Callable[[str], Iterable[Piece]]


_MARKS = {
    open: _Mark(open, close, read)
    for open, close, read in (
        ("<tool_call>", "</tool_call>", _tool_call),
        ("<function=", "</function>", _function),
        ("<|tool_call|>", "<|/tool_call|>", _json),
        ("<|python_tag|>", "", _json),
        ("[TOOL_CALLS]", "", _mistral),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _kimi),
        (_special("tool calls begin"), _special("tool calls end"), _deepseek),
        ("<|channel|>analysis<|message|>", "<|end|>", _thought),
        ("<|channel|>commentary", "<|call|>", _commentary),
    )
}
# What gpt-oss writes around its messages, and says nothing.
_DROPPED = ("<|start|>assistant", "<|channel|>final<|message|>", "<|return|>")
_OPEN = re.compile("|".join(map(re.escape, (*_MARKS, *_DROPPED))))
