"""
How each type of tool is told to a backend, which knows functions only.

A type of tool that can be offered is a row of a table here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from app.core import grammar
from app.core.arguments import INPUT
from app.core.kinds import CUSTOM_TOOL_CALL, FUNCTION_CALL, TOOL_SEARCH_CALL, Call
from app.core.profile import Request

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of a tool, by the spec

Tool = Mapping[str, Any]


class Kind(NamedTuple):
    """One type of tool."""

    call: Call  # how a call of it comes back
    declare: Callable[[Tool, Request], dict[str, Any]]  # all but the name of the function that it is to a backend


def _function(tool: Tool, options: Request) -> dict[str, Any]:
    """No nulls, and always `parameters`, or servers answer 400 and 500."""
    function: dict[str, Any] = {}
    if isinstance(description := tool.get("description"), str) and description:
        function["description"] = description
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        parameters = NO_PARAMETERS
    if parameters.get("type") == "object" and "properties" not in parameters:
        parameters = {**parameters, "properties": {}}
    dropped = frozenset((*options.schema_drop, *_SEALING)) if _is_sealed(parameters) else frozenset(options.schema_drop)
    function["parameters"] = stripped(parameters, dropped) if dropped else parameters
    strict = _STRICT[options.strict](tool.get("strict"))
    return {**function, "strict": strict} if isinstance(strict, bool) else function


# OpenAI seals what the model writes for such a parameter, and refuses the keyword elsewhere. Codex's agents talk so.
_SEALING = ("encrypted",)


def _is_sealed(parameters: Tool) -> bool:
    properties = parameters.get("properties")
    schemas = properties.values() if isinstance(properties, dict) else ()
    return any(isinstance(schema, dict) and schema.get("encrypted") is True for schema in schemas)


_STRICT: dict[str, Callable[[bool | None], bool | None]] = {
    "send": lambda strict: strict,
    "drop": lambda strict: None,
    "force": lambda strict: True,
}

# Descriptions of custom tools say that they take no JSON, as Codex's does; but here they are functions.
_FREE_TEXT = (
    f"This tool takes free text, which is the argument `{INPUT}`: the whole text as it is, not wrapped in anything."
)
_GRAMMARS = {
    "lark": "The text has to match this Lark grammar:",
    "regex": "The text has to match this regular expression from end to end:",
}


def _custom(tool: Tool, options: Request) -> dict[str, Any]:
    """A function of one string, in which the model writes its free text."""
    text: dict[str, Any] = {"type": "string", "description": "The text for the tool."}
    said = [tool.get("description"), _FREE_TEXT]
    format = tool.get("format")
    if isinstance(format, Mapping) and isinstance(definition := format.get("definition"), str):
        syntax = str(format.get("syntax"))
        said.append(f"{_GRAMMARS.get(syntax, 'The text has to match this grammar:')}\n\n{definition}")
        if pattern := _pattern(syntax, definition, options.grammar):
            text["pattern"] = pattern
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    description = "\n\n".join(one for one in said if isinstance(one, str) and one)
    # There are servers that hold a call to its schema only where they are told to be strict.
    strict = {"strict": True} if "pattern" in text else {}
    return _function({"description": description, "parameters": parameters, **strict}, options)


def _pattern(syntax: str, definition: str, form: str) -> str | None:
    if form == "none":
        return None
    if form != "pattern" or syntax != "regex":
        return grammar.pattern(syntax, definition, form)
    # As it is: the server may know more of regular expressions than is understood here. It matches anywhere otherwise.
    return definition if definition.startswith("^") and definition.endswith("$") else f"^({definition})$"


_SEARCH = {
    "description": "Search for more tools by what they do. The tools that are found can be called from then on.",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What the tool should do, in a few words."},
            "limit": {"type": "integer", "description": "How many tools to find at most."},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
}


def _tool_search(tool: Tool, options: Request) -> dict[str, Any]:
    """The search that the client runs, in its own words if it has any."""
    return _function({name: tool.get(name) or default for name, default in _SEARCH.items()}, options)


KINDS: dict[str, Kind] = {
    "function": Kind(FUNCTION_CALL, _function),
    "custom": Kind(CUSTOM_TOOL_CALL, _custom),
    "tool_search": Kind(TOOL_SEARCH_CALL, _tool_search),
}

# Under these the keys are names that the schema gives, and under those the values are data: no keywords in either.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "example", "examples"})


def stripped(schema: Any, keywords: frozenset[str]) -> Any:
    """Return a JSON Schema without these keywords, at any depth."""
    if isinstance(schema, list):
        return [stripped(one, keywords) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in keywords:
            continue
        if keyword in _NAMED and isinstance(value, dict):
            kept[keyword] = {name: stripped(one, keywords) for name, one in value.items()}
        else:
            kept[keyword] = value if keyword in _DATA else stripped(value, keywords)
    return kept
