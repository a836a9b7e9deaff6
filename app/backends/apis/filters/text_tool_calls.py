"""Syntaxes for tool calls in a model's text, by delimiter."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from app.core.bounded_json import loads
from app.core.types import JSONMapping, json_object
from app.core.types.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta

Functions: TypeAlias = Mapping[str, JSONMapping]  # parameter schemas by name


def _call(functions: Functions, name: str, arguments: str | dict[str, str], call_id: str | None = None) -> Delta:
    """
    `arguments` are JSON, or text by name, to be converted by the schema.

    Raises `ValueError` for other functions and invalid arguments.
    """
    if name not in functions:
        raise ValueError
    if isinstance(arguments, dict):
        schemas = json_object(functions[name].get("properties"))
        values = {key: _value(text, schemas.get(key)) for key, text in arguments.items()}
        arguments = json.dumps(values, ensure_ascii=False)
    elif not isinstance(loads(arguments), dict):
        raise ValueError
    return ToolCallDelta(None, call_id, name, [arguments])


def _value(text: str, schema: object) -> object:
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return loads(text)
    except ValueError:
        return text


# The readers yield nothing or raise `ValueError` if the text or a call in it is invalid.


_SEPARATORS = re.compile(r"[ \t\r\n;,]*")


def _json(body: str, functions: Functions) -> Iterator[Delta]:
    """Hermes, Qwen, Llama, Phi: `{"name": "f", "arguments": {...}}`, one or several, or a list."""
    values, at, decoder = list[Any](), 0, json.JSONDecoder()
    body = body.strip()
    try:
        while at < len(body):
            value, at = decoder.raw_decode(body, at)
            values += value if isinstance(value, list) else [value]
            at = _SEPARATORS.match(body, at).end()  # type: ignore[union-attr]
    except RecursionError as error:
        raise ValueError from error
    for call in map(json_object, values):
        arguments: Any = next((call[name] for name in ("arguments", "parameters") if name in call), {})
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        yield _call(functions, str(call.get("name")), written)


_FUNCTION = re.compile(r"\s*(?:<function=)?([\w.-]+)>(.*)", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)


def _function(body: str, functions: Functions) -> Iterator[Delta]:
    """Qwen3-Coder: `f><parameter=a>...</parameter>`, Llama 3: `f>{...}`, both after `<function=`."""
    if not (match := _FUNCTION.fullmatch(body)):
        return
    name, inner = match[1], match[2].strip().removesuffix("</function>").strip()
    parameters = [*_following(_PARAMETER, inner)]
    if inner.startswith("{"):
        yield _call(functions, name, inner)
    elif parameters or not inner:
        yield _call(functions, name, {parameter[1]: parameter[2] for parameter in parameters})


_GLM = re.compile(r"\s*([\w.-]+)\s*(<arg_key>.*)?", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _tool_call(body: str, functions: Functions) -> Iterator[Delta]:
    """The format after `<tool_call>` depends on the model."""
    if body.lstrip()[:1] in ("{", "["):
        yield from _json(body, functions)
    elif body.lstrip().startswith("<function="):
        yield from _function(body, functions)
    elif match := _GLM.fullmatch(body):
        arguments = [*_following(_ARGUMENT, match[2] or "")]
        if arguments or not match[2]:
            yield _call(functions, match[1], {argument[1].strip(): argument[2] for argument in arguments})


_MISTRAL = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(body: str, functions: Functions) -> Iterator[Delta]:
    """A list of objects; newer models write `f[ARGS]{...}`, each after its own delimiter."""
    for call in body.split("[TOOL_CALLS]"):
        if match := _MISTRAL.match(call):
            yield _call(functions, match[1], call[match.end() :].strip(), match[2])
        else:
            yield from _json(call, functions)


_KIMI = re.compile(
    r"\s*<\|tool_call_begin\|>\s*(\S+?)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>\s*", re.DOTALL
)


def _kimi(body: str, functions: Functions) -> Iterator[Delta]:
    for match in _following(_KIMI, body):
        yield _call(functions, re.sub(r"^functions\.|:\d+$", "", match[1]), match[2].strip(), match[1])


_XTML_CALL = re.compile(
    r'\s*<\|open\|>call tool="([^"]+)"[^<]*<\|sep\|>(.*?)<\|close\|>call<\|sep\|>\s*',
    re.DOTALL,
)
_XTML_ARGUMENT = re.compile(
    r'\s*<\|open\|>argument key="([^"]*)" type="(\w+)"<\|sep\|>(.*?)<\|close\|>argument<\|sep\|>\s*', re.DOTALL
)
_XTML_JSON = re.compile(r"\s*<\|open\|>json[^<]*<\|sep\|>(.*)<\|close\|>json<\|sep\|>\s*", re.DOTALL)


def _xtml(body: str, functions: Functions) -> Iterator[Delta]:
    """Kimi K3: `<|open|>call tool="f"<|sep|>`, with typed arguments or a JSON object."""
    for match in _following(_XTML_CALL, body):
        name, inner = html.unescape(match[1]), match[2].strip()
        arguments = [*_following(_XTML_ARGUMENT, inner)]
        if whole := _XTML_JSON.fullmatch(inner):
            yield _call(functions, name, whole[1].strip())
        elif arguments or not inner:
            values = {
                html.unescape(argument[1]): argument[3] if argument[2] == "string" else _value(argument[3], None)
                for argument in arguments
            }
            yield _call(functions, name, json.dumps(values, ensure_ascii=False))


_DSML = "\uff5cDSML\uff5c"
_MINIMAX = "]<]minimax[>["  # before each tag of M3


def _special(name: str) -> str:
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"  # characters that users do not type


_DEEPSEEK = re.compile(
    rf"\s*{_special('tool call begin')}(?:function{_special('tool sep')})?([\w.-]+)(?:{_special('tool sep')})?"
    rf"\s*(?:```json\s*)?(\{{.*?\}})\s*(?:```\s*)?{_special('tool call end')}\s*",
    re.DOTALL,
)


def _deepseek(body: str, functions: Functions) -> Iterator[Delta]:
    for match in _following(_DEEPSEEK, body):
        yield _call(functions, match[1], match[2])


_INVOKE = re.compile(r'\s*<invoke name="?([\w.:-]+)"?\s*>(.*?)</invoke>\s*', re.DOTALL)
_NAMED = re.compile(
    r'\s*<parameter name="?([^">]+?)"?(?:\s+string="?(true|false)"?)?\s*>\n?(.*?)\n?</parameter>\s*', re.DOTALL
)
_ELEMENT = re.compile(r"\s*<([\w.-]+)>()(.*?)</\1>\s*", re.DOTALL)


def _invoke(body: str, functions: Functions) -> Iterator[Delta]:
    """MiniMax, and DeepSeek since V3.2 with a special token in tags: `<invoke name="f">` and parameters."""
    for match in _following(_INVOKE, body.replace(_DSML, "").replace(_MINIMAX, "")):
        inner = match[2].strip()
        parameters = [*_following(_NAMED, inner)] or [*_following(_ELEMENT, inner)]
        if inner and not parameters:
            continue
        if parameters and all(each[2] for each in parameters):  # strings are marked
            arguments = {each[1]: each[3] if each[2] == "true" else _value(each[3], None) for each in parameters}
            yield _call(functions, match[1], json.dumps(arguments, ensure_ascii=False))
        else:
            yield _call(functions, match[1], {each[1]: each[3] for each in parameters})


_QUOTE = '<|"|>'
_GEMMA = re.compile(r"\s*call:([\w.:-]+)(\{.*\})\s*", re.DOTALL)
_KEY = re.compile(r"([{,]\s*)([\w.-]+)\s*:")


def _gemma(body: str, functions: Functions) -> Iterator[Delta]:
    """Gemma 4: `call:f{city:<|"|>Paris<|"|>,days:2}`, JSON with unquoted names."""
    if not (match := _GEMMA.fullmatch(body)):
        return
    runs = match[2].split(_QUOTE)  # every second run is a string
    arguments = "".join(json.dumps(run) if n % 2 else _KEY.sub(r'\1"\2":', run) for n, run in enumerate(runs))
    yield _call(functions, match[1], json.dumps(loads(arguments), ensure_ascii=False))


_RECIPIENT = re.compile(r"[^<]*\bto=functions\.([\w-]+)")


def _commentary(body: str, functions: Functions) -> Iterator[Delta]:
    """gpt-oss: ` to=functions.f <|constrain|>json<|message|>{...}`; text for the user without a recipient."""
    head, _, content = body.partition("<|message|>")
    content, _, _ = content.partition("<|end|>")
    match = _RECIPIENT.match(head)
    yield _call(functions, match[1], content.strip()) if match else TextDelta([content])


def _thought(body: str, functions: Functions) -> Iterator[Delta]:
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


# By opening delimiter: the closing delimiter (empty: the end of the text), and the reader for the text between them.
DELIMITERS: dict[str, tuple[str, Callable[[str, Functions], Iterable[Delta]]]] = {
    "<tool_call>": ("</tool_call>", _tool_call),
    "<function=": ("</function>", _function),
    "<|tool_call|>": ("<|/tool_call|>", _json),
    "<|python_tag|>": ("", _json),
    "[TOOL_CALLS]": ("", _mistral),
    "<|tool_calls_section_begin|>": ("<|tool_calls_section_end|>", _kimi),
    "<|tool_call_section_begin|>": ("<|tool_call_section_end|>", _kimi),
    "<|open|>tools<|sep|>": ("<|close|>tools<|sep|>", _xtml),
    "<|open|>think<|sep|>": ("<|close|>think<|sep|>", _thought),
    _special("tool calls begin"): (_special("tool calls end"), _deepseek),
    f"<{_DSML}function_calls>": (f"</{_DSML}function_calls>", _invoke),
    f"<{_DSML}tool_calls>": (f"</{_DSML}tool_calls>", _invoke),
    "<minimax:tool_call>": ("</minimax:tool_call>", _invoke),
    f"{_MINIMAX}<tool_call>": (f"{_MINIMAX}</tool_call>", _invoke),
    "<|tool_call>": ("<tool_call|>", _gemma),
    "<|channel>thought\n": ("<channel|>", _thought),
    "<seed:tool_call>": ("</seed:tool_call>", _tool_call),
    "<TOOLCALL>": ("</TOOLCALL>", _json),  # Nemotron
    "<|channel|>analysis<|message|>": ("<|end|>", _thought),
    "<|channel|>commentary": ("<|call|>", _commentary),
}
# gpt-oss and Kimi K3.
DROPPED = (
    *("<|start|>assistant", "<|channel|>final<|message|>", "<|return|>"),
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
)
OPENINGS = re.compile("|".join(map(re.escape, (*DELIMITERS, *DROPPED))))
LONGEST_OPENING = max(map(len, (*DELIMITERS, *DROPPED)))
FIRST_CHARACTERS = "".join({delimiter[0] for delimiter in (*DELIMITERS, *DROPPED)})
