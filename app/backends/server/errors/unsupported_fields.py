"""Find request fields that an error reports as unknown: `top_k`, `messages[].reasoning_content`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from app.core.types import JSONMapping, JSONObject, json_objects
from app.errors import BackendError

MESSAGE, CALL, ITEM, STRICT = "messages[].", "messages[].tool_calls[].", "input[].", "tools[].strict"
DECLARATIONS = "functionDeclarations"
_MESSAGE_FIELDS = frozenset({"role", "content", "tool_calls", "tool_call_id"})  # others are extensions
_CALL_FIELDS = frozenset({"id", "type", "function"})
_OPTIONAL_ITEM_FIELDS = frozenset({"phase", "status", "namespace"})  # without effect on the item's meaning
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def unknown_fields(error: BackendError, body: JSONMapping) -> list[str]:
    """Fields as the error orders them. Names outside the body are ignored: they may be words in the prompt."""
    if error.status != 400:
        return []
    text = f"{error.code}: {error.message}"
    changes = [field for field, words in _CHANGES if _compiled(words).search(text) and has_field(body, field)]
    fields = changes or [_field(names, body) for names in _paths(error)]
    return [*dict.fromkeys(field for field in fields if field and has_field(body, field))]


REASONING_OFF = "reasoning_effort with tools"  # sent as `none`; Chat Completions only
UNREADABLE = "input[].encrypted_content"  # removes items with content that the server cannot read


# Set by this server: OpenAI rejects `include` for non-reasoning models, reporting only `param`.
_VALUES = frozenset({"include"})


def _paths(error: BackendError) -> Iterator[list[str]]:
    if error.param and (error.code in ("unknown_parameter", "unsupported_parameter") or error.param in _VALUES):
        yield _names_in(error.param)
    for words in _ERROR_PATTERNS:
        for match in _compiled(words).finditer(error.message):
            groups = match.groupdict()
            if path := groups.get("path"):
                yield _names_in(path)
                continue
            place = _names_in(groups.get("place") or "")
            keys = _KEY.findall(groups["names"]) or _NAME.findall(groups["names"])
            yield from (place + _names_in(name) for name in keys)


def _names_in(path: str) -> list[str]:
    """A path's names, outermost first: `messages` and `top_k` for `body.messages[1].topK`."""
    names = [re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower() for name in re.findall(r"[A-Za-z_]\w*", path)]
    return names[1:] if names[:1] == ["body"] else names


def _field(names: list[str], body: JSONMapping) -> str:
    match names:
        case []:
            return ""
        case ["messages", _, *_]:
            match [name for name in names[1:] if name not in _ROLES and "_message" not in name]:
                case [name] if name not in _MESSAGE_FIELDS:
                    return f"{MESSAGE}{name}"
                case ["tool_calls", name] if name not in _CALL_FIELDS:
                    return f"{CALL}{name}"
        case ["input", *_, name] if name in _OPTIONAL_ITEM_FIELDS:
            return f"{ITEM}{name}"
        case ["tools", *inner, "strict"] if "parameters" not in inner:
            return STRICT
        case [name] if name not in body:  # some servers omit the path
            inside = (f"{MESSAGE}{name}", f"{CALL}{name}", STRICT if name == "strict" else name)
            return next((field for field in inside if has_field(body, field)), name)
    return names[0]


def has_field(body: JSONMapping, field: str) -> bool:
    if field == REASONING_OFF:
        return bool(body.get("tools")) and "messages" in body and body.get("reasoning_effort") != "none"
    if field == UNREADABLE:
        return any(item.get("encrypted_content") for item in json_objects(body.get("input")))
    if field == STRICT:
        return any("strict" in function for function in declared_functions(body))
    *lists, name = field.split("[].")
    objects = [body]
    for each in lists:
        objects = [inner for outer in objects for inner in json_objects(outer.get(each))]
    return any(name in each for each in objects)


def without(value: JSONObject, field: str) -> JSONObject:
    """Remove a field at a path such as `messages[].name`."""
    outer, _, inner = field.partition("[].")
    if inner:
        return {**value, outer: [without(each, inner) for each in value[outer]]} if value.get(outer) else value
    return {name: each for name, each in value.items() if name != field} if field in value else value


def declared_functions(body: JSONMapping) -> list[JSONObject]:
    """Chat nests functions in objects, Gemini in lists."""
    tools = [tool for tool in json_objects(body.get("tools")) if tool.get("type", "function") == "function"]
    declared = [json_objects(tool.get(DECLARATIONS)) or [tool.get("function", tool)] for tool in tools]
    return [function for each in declared for function in each]


_NAME = re.compile(r"[A-Za-z_$][\w.$\[\]]*")
_KEY = re.compile(r"""(?<=['"])[A-Za-z_]\w*(?=['"]:)""")


# Abbreviations in the patterns below. An abbreviation contained in another comes after it.
_SHORT = {
    "NOUN": r"(?:parameter|argument|field|property|propertie|key|name|input|option)s?(?:\(s\))?",
    "QUOTEDS": r"QUOTED(?:(?:, ?| and |, and )QUOTED)*",
    "QUOTED": r"""['"`][A-Za-z_$][\w.$\[\]]*['"`]""",
    "GROUP": r"[\[{(][^\]})]*",
    "BARES": r"[A-Za-z_]\w*(?:, ?[A-Za-z_]\w*)*",
    "PATH": r"(?<![\w.\[\]#/-])[\w.\[\]#/]+(?: -> [\w.\[\]]+)*",
    "EXTRA": r"extra (?:inputs are|fields) not permitted",
}


@cache
def _compiled(words: str) -> re.Pattern[str]:
    """Expand abbreviations. Compiled at the first error, because all patterns take 10 ms."""
    for short, long in _SHORT.items():
        words = words.replace(short, long)
    return re.compile(words, re.IGNORECASE)


# Reports about unknown fields: `names`, optionally in a `place`, or a field's whole `path`.
_ERROR_PATTERNS = (
    # OpenAI, Azure, Dynamo, Gemini, Databricks, Cohere, transformers, serde, zod, Python arguments
    (
        r"(?:unknown|unsupported|unrecogni[sz]ed|unexpected|extra) (?:(?:request|keyword|body) )?NOUN"
        r"(?: supplied| in the request| in object)?:? (?:NOUN )?"
        r"(?P<names>QUOTEDS|GROUP|(?<=: )BARES)(?: at (?P<place>QUOTED))?"
    ),
    # Groq, Cerebras, Cohere, OpenAI
    (
        r"(?:(?P<place>QUOTED) ?: )?(?:NOUN )?(?P<names>QUOTED)(?: NOUN)? (?:is|are) (?:unsupported|only allowed when|"
        r"not (?:supported|allowed|permitted|recogni[sz]ed|a valid NOUN))"
    ),
    # xAI, LiteLLM, Vertex
    r"not supported (?:on|by|with|for) (?:this|the) \w+: (?P<names>QUOTEDS|BARES)",
    r"does not support NOUN:? (?P<names>QUOTEDS|GROUP|BARES)",
    r"does not support the (?P<names>[A-Za-z_]\w*) NOUN",
    # Azure
    r"properties are not allowed \((?P<names>[^)]*) (?:was|were) unexpected\)(?: - (?P<place>QUOTED))?",
    # pydantic: Fireworks, Mistral, vLLM, TensorRT-LLM, NVIDIA
    r"EXTRA, field: (?P<path>QUOTED)",
    r"(?P<path>PATH)(?:: ?|\n *)EXTRA",
    r"""['"]loc['"]: ?[\[(](?P<path>[^\])]*)[\])], ?['"]msg['"]: ?['"]EXTRA""",
)

_CHANGES = (
    # OpenAI's gpt-5.4 and later, in chat (openai-openapi#541, litellm#34569)
    (REASONING_OFF, r"tools (?:with|and) ['\"`]?reasoning[_ ]effort['\"`]? (?:is|are) not supported"),
    (REASONING_OFF, r"tools[^.]{0,80} reasoning[^.]{0,80}/v1/responses"),
    # OpenAI, for content from another account or region; Antiphon
    (UNREADABLE, r"invalid_encrypted_content|encrypted content .{0,200}could not be (?:verified|decrypted)"),
)
