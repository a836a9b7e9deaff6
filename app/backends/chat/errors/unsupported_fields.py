"""
The fields of a request that a server, when it refuses, says it does not know.

A field is one of the body, or one further inside, written in one way for all messages or tools:
`messages[].reasoning_content`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from app.errors import BackendError

MESSAGE, CALL, STRICT = "messages[].", "messages[].tool_calls[].", "tools[].strict"
_OF_MESSAGES = frozenset({"role", "content", "tool_calls", "tool_call_id"})  # all others are extras, such as thoughts
_OF_CALLS = frozenset({"id", "type", "function"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def unknown_fields(error: BackendError, body: Mapping[str, Any]) -> list[str]:
    """
    Return the fields of a request that a refusal says are not known, in its order.

    They are fields of the body, or fields further inside, written `messages[].reasoning_content` for all messages. One
    that is nowhere in the body is left out: it is none of ours, or a word of the prompt.
    """
    if error.status != 400:
        return []
    found = (_field(words, body) for words in _paths(error))
    return [*dict.fromkeys(field for field in found if field)]


def _paths(error: BackendError) -> Iterator[list[str]]:
    if error.param and error.code in ("unknown_parameter", "unsupported_parameter"):
        yield _words(error.param)
    for pattern in _ERROR_PATTERNS:
        for match in pattern.finditer(error.message):
            groups = match.groupdict()
            if path := groups.get("path"):
                yield _words(path)
                continue
            place = _words(groups.get("place") or "")
            keys = _KEY.findall(groups["names"]) or _NAME.findall(groups["names"])
            yield from (place + _words(name) for name in keys)


def _words(path: str) -> list[str]:
    """Return the names in a path, outermost first: `body.messages[1].topK` has `messages` and `top_k`."""
    names = [re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower() for name in re.findall(r"[A-Za-z_]\w*", path)]
    return names[1:] if names[:1] == ["body"] else names


def _field(words: list[str], body: Mapping[str, Any]) -> str:
    """Return the field of a request that a path leads to, "" if there is none."""
    if not words:
        return ""
    first, *rest = words
    if first == "messages" and rest:
        return _field_of_messages([word for word in rest if word not in _ROLES and "_message" not in word], body)
    if first == "tools" and rest and rest[-1] == "strict" and "parameters" not in rest:
        first = STRICT
    elif first not in body and not rest:  # there are servers that do not say where
        inside = (f"{MESSAGE}{first}", f"{CALL}{first}", STRICT if first == "strict" else first)
        first = next((field for field in inside if holds(body, field)), first)
    return first if holds(body, first) else ""


def _field_of_messages(words: list[str], body: Mapping[str, Any]) -> str:
    match words:
        case [name] if name not in _OF_MESSAGES:
            field = f"{MESSAGE}{name}"
        case ["tool_calls", name] if name not in _OF_CALLS:
            field = f"{CALL}{name}"
        case _:
            return "messages"
    return field if holds(body, field) else ""


def holds(body: Mapping[str, Any], field: str) -> bool:
    """Tell if there is such a field in a request."""
    if field.startswith(CALL):
        calls = (call for message in body.get("messages", ()) for call in message.get("tool_calls") or ())
        return any(field.removeprefix(CALL) in call for call in calls)
    if field.startswith(MESSAGE):
        return any(field.removeprefix(MESSAGE) in message for message in body.get("messages", ()))
    if field == STRICT:
        return any("strict" in function for function in functions(body))
    return field in body


def functions(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [tool["function"] for tool in body.get("tools", ()) if "function" in tool]


_NAME = re.compile(r"[A-Za-z_$][\w.$\[\]]*")
_KEY = re.compile(r"""(?<=['"])[A-Za-z_]\w*(?=['"]:)""")  # of an object, whose values are none of our business


# What stands for what in the sayings below; what is in another comes after it.
_SHORT = {
    "NOUN": r"(?:parameter|argument|field|property|propertie|key|name|input|option)s?(?:\(s\))?",
    "QUOTEDS": r"QUOTED(?:(?:, ?| and |, and )QUOTED)*",
    "QUOTED": r"""['"`][A-Za-z_$][\w.$\[\]]*['"`]""",
    "GROUP": r"[\[{(][^\]})]*",
    "BARES": r"[A-Za-z_]\w*(?:, ?[A-Za-z_]\w*)*",
    "PATH": r"(?<![\w.\[\]#/-])[\w.\[\]#/]+(?: -> [\w.\[\]]+)*",
    "EXTRA": r"extra (?:inputs are|fields) not permitted",
}


def _saying(words: str) -> re.Pattern[str]:
    for short, long in _SHORT.items():
        words = words.replace(short, long)
    return re.compile(words, re.IGNORECASE)


# How servers say that they do not know something: some `names`, perhaps in a `place`, or one thing by its whole `path`.
_ERROR_PATTERNS = (
    # OpenAI, Azure, Dynamo, Gemini, Databricks, Cohere, transformers, serde, zod, arguments of Python
    _saying(
        r"(?:unknown|unsupported|unrecogni[sz]ed|unexpected|extra) (?:(?:request|keyword|body) )?NOUN"
        r"(?: supplied| in the request| in object)?:? (?:NOUN )?"
        r"(?P<names>QUOTEDS|GROUP|(?<=: )BARES)(?: at (?P<place>QUOTED))?"
    ),
    # Groq, Cerebras, Cohere, OpenAI
    _saying(
        r"(?:(?P<place>QUOTED) ?: )?(?:NOUN )?(?P<names>QUOTED)(?: NOUN)? (?:is|are) (?:unsupported|only allowed when|"
        r"not (?:supported|allowed|permitted|recogni[sz]ed|a valid NOUN))"
    ),
    # xAI, LiteLLM, Vertex
    _saying(r"not supported (?:on|by|with|for) (?:this|the) \w+: (?P<names>QUOTEDS|BARES)"),
    _saying(r"does not support NOUN:? (?P<names>QUOTEDS|GROUP|BARES)"),
    _saying(r"does not support the (?P<names>[A-Za-z_]\w*) NOUN"),
    # Azure
    _saying(r"properties are not allowed \((?P<names>[^)]*) (?:was|were) unexpected\)(?: - (?P<place>QUOTED))?"),
    # pydantic: Fireworks, Mistral, vLLM, TensorRT-LLM, NVIDIA
    _saying(r"EXTRA, field: (?P<path>QUOTED)"),
    _saying(r"(?P<path>PATH)(?:: ?|\n *)EXTRA"),
    _saying(r"""['"]loc['"]: ?[\[(](?P<path>[^\])]*)[\])], ?['"]msg['"]: ?['"]EXTRA"""),
)
