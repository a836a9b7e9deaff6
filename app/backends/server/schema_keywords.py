"""
Find schema keywords that a server rejects in tool parameters, and remove them.

Only keywords that narrow or annotate a value are removed: the client validates arguments anyway. They stay in strict
tools and text formats, which the server enforces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from app.backends.server.errors.unsupported_fields import DECLARATIONS, functions
from app.core.json_values import json_object
from app.core.request.tool_types import keyword_paths, mfjs, stripped
from app.core.types import JSONMapping, JSONObject
from app.errors import BackendError, quote

PARAMETERS = "tools[].parameters."  # prefix for a rejected keyword as a field name
_FORM = "(form)"  # instead of a keyword: schemas are rewritten (`mfjs`)
_REFUSED_FORM = re.compile(r"type should be defined in anyOf|found after \$ref expansion|items must be an object")

_REMOVABLE = (
    *("pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "const", "default"),
    *("minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
    *("minProperties", "maxProperties", "propertyNames", "patternProperties", "additionalProperties"),
    *("unevaluatedProperties", "dependentRequired", "dependentSchemas", "not", "if", "then", "else"),
    *("title", "examples", "example", "deprecated", "readOnly", "writeOnly", "nullable"),
    *("$schema", "$id", "$comment", "$anchor", "$ref", "$defs", "definitions"),
)
_ANY = "|".join(map(re.escape, _REMOVABLE))

# Keywords in schema errors: quoted, at the end of a path, or after the word "keyword".
_ABOUT_SCHEMAS = re.compile(r"schema|grammar|keyword|parameters|function_declarations", re.IGNORECASE)
_NAMED = re.compile(
    rf"""(?:(?<!properties[./\[])(?<!text\.)(?<=['"`./])|(?<=keyword ))({_ANY})(?=['"`:\s]|[.,](?:\s|$)|$)"""
)

# Keywords for errors that name none; the rows are tried in order.
_GRAMMAR = r"failed to parse grammar|failed to (?:compile|convert)[^.]{0,40} grammar|JSON schema conversion failed"
_UNNAMED = (
    (r"Pattern must (?:start|end)|pattern syntax|Unbalanced \w+|in curly brackets", ("pattern",)),  # llama.cpp
    (r"(?:recursive|circular|cyclic|infinite)[^.]{0,60}(?:schema|ref|definition)", ("$ref",)),
    (r"(?:schema|ref|definition)[^.]{0,60}(?:recursi|circular|cyclic)|(?:resolving|Unsupported) ref\b", ("$ref",)),
    # llama.cpp, LM Studio, Ollama: usually `\d` in a pattern, or too many repetitions
    (_GRAMMAR, ("pattern",)),
    (_GRAMMAR, ("minLength", "maxLength", "minItems", "maxItems")),
    (_GRAMMAR, ("format",)),
)


def refused_keywords(error: BackendError, body: JSONMapping) -> list[str]:
    if _REFUSED_FORM.search(error.message) and error.status == 400:
        return [f"{PARAMETERS}{_FORM}"] if _rewritten(body) != body else []
    schemas = [*_schemas(body)] if (groups := [*_groups(error)]) else []
    lenient = {keyword for schema in schemas if schema.lenient for keyword, _ in keyword_paths(schema.value)}
    for group in groups:
        if removable := [keyword for keyword in group if keyword in lenient]:
            return [f"{PARAMETERS}{keyword}" for keyword in removable]
        if _kept(group, schemas):
            break
    return []


def kept_keyword(error: BackendError, body: JSONMapping) -> tuple[str, str] | None:
    """The caller's field with a rejected keyword that must stay, and a sentence about it."""
    schemas = [*_schemas(body)] if (groups := [*_groups(error)]) else []
    for group in groups:
        if kept := _kept(group, schemas):
            keyword, schema, place = kept
            owner = schema.owner or f"'{schema.field}'"
            param = schema.field if schema.owner else f"{schema.field}.{place}"
            at = f"at {quote(place)} in {owner}"
            return param, f"The keyword '{keyword}' {at} was kept, because the schema is enforced."
    return None


def without_keywords(body: JSONObject, keywords: Sequence[str]) -> tuple[JSONObject, list[str]]:
    if _FORM in keywords:
        body = _rewritten(body)
    lenient = [schema.value for schema in _schemas(body) if schema.lenient] if keywords else []
    used = {keyword for schema in lenient for keyword, _ in keyword_paths(schema)}
    if not (removed := [keyword for keyword in keywords if keyword in used]):
        return body, []
    return {**body, "tools": [_without(tool, frozenset(removed)) for tool in body["tools"]]}, removed


def _rewritten(body: JSONMapping) -> JSONObject:
    return {**body, "tools": [_changed(tool, mfjs) for tool in body["tools"]]} if body.get("tools") else {**body}


def _changed(tool: JSONObject, change: Callable[[object], object]) -> JSONObject:
    function = tool.get("function", tool)
    if tool.get("type", "function") != "function":
        return tool
    function = {**function, **{name: change(function[name]) for name in _SCHEMA_FIELDS if name in function}}
    return {**tool, "function": function} if "function" in tool else function


def _without(tool: JSONObject, keywords: frozenset[str]) -> JSONObject:
    if DECLARATIONS in tool:
        return {**tool, DECLARATIONS: [_without(function, keywords) for function in tool[DECLARATIONS]]}
    if tool.get("function", tool).get("strict"):
        return tool
    return _changed(tool, lambda schema: stripped(schema, keywords))


_SCHEMA_FIELDS = ("parameters", "input_schema", "parametersJsonSchema")


class _Schema(NamedTuple):
    value: object
    field: str
    owner: str = ""
    lenient: bool = False


def _schemas(body: JSONMapping) -> Iterator[_Schema]:
    for function in functions(body):
        strict = bool(function.get("strict"))
        owner = f"the {'strict ' * strict}tool {quote(str(function.get('name')))}"
        for name in _SCHEMA_FIELDS:
            yield _Schema(function.get(name), "tools", owner, not strict)
    chat = json_object(json_object(body.get("response_format")).get("json_schema"))
    responses = json_object(json_object(body.get("text")).get("format"))
    messages = json_object(json_object(body.get("output_config")).get("format"))
    gemini = {"schema": json_object(body.get("generationConfig")).get("responseJsonSchema")}
    for text_format in (chat, responses, messages, gemini):
        yield _Schema(text_format.get("schema"), "text.format.schema")


def _groups(error: BackendError) -> Iterator[tuple[str, ...]]:
    if error.status != 400 and error.answered != 500:
        return
    if _ABOUT_SCHEMAS.search(error.message) and (named := _NAMED.findall(error.message)):
        yield tuple(dict.fromkeys(named))
    for words, keywords in _UNNAMED:
        if re.search(words, error.message, re.IGNORECASE):
            yield keywords


def _kept(group: tuple[str, ...], schemas: list[_Schema]) -> tuple[str, _Schema, str] | None:
    for schema in schemas:
        for keyword, place in keyword_paths(schema.value) if not schema.lenient else ():
            if keyword in group:
                return keyword, schema, place
    return None
