"""
Parse tool calls in a model's text, for servers without a parser for its chat template.

Text between delimiters becomes calls only if it can be parsed completely and names a declared function.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from app.core.bounded_json import loads
from app.core.types import JSONMapping, json_object
from app.core.types.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta

Schema: TypeAlias = JSONMapping


class TextToolCall(NamedTuple):
    name: str
    arguments: str | dict[str, str]  # JSON, or text by argument name, to be converted by the schema
    id: str | None = None


_NO_TEXT = TextDelta([""])

Piece: TypeAlias = str | ReasoningDelta | TextToolCall


class TextToolCallParser:
    """`functions` are the request's parameter schemas by name."""

    def __init__(self, functions: Mapping[str, Schema]) -> None:
        self._functions = functions
        self._held = ""  # possibly the start of a delimiter
        self._delimiter: _Delimiter | None = None
        self._body: list[str] = []
        self._blanks = ""  # dropped with the delimiter
        self._after_call = False

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        text, self._held = self._held + text, ""
        while text:
            text = self._inside(text, self._delimiter, deltas) if self._delimiter else self._outside(text, deltas)
        return deltas

    def end(self) -> list[Delta]:
        deltas: list[Delta] = []
        held, self._held = self._held, ""
        if self._delimiter:
            self._end_delimiter(self._delimiter, held, "", deltas)  # servers may omit the last delimiter
        elif held and not (self._after_call and held.isspace()):
            deltas.append(TextDelta([held]))
        return deltas

    def _outside(self, text: str, deltas: list[Delta]) -> str:
        match = _OPEN.search(text)
        if match:
            before = text[: match.start()]
        else:
            end = text[-_LONGEST:]
            possible = any(character in end for character in _FIRST)
            held = max(overlap(end, delimiter) for delimiter in (*_DELIMITERS, *_DROPPED)) if possible else 0
            before = text[: len(text) - held].rstrip()
            self._held = text[len(before) :]
        if self._after_call and not before.isspace():
            before = before.lstrip()
        if match:
            before, self._blanks = before.rstrip(), before[len(before.rstrip()) :]
        if before:
            self._after_call = False
            deltas.append(TextDelta([before]))
        if match is None:
            return ""
        self._delimiter = _DELIMITERS.get(match[0])
        return text[match.end() :]

    def _inside(self, text: str, delimiter: _Delimiter, deltas: list[Delta]) -> str:
        before, close, rest = text.partition(delimiter.close) if delimiter.close else (text, "", "")
        if close:
            self._end_delimiter(delimiter, before, close, deltas)
            return rest
        certain = len(text) - overlap(text, delimiter.close)
        self._body.append(text[:certain])
        self._held = text[certain:]
        return ""

    def _end_delimiter(self, delimiter: _Delimiter, last: str, close: str, deltas: list[Delta]) -> None:
        body = "".join([*self._body, last])
        self._delimiter, self._body = None, []
        try:
            parsed = [self._delta(piece) for piece in delimiter.read(body)]
        except ValueError:
            parsed = []
        self._after_call = bool(parsed)
        unparsed = TextDelta([self._blanks + delimiter.open + body + close])
        deltas += [delta for delta in parsed or [unparsed] if delta != _NO_TEXT]

    def _delta(self, piece: Piece) -> Delta:
        """Raises `ValueError` for an unknown function or invalid arguments."""
        if isinstance(piece, ReasoningDelta):
            return piece
        if isinstance(piece, str):
            return TextDelta([piece])
        if piece.name not in self._functions:
            raise ValueError
        arguments = piece.arguments
        if isinstance(arguments, dict):
            schemas = json_object(self._functions[piece.name].get("properties"))
            values = {name: _value(text, schemas.get(name)) for name, text in arguments.items()}
            arguments = json.dumps(values, ensure_ascii=False)
        elif not isinstance(loads(arguments), dict):
            raise ValueError
        return ToolCallDelta(None, piece.id, piece.name, [arguments])


def _value(text: str, schema: object) -> object:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return loads(text)
    except ValueError:
        return text


# The parsers yield nothing or raise `ValueError` if the text is invalid.


def _json(body: str) -> Iterator[Piece]:
    """Hermes, Qwen, Llama, Phi: `{"name": "f", "arguments": {...}}`, one or several, or a list."""
    values, at, decoder = list[Any](), 0, json.JSONDecoder()
    body = body.strip()
    try:
        while at < len(body):
            value, at = decoder.raw_decode(body, at)
            values += value if isinstance(value, list) else [value]
            at += len(body[at:]) - len(body[at:].lstrip(" \t\r\n;,"))
    except RecursionError as error:
        raise ValueError from error
    for call in map(json_object, values):
        arguments: Any = next((call[name] for name in ("arguments", "parameters") if name in call), {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        yield TextToolCall(str(call.get("name")), written)


_FUNCTION = re.compile(r"\s*(?:<function=)?([\w.-]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def _function(body: str) -> Iterator[Piece]:
    """Qwen3-Coder: `f><parameter=a>...</parameter>`, Llama 3: `f>{...}`, both after `<function=`."""
    if not (match := _FUNCTION.fullmatch(body)):
        return
    name, inner = match[1], match[2].strip()
    parameters = [*_following(_PARAMETER, inner)]
    if inner.startswith("{"):
        yield TextToolCall(name, inner)
    elif parameters or not inner:
        yield TextToolCall(name, {parameter[1]: parameter[2] for parameter in parameters})


_GLM = re.compile(r"\s*([\w.-]+)\s*(<arg_key>.*)?", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _tool_call(body: str) -> Iterator[Piece]:
    """The format after `<tool_call>` depends on the model."""
    if body.lstrip()[:1] in ("{", "["):
        yield from _json(body)
    elif body.lstrip().startswith("<function="):
        yield from _function(body)
    elif match := _GLM.fullmatch(body):
        arguments = [*_following(_ARGUMENT, match[2] or "")]
        if arguments or not match[2]:
            yield TextToolCall(match[1], {argument[1].strip(): argument[2] for argument in arguments})


_MISTRAL = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(body: str) -> Iterator[Piece]:
    """A list of objects; newer models write `f[ARGS]{...}`, each after its own delimiter."""
    for call in body.split("[TOOL_CALLS]"):
        if match := _MISTRAL.match(call):
            yield TextToolCall(match[1], call[match.end() :].strip(), match[2])
        else:
            yield from _json(call)


_KIMI = re.compile(
    r"\s*<\|tool_call_begin\|>\s*(\S+?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>\s*", re.DOTALL
)


def _kimi(body: str) -> Iterator[Piece]:
    for match in _following(_KIMI, body):
        yield TextToolCall(re.sub(r"^functions\.|:\d+$", "", match[1]), match[2].strip(), match[1])


_XTML_CALL = re.compile(
    r'\s*<\|open\|>call tool="([^"]+)"[^<]*<\|sep\|>(.*?)<\|close\|>call<\|sep\|>\s*',
    re.DOTALL,
)
_XTML_ARGUMENT = re.compile(
    r'\s*<\|open\|>argument key="([^"]*)" type="(\w+)"<\|sep\|>(.*?)<\|close\|>argument<\|sep\|>\s*', re.DOTALL
)
_XTML_JSON = re.compile(r"\s*<\|open\|>json[^<]*<\|sep\|>(.*)<\|close\|>json<\|sep\|>\s*", re.DOTALL)


def _xtml(body: str) -> Iterator[Piece]:
    """Kimi K3: `<|open|>call tool="f"<|sep|>`, with typed arguments or a JSON object."""
    for match in _following(_XTML_CALL, body):
        name, inner = html.unescape(match[1]), match[2].strip()
        arguments = [*_following(_XTML_ARGUMENT, inner)]
        if whole := _XTML_JSON.fullmatch(inner):
            yield TextToolCall(name, whole[1].strip())
        elif arguments or not inner:
            values = {
                html.unescape(argument[1]): argument[3] if argument[2] == "string" else _value(argument[3], None)
                for argument in arguments
            }
            yield TextToolCall(name, json.dumps(values, ensure_ascii=False))


_DSML = "\uff5cDSML\uff5c"
_MINIMAX = "]<]minimax[>["  # before each tag of M3


def _special(name: str) -> str:
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"  # characters that users do not type


_DEEPSEEK = re.compile(
    rf"\s*{_special('tool call begin')}(?:function{_special('tool sep')})?([\w.-]+)(?:{_special('tool sep')})?"
    rf"\s*(?:```json\s*)?(\{{.*?\}})\s*(?:```\s*)?{_special('tool call end')}\s*",
    re.DOTALL,
)


def _deepseek(body: str) -> Iterator[Piece]:
    for match in _following(_DEEPSEEK, body):
        yield TextToolCall(match[1], match[2])


_INVOKE = re.compile(r'\s*<invoke name="?([\w.:-]+)"?\s*>(.*?)</invoke>\s*', re.DOTALL)
_NAMED = re.compile(
    r'\s*<parameter name="?([^">]+?)"?(?:\s+string="?(true|false)"?)?\s*>\n?(.*?)\n?</parameter>\s*', re.DOTALL
)
_ELEMENT = re.compile(r"\s*<([\w.-]+)>()(.*?)</\1>\s*", re.DOTALL)


def _invoke(body: str) -> Iterator[Piece]:
    """MiniMax, and DeepSeek since V3.2 with a special token in tags: `<invoke name="f">` and parameters."""
    for match in _following(_INVOKE, body.replace(_DSML, "").replace(_MINIMAX, "")):
        inner = match[2].strip()
        parameters = [*_following(_NAMED, inner)] or [*_following(_ELEMENT, inner)]
        if inner and not parameters:
            continue
        if parameters and all(each[2] for each in parameters):  # strings are marked
            arguments = {each[1]: each[3] if each[2] == "true" else _value(each[3], None) for each in parameters}
            yield TextToolCall(match[1], json.dumps(arguments, ensure_ascii=False))
        else:
            yield TextToolCall(match[1], {each[1]: each[3] for each in parameters})


_QUOTE = '<|"|>'
_GEMMA = re.compile(r"\s*call:([\w.:-]+)(\{.*\})\s*", re.DOTALL)
_KEY = re.compile(r"([{,]\s*)([\w.-]+)\s*:")


def _gemma(body: str) -> Iterator[Piece]:
    """Gemma 4: `call:f{city:<|"|>Paris<|"|>,days:2}`, JSON with unquoted names."""
    if not (match := _GEMMA.fullmatch(body)):
        return
    runs = match[2].split(_QUOTE)  # every second run is a string
    arguments = "".join(json.dumps(run) if n % 2 else _KEY.sub(r'\1"\2":', run) for n, run in enumerate(runs))
    yield TextToolCall(match[1], json.dumps(loads(arguments), ensure_ascii=False))


_RECIPIENT = re.compile(r"[^<]*\bto=functions\.([\w-]+)")


def _commentary(body: str) -> Iterator[Piece]:
    """gpt-oss: ` to=functions.f <|constrain|>json<|message|>{...}`; text for the user without a recipient."""
    head, _, content = body.partition("<|message|>")
    content, _, _ = content.partition("<|end|>")
    match = _RECIPIENT.match(head)
    yield TextToolCall(match[1], content.strip()) if match else content


def _thought(body: str) -> Iterator[Piece]:
    yield ReasoningDelta([body])


def _following(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Consecutive matches that cover the whole text, or nothing."""
    matches, at = list[re.Match[str]](), 0
    while at < len(text):
        if not (match := pattern.match(text, at)):
            return
        matches.append(match)
        at = match.end()
    yield from matches


class _Delimiter(NamedTuple):
    open: str
    close: str  # empty: end of the text
    read: Callable[[str], Iterable[Piece]]


_DELIMITERS = {
    opening: _Delimiter(opening, closing, read)
    for opening, closing, read in (
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
# gpt-oss and Kimi K3.
_DROPPED = (
    *("<|start|>assistant", "<|channel|>final<|message|>", "<|return|>"),
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
)
_OPEN = re.compile("|".join(map(re.escape, (*_DELIMITERS, *_DROPPED))))
_LONGEST = max(map(len, (*_DELIMITERS, *_DROPPED)))
_FIRST = "".join({delimiter[0] for delimiter in (*_DELIMITERS, *_DROPPED)})


def overlap(text: str, tag: str) -> int:
    """Length of a possible start of `tag` at the end of `text`."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:length])), 0)
