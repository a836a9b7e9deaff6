"""Declare client-run tools as functions, with a row in `TOOL_TYPES` per tool type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.core.items import (
    APPLY_PATCH_CALL,
    COMPUTER_ACTION,
    COMPUTER_CALL,
    CUSTOM_TOOL_CALL,
    FUNCTION_CALL,
    LOCAL_SHELL_CALL,
    SHELL_CALL,
    TOOL_SEARCH_CALL,
    ItemType,
)
from app.core.items.arguments import INPUT
from app.core.profile import RequestOptions
from app.core.request.grammar import pattern
from app.core.types import JSONMapping, JSONObject, json_list, json_object, json_objects
from app.core.types.hosted import NO_PARAMETERS

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # by the spec

ToolFields = JSONMapping


class ToolType(NamedTuple):
    call: ItemType
    declare: Callable[[ToolFields, RequestOptions], dict[str, object]]  # the function, without its name
    name: str | None = None  # the function's name, for tools without a name
    offered: Callable[[ToolFields], bool] = lambda tool: True
    fields: Mapping[str, object] = {}  # in each call item


def _function(tool: ToolFields, options: RequestOptions) -> dict[str, object]:
    """Omit nulls, and always send `parameters`: some servers answer 400 or 500 otherwise."""
    function: dict[str, object] = {}
    if isinstance(description := tool.get("description"), str) and description:
        function["description"] = description
    schema = tool.get("parameters")
    parameters: JSONMapping = object_schema(schema) if isinstance(schema, dict) and schema else NO_PARAMETERS
    strict = {"send": tool.get("strict"), "drop": None, "force": True}[options.strict]
    dropped = frozenset(() if strict is True else options.schema_drop)
    if any(isinstance(one, dict) and one.get("encrypted") is True for one in parameters["properties"].values()):
        dropped |= _SEALING
    function["parameters"] = stripped(parameters, dropped) if dropped else parameters
    if options.schema_form == "mfjs":
        function["parameters"] = mfjs(function["parameters"])
    return {**function, "strict": strict} if isinstance(strict, bool) else function


# OpenAI encrypts such a parameter's value; other servers reject the keyword.
_SEALING = frozenset({"encrypted"})


# Custom tools' own descriptions, for example Codex's, forbid JSON.
_FREE_TEXT = f"Put the whole text into the argument `{INPUT}`. Do not wrap it in JSON, quotes or a code fence."
_GRAMMARS = {
    "lark": "The text must match this Lark grammar:",
    "regex": "The whole text must match this regular expression:",
}


def _custom(tool: ToolFields, options: RequestOptions) -> dict[str, object]:
    text: dict[str, object] = {"type": "string", "description": "The whole text for the tool."}
    paragraphs = [tool.get("description"), _FREE_TEXT]
    input_format = tool.get("format")
    if isinstance(input_format, Mapping) and isinstance(definition := input_format.get("definition"), str):
        syntax = str(input_format.get("syntax"))
        paragraphs.append(f"{_GRAMMARS.get(syntax, 'The text must match this grammar:')}\n\n{definition}")
        if pattern := _pattern(syntax, definition, options.grammar):
            text["pattern"] = pattern
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    description = "\n\n".join(paragraph for paragraph in paragraphs if isinstance(paragraph, str) and paragraph)
    # Some servers enforce a call's schema only with `strict`.
    strict = {"strict": True} if "pattern" in text else {}
    return _function({"description": description, "parameters": parameters, **strict}, options)


def _pattern(syntax: str, definition: str, form: str) -> str | None:
    if form == "none":
        return None
    if form != "pattern" or syntax != "regex":
        return pattern(syntax, definition, form)
    # Unchanged: the server can support more syntax. Anchored: it would match anywhere.
    return definition if definition.startswith("^") and definition.endswith("$") else f"^({definition})$"


TOOL_SEARCH: JSONObject = {  # for clients without their own
    "description": "Search for more tools by their purpose. After the search you can call the tools that it found.",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "The purpose of the tool, in a few words."},
            "limit": {"type": "integer", "description": "Maximum number of tools to return."},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
}


def _fixed(
    description: str, properties: dict[str, object], *required: str
) -> Callable[[ToolFields, RequestOptions], dict[str, object]]:
    schema = {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}
    return lambda tool, options: _function({"description": description, "parameters": schema}, options)


_TIMEOUT = {"type": "integer", "description": "Timeout in milliseconds."}
_STRINGS = {"type": "array", "items": {"type": "string"}}
_NUMBER = {"type": "integer"}

_local_shell = _fixed(
    "Run a command on the user's machine. Returns its output.",
    {
        "command": {**_STRINGS, "description": 'The program and its arguments, for example ["bash", "-lc", "ls"].'},
        "working_directory": {"type": "string", "description": "Working directory."},
        "timeout_ms": _TIMEOUT,
    },
    "command",
)
_SHELL = "Run shell commands on the user's machine. Returns their output."
_SKILLS = (
    " These skills are available. Each skill is a folder with instructions in `SKILL.md`. "
    "Read its `SKILL.md` before you use a skill:"
)
_COMMANDS = {
    "commands": {**_STRINGS, "description": "Shell command lines."},
    "timeout_ms": _TIMEOUT,
    "max_output_length": {"type": "integer", "description": "Maximum number of output characters to return."},
}


def _shell(tool: ToolFields, options: RequestOptions) -> dict[str, object]:
    skills = json_objects(json_object(tool.get("environment")).get("skills"))
    about = _SKILLS if skills else ""
    lines = [f"- {skill.get('name')}: {skill.get('description')} ({skill.get('path')})" for skill in skills]
    return _fixed("\n".join([f"{_SHELL}{about}", *lines]), _COMMANDS, "commands")(tool, options)


_apply_patch = _fixed(
    "Create, update or delete one of the user's files. To update a file, write a diff in the V4A format: start each "
    "hunk with `@@`, and each of its lines with a space (unchanged), `-` (removed) or `+` (added). To create a file, "
    "start each line of the diff with `+`. To delete a file, leave the diff out.",
    {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": {"type": "string", "description": "Path of the file."},
        "diff": {"type": "string", "description": "The changes, as a V4A diff."},
    },
    *("type", "path"),
)
_ACTION: dict[str, object] = {
    "type": "object",
    "properties": {
        "type": {
            "type": "string",
            "enum": ["click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait"],
        },
        "x": {**_NUMBER, "description": "X coordinate in pixels, for click, double_click, move and scroll."},
        "y": {**_NUMBER, "description": "Y coordinate in pixels, for click, double_click, move and scroll."},
        "button": {
            "type": "string",
            "enum": ["left", "right", "wheel", "back", "forward"],
            "description": "Mouse button, for click.",
        },
        "path": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": _NUMBER, "y": _NUMBER}, "required": ["x", "y"]},
            "description": "Points of the path, for drag.",
        },
        "keys": {**_STRINGS, "description": "Keys to press, for keypress. For other actions: keys to hold."},
        "scroll_x": {**_NUMBER, "description": "Pixels to scroll right, for scroll."},
        "scroll_y": {**_NUMBER, "description": "Pixels to scroll down, for scroll."},
        "text": {"type": "string", "description": "The text to type."},
    },
    "required": ["type"],
}
_COMPUTER = "Control the user's computer with mouse and keyboard. Each call returns a screenshot."


_computer = _fixed(
    _COMPUTER,
    {"actions": {"type": "array", "items": _ACTION, "description": "Actions to perform, in order."}},
    "actions",
)


def _computer_preview(tool: ToolFields, options: RequestOptions) -> dict[str, object]:
    width, height, environment = tool.get("display_width"), tool.get("display_height"), tool.get("environment")
    screen = f" The screen is {width} pixels wide and {height} high." if width and height else ""
    system = f" Its environment: {environment}." if isinstance(environment, str) and environment else ""
    return _function({"description": f"{_COMPUTER}{screen}{system}", "parameters": _ACTION}, options)


def _runs_locally(tool: ToolFields) -> bool:
    environment = tool.get("environment")
    return environment is None or (isinstance(environment, Mapping) and environment.get("type") == "local")


TOOL_TYPES: dict[str, ToolType] = {
    "function": ToolType(FUNCTION_CALL, _function),
    "custom": ToolType(CUSTOM_TOOL_CALL, _custom),
    "tool_search": ToolType(
        TOOL_SEARCH_CALL,
        lambda tool, options: _function(
            {name: tool.get(name) or default for name, default in TOOL_SEARCH.items()}, options
        ),
        "tool_search",
        lambda tool: tool.get("execution") == "client",
        {"execution": "client"},
    ),
    "local_shell": ToolType(LOCAL_SHELL_CALL, _local_shell, "local_shell"),
    "shell": ToolType(SHELL_CALL, _shell, "shell", _runs_locally, {"environment": {"type": "local"}}),
    "apply_patch": ToolType(APPLY_PATCH_CALL, _apply_patch, "apply_patch"),
    "computer": ToolType(COMPUTER_CALL, _computer, "computer"),
    "computer_use_preview": ToolType(COMPUTER_ACTION, _computer_preview, "computer"),
}

REJECTED_KEYWORD = "This backend rejects the keyword '{}' in tool schemas; it was removed."

# Values with names or data instead of keywords.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "example", "examples"})


def _rewritten(schema: object, change: Callable[[JSONObject], JSONObject]) -> object:
    """Apply a change to a schema and all schemas in it, from the outside in."""
    if isinstance(schema, list):
        return [_rewritten(one, change) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result = change(schema)
    for keyword, value in result.items():
        if keyword in _NAMED and isinstance(value, dict):
            result[keyword] = {name: _rewritten(inner, change) for name, inner in value.items()}
        elif keyword not in _DATA:
            result[keyword] = _rewritten(value, change)
    return result


def stripped(schema: object, keywords: frozenset[str]) -> object:
    return _rewritten(schema, lambda one: {name: value for name, value in one.items() if name not in keywords})


def keyword_paths(schema: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Keywords and paths, for example `pattern` and `properties.day.pattern`."""
    if isinstance(schema, list):
        for index, one in enumerate(schema):
            yield from keyword_paths(one, f"{path}[{index}]")
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        inside = f"{path}.{keyword}" if path else keyword
        yield keyword, inside
        if keyword in _NAMED and isinstance(value, dict):
            for name, inner in value.items():
                yield from keyword_paths(inner, f"{inside}.{name}")
        elif keyword not in _DATA:
            yield from keyword_paths(value, inside)


_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_TYPED = frozenset({"type", "$ref", "anyOf"})


def mfjs(schema: object) -> object:
    """
    An equivalent schema in Moonshot Flavored JSON Schema.

    Its validator rejects a `type` next to `anyOf`, lists of `items`, and annotations next to a `$ref` that are also in
    its target: https://github.com/MoonshotAI/walle and https://github.com/vercel/ai/pull/18921.
    """
    return _rewritten(schema, _as_mfjs)


def _as_mfjs(schema: JSONObject) -> JSONObject:
    dropped = _ANNOTATIONS if "$ref" in schema else frozenset()
    result = {name: value for name, value in schema.items() if name not in dropped}
    choices = result.get("anyOf")
    if "type" in result and isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        outer = result.pop("type")
        result["anyOf"] = [choice if choice.keys() & _TYPED else {"type": outer, **choice} for choice in choices]
    if isinstance(result.get("items"), list):
        result["prefixItems"] = result.pop("items")
    return result


_ALTERNATIVES = ("anyOf", "oneOf")
_COMBINED = frozenset({"$ref", "allOf", *_ALTERNATIVES})
_LOCAL = re.compile(r"#/(\$defs|definitions)/([^/]+)")  # in the same schema
_MAX_NESTING = 8  # alternatives within alternatives, and references to references


def object_schema(schema: JSONMapping) -> JSONMapping:
    """
    Put `type: "object"` and `properties` at the top: most servers reject other forms.

    Alternatives are merged; a property is required if every alternative requires it.
    """
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and _COMBINED.isdisjoint(schema):
        return schema
    properties, required = _merged_fields(schema, schema, set(), _MAX_NESTING)
    dropped = _COMBINED if _definition(schema, schema) else _COMBINED - {"$ref"}
    merged = {name: value for name, value in schema.items() if name not in dropped}
    merged |= {"type": "object", "properties": properties}
    return {**merged, "required": required} if required else merged


def _merged_fields(
    schema: JSONMapping, root: JSONMapping, followed: set[str], nesting: int
) -> tuple[JSONObject, list[str]]:
    """
    An object's properties and required names, including its alternatives'.

    Reads each definition once, in linear time.
    """
    properties = {**json_object(schema.get("properties"))}
    required = [name for name in json_list(schema.get("required")) if isinstance(name, str)]
    if not nesting:
        return properties, required
    combined = json_objects(schema.get("allOf"))
    if (definition := _definition(schema, root)) and schema["$ref"] not in followed:
        followed.add(schema["$ref"])
        combined = [definition, *combined]
    for part in combined:
        inner, names = _merged_fields(part, root, followed, nesting - 1)
        properties = {**properties, **inner, **properties}  # the first schema with a name
        required += names
    for keyword in _ALTERNATIVES:
        choices = filter(_is_object, json_objects(schema.get(keyword)))
        if alternatives := [_merged_fields(choice, root, followed, nesting - 1) for choice in choices]:
            properties = {**properties, **_either([inner for inner, _ in alternatives]), **properties}
            in_all = set.intersection(*(set(names) for _, names in alternatives))
            required += [name for name in alternatives[0][1] if name in in_all]
    return properties, [*dict.fromkeys(required)]


def _definition(schema: JSONMapping, root: JSONMapping) -> JSONObject:
    match = _LOCAL.fullmatch(reference) if isinstance(reference := schema.get("$ref"), str) else None
    return json_object(json_object(root.get(match[1])).get(match[2])) if match else {}


def _is_object(schema: JSONMapping) -> bool:
    type_ = schema.get("type") or "object"
    return type_ == "object" or "object" in json_list(type_)


def _either(alternatives: Sequence[JSONObject]) -> JSONObject:
    """Merge properties; a property with different schemas can match any of them."""
    schemas: dict[str, dict[str, object]] = {}
    for properties in alternatives:
        for name, schema in properties.items():
            schemas.setdefault(name, {})[repr(schema)] = schema
    return {
        name: next(iter(found.values())) if len(found) == 1 else {"anyOf": [*found.values()]}
        for name, found in schemas.items()
    }
