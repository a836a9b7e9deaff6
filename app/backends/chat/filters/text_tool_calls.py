"""
Find the tool calls that a model writes into its text, between the marks of its chat template.

A server that has a parser for them takes them out by itself. For one that has none, or another model's, it is done
here: what stands between marks is a call if it can be read, whole, and names a function that is on offer. All else is
text.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from app.backends.chat.filters.think_tags import overlap
from app.core.types.bounded_json import loads

Schema: TypeAlias = Mapping[str, Any]


class TextToolCall(NamedTuple):
    """A call as it is written; some models give it an id."""

    name: str
    arguments: str | dict[str, str]  # JSON, or the text of each argument: the schema tells what it means
    id: str | None = None


class TextReasoning(NamedTuple):
    """What the model thinks, where its thoughts have such marks, too."""

    text: str


Piece: TypeAlias = str | TextReasoning | TextToolCall


class TextToolCallParser:
    """
    Finds the calls in one text, fed piece by piece.

    `functions` are those on offer, by name, with the schemas of their parameters.
    """

    def __init__(self, functions: Mapping[str, Schema]) -> None:
        self._functions = functions
        self._held = ""  # the end of the text, where a mark may have begun
        self._mark: _Mark | None = None  # the one that is open
        self._body: list[str] = []  # what stands behind it
        self._blanks = ""  # those before it, which go with it
        self._behind = False  # has there been nothing but blanks since a call?

    def feed(self, text: str) -> list[Piece]:
        """Return what is certain after this piece, in order."""
        pieces: list[Piece] = []
        text, self._held = self._held + text, ""
        while text:
            text = self._inside(text, self._mark, pieces) if self._mark else self._outside(text, pieces)
        return pieces

    def end(self) -> list[Piece]:
        """Return what is held: nothing follows."""
        pieces: list[Piece] = []
        held, self._held = self._held, ""
        if self._mark:
            self._take(self._mark, held, "", pieces)  # the last mark is one at which servers stop, and not always there
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

    def _inside(self, text: str, mark: _Mark, pieces: list[Piece]) -> str:
        """Tell the call before the closing mark, and return what stands behind it."""
        before, close, behind = text.partition(mark.close) if mark.close else (text, "", "")
        if close:
            self._take(mark, before, close, pieces)
            return behind
        certain = len(text) - overlap(text, mark.close)
        self._body.append(text[:certain])
        self._held = text[certain:]
        return ""

    def _take(self, mark: _Mark, last: str, close: str, pieces: list[Piece]) -> None:
        """Tell what stood between marks: if it cannot be read, as it is, with them."""
        body = "".join([*self._body, last])
        self._mark, self._body = None, []
        read = [self._fitting(one) for one in mark.read(body)]
        if read and None not in read:
            pieces += [one for one in read if one]
            self._behind = True
        else:
            pieces.append(self._blanks + mark.open + body + close)
            self._behind = False

    def _fitting(self, piece: Piece) -> Piece | None:
        """Return a call with its arguments as JSON; None if there is no such function, or no such JSON."""
        if not isinstance(piece, TextToolCall):
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
    end = text[-_LONGEST:]
    begun = any(character in end for character in _FIRST)
    held = max(overlap(end, mark) for mark in (*_MARKS, *_DROPPED)) if begun else 0
    return len(text[: len(text) - held].rstrip())


def _is_object(text: str) -> bool:
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False


def _value(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return loads(text)
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


def _from_object(value: Any) -> TextToolCall:
    called = value if isinstance(value, dict) else {}
    arguments: Any = next((called[name] for name in ("arguments", "parameters") if name in called), {})
    return TextToolCall(str(called.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments))


_FUNCTION = re.compile(r"\s*(?:<function=)?([\w.-]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def _function(body: str) -> Iterator[Piece]:
    """Qwen3-Coder: `f><parameter=a>...</parameter>`, Llama 3: `f>{...}`, both behind `<function=`."""
    if not (found := _FUNCTION.fullmatch(body)):
        return
    name, inner = found[1], found[2].strip()
    parameters = [*_following(_PARAMETER, inner)]
    if inner.startswith("{"):
        yield TextToolCall(name, inner)
    elif parameters or not inner:
        yield TextToolCall(name, {parameter[1]: parameter[2] for parameter in parameters})


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
            yield TextToolCall(found[1], {argument[1].strip(): argument[2] for argument in arguments})


_MISTRAL = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(body: str) -> Iterator[Piece]:
    """A list of objects; of newer models `f[ARGS]{...}`, for each call behind a mark of its own."""
    for one in body.split("[TOOL_CALLS]"):
        if found := _MISTRAL.match(one):
            yield TextToolCall(found[1], one[found.end() :].strip(), found[2])
        else:
            yield from _json(one)


_KIMI = re.compile(
    r"\s*<\|tool_call_begin\|>\s*(\S+?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>\s*", re.DOTALL
)


def _kimi(body: str) -> Iterator[Piece]:
    for found in _following(_KIMI, body):
        yield TextToolCall(re.sub(r"^functions\.|:\d+$", "", found[1]), found[2].strip(), found[1])


_XTML_CALL = re.compile(
    r'\s*<\|open\|>call tool="([^"]+)"[^<]*<\|sep\|>(.*?)<\|close\|>call<\|sep\|>\s*',
    re.DOTALL,
)
_XTML_ARGUMENT = re.compile(
    r'\s*<\|open\|>argument key="([^"]*)" type="(\w+)"<\|sep\|>(.*?)<\|close\|>argument<\|sep\|>\s*', re.DOTALL
)
_XTML_JSON = re.compile(r"\s*<\|open\|>json[^<]*<\|sep\|>(.*)<\|close\|>json<\|sep\|>\s*", re.DOTALL)


def _xtml(body: str) -> Iterator[Piece]:
    """Kimi K3: `<|open|>call tool="f"<|sep|>`, and in it arguments with their types, or all of them as JSON."""
    for found in _following(_XTML_CALL, body):
        name, inner = html.unescape(found[1]), found[2].strip()
        arguments = [*_following(_XTML_ARGUMENT, inner)]
        if whole := _XTML_JSON.fullmatch(inner):
            yield TextToolCall(name, whole[1].strip())
        elif arguments or not inner:
            values = {
                html.unescape(one[1]): one[3] if one[2] == "string" else _value(one[3], None) for one in arguments
            }
            yield TextToolCall(name, json.dumps(values, ensure_ascii=False))


_DSML = "\uff5cDSML\uff5c"
_MINIMAX = "]<]minimax[>["  # what M3 writes before each tag


def _special(name: str) -> str:
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"  # DeepSeek's marks have characters that nobody types


_DEEPSEEK = re.compile(
    rf"\s*{_special('tool call begin')}(?:function{_special('tool sep')})?([\w.-]+)(?:{_special('tool sep')})?"
    rf"\s*(?:```json\s*)?(\{{.*?\}})\s*(?:```\s*)?{_special('tool call end')}\s*",
    re.DOTALL,
)


def _deepseek(body: str) -> Iterator[Piece]:
    for found in _following(_DEEPSEEK, body):
        yield TextToolCall(found[1], found[2])


_INVOKE = re.compile(r'\s*<invoke name="?([\w.:-]+)"?\s*>(.*?)</invoke>\s*', re.DOTALL)
_NAMED = re.compile(
    r'\s*<parameter name="?([^">]+?)"?(?:\s+string="?(true|false)"?)?\s*>\n?(.*?)\n?</parameter>\s*', re.DOTALL
)
_ELEMENT = re.compile(r"\s*<([\w.-]+)>()(.*?)</\1>\s*", re.DOTALL)


def _invoke(body: str) -> Iterator[Piece]:
    """MiniMax, and DeepSeek from V3.2 on, whose tags have a token of their own: `<invoke name="f">` and parameters."""
    for found in _following(_INVOKE, body.replace(_DSML, "").replace(_MINIMAX, "")):
        inner = found[2].strip()
        parameters = [*_following(_NAMED, inner)] or [*_following(_ELEMENT, inner)]
        if inner and not parameters:
            continue
        if parameters and all(one[2] for one in parameters):  # it says itself what is a text
            arguments = {one[1]: one[3] if one[2] == "true" else _value(one[3], None) for one in parameters}
            yield TextToolCall(found[1], json.dumps(arguments, ensure_ascii=False))
        else:
            yield TextToolCall(found[1], {one[1]: one[3] for one in parameters})


_QUOTE = '<|"|>'
_GEMMA = re.compile(r"\s*call:([\w.:-]+)(\{.*\})\s*", re.DOTALL)
_KEY = re.compile(r"([{,]\s*)([\w.-]+)\s*:")


def _gemma(body: str) -> Iterator[Piece]:
    """Gemma 4: `call:f{city:<|"|>Paris<|"|>,days:2}`, JSON without quotation marks around the names of members."""
    if not (found := _GEMMA.fullmatch(body)):
        return
    runs = found[2].split(_QUOTE)  # every other one is a text
    arguments = "".join(json.dumps(run) if n % 2 else _KEY.sub(r'\1"\2":', run) for n, run in enumerate(runs))
    try:
        yield TextToolCall(found[1], json.dumps(loads(arguments), ensure_ascii=False))
    except ValueError:
        return


_RECIPIENT = re.compile(r"[^<]*\bto=functions\.([\w-]+)")


def _commentary(body: str) -> Iterator[Piece]:
    """gpt-oss: ` to=functions.f <|constrain|>json<|message|>{...}`; without a recipient it speaks to the user."""
    head, _, said = body.partition("<|message|>")
    said, _, _ = said.partition("<|end|>")
    found = _RECIPIENT.match(head)
    yield TextToolCall(found[1], said.strip()) if found else said


def _thought(body: str) -> Iterator[Piece]:
    yield TextReasoning(body)


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
        ("<|tool_call_section_begin|>", "<|tool_call_section_end|>", _kimi),
        ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", _xtml),
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>", _thought),
        (_special("tool calls begin"), _special("tool calls end"), _deepseek),
        (f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _invoke),
        (f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", _invoke),
        ("<minimax:tool_call>", "</minimax:tool_call>", _invoke),
        (f"{_MINIMAX}<tool_call>", f"{_MINIMAX}</tool_call>", _invoke),
        ("<|tool_call>", "<tool_call|>", _gemma),
        ("<|channel>thought\n", "<channel|>", _thought),
        ("<seed:tool_call>", "</seed:tool_call>", _tool_call),
        ("<TOOLCALL>", "</TOOLCALL>", _json),  # Nemotron
        ("<|channel|>analysis<|message|>", "<|end|>", _thought),
        ("<|channel|>commentary", "<|call|>", _commentary),
    )
}
# What gpt-oss and Kimi K3 write around their messages, and says nothing.
_DROPPED = (
    *("<|start|>assistant", "<|channel|>final<|message|>", "<|return|>"),
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
)
_OPEN = re.compile("|".join(map(re.escape, (*_MARKS, *_DROPPED))))
_LONGEST = max(map(len, (*_MARKS, *_DROPPED)))
_FIRST = "".join({mark[0] for mark in (*_MARKS, *_DROPPED)})
