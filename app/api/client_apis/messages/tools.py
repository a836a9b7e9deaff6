"""
Reads Messages tools as Responses API tools.

Custom tools and predefined client tools (`bash_*`, `text_editor_*`, `memory_*`, `computer_*`) become functions, server
tools become hosted tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from app.api.client_apis.messages.hosted import hosted_type, is_enabled, mcp_tool, web_tool
from app.core.types import JSONMapping, JSONObject, json_object, json_text
from app.errors import InvalidRequest, Warnings, quote

_MAX_NAME = 64  # characters, in the Responses API; Anthropic allows 128


def short_name(name: str) -> str:
    """Truncate a long name, with a hash."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class ReadTools(NamedTuple):
    fields: JSONObject
    names: Mapping[str, str]  # original names by truncated names
    client_paths: Mapping[str, str]  # see `ClientRequest`


_NOT_DISABLED = (
    "Single tools of an MCP server cannot be disabled; 'configs' was ignored. Enable the tools you need instead."
)


class _ToolReader:
    def __init__(self, warnings: Warnings) -> None:
        self.tools: list[JSONObject] = []
        self.client_paths: dict[str, str] = {}
        self.limits: list[object] = []  # `max_uses` of hosted tools
        self._warnings = warnings

    def add(self, tool: JSONObject, path: str) -> None:
        self.client_paths[f"tools[{len(self.tools)}].parameters"] = f"{path}.input_schema"
        self.client_paths[f"tools[{len(self.tools)}]"] = path
        self.tools.append(tool)

    def read(self, tools: Sequence[JSONMapping]) -> None:
        web: list[JSONMapping] = []
        for number, tool in enumerate(tools):
            kind, path = json_text(tool.get("type")) or "custom", f"tools[{number}]"
            if kind == "custom":
                declared: JSONObject = {"type": "function", "name": short_name(tool["name"])}
                fields = {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
                self.add({**declared, "parameters": tool["input_schema"], **fields}, path)
                for name in sorted(tool.keys() - _FIELDS):
                    self._warnings.add(f"The unknown parameter {quote(f'tools[].{name}')} was ignored.")
            elif found := hosted_type(kind):
                self.limits.append(tool.get("max_uses"))
                if found == "web_search":
                    web.append(tool)
                    if len(web) == 1:
                        self.add({}, path)
                else:
                    self.add({"type": found, "container": {"type": "auto"}}, path)
            elif known := next((make for prefix, make in _KNOWN.items() if kind.startswith(prefix)), None):
                self.add({"type": "function", **known(tool)}, path)
            elif kind != "mcp_toolset":
                self._warnings.add(
                    _UNKNOWN.get(kind.rstrip("_0123456789"), f"Tools of unknown type {quote(kind)} were ignored.")
                )
        for declared in self.tools:
            if not declared:
                declared.update(web_tool(web))

    def read_servers(self, servers: Sequence[JSONMapping], tools: Sequence[JSONMapping]) -> None:
        """A toolset in `tools` can select a server's tools."""
        toolsets = {tool.get("mcp_server_name"): tool for tool in tools if tool.get("type") == "mcp_toolset"}
        for number, server in enumerate(servers):
            toolset = toolsets.get(server["name"], {})
            configs = json_object(toolset.get("configs")).values()
            default = json_object(toolset.get("default_config")).get("enabled") is not False
            if default and any(json_object(config).get("enabled") is False for config in configs):
                self._warnings.add(_NOT_DISABLED)
            if is_enabled(server):
                self.add(mcp_tool(server, toolset), f"mcp_servers[{number}]")


def read_tools(
    tools: Sequence[JSONMapping], servers: Sequence[JSONMapping], choice: JSONMapping | None, warnings: Warnings
) -> ReadTools:
    """Raises `InvalidRequest` if `choice` names an undeclared tool."""
    reader = _ToolReader(warnings)
    reader.read(tools)
    reader.read_servers(servers, tools)
    fields: JSONObject = {"tools": reader.tools} if reader.tools else {}
    if reader.limits and all(reader.limits):
        fields["max_tool_calls"] = sum(limit for limit in reader.limits if isinstance(limit, int))
    elif any(reader.limits):
        warnings.add("The parameter 'max_uses' was ignored: it must be set for all hosted tools or for none.")
    if choice:
        fields |= _choice(choice, tools)
    names = {short: name for tool in tools if (short := short_name(name := json_text(tool.get("name")))) != name}
    return ReadTools(fields, names, reader.client_paths)


# The last four fields do not affect the response.
_FIELDS = frozenset({"type", "name", "description", "input_schema", "strict"}) | {
    *("cache_control", "eager_input_streaming", "defer_loading", "allowed_callers"),
}


_MODES = {"auto": "auto", "any": "required", "none": "none"}


def _choice(choice: JSONMapping, tools: Sequence[JSONMapping]) -> JSONObject:
    fields: JSONObject = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if choice["type"] != "tool":
        return {**fields, "tool_choice": _MODES[choice["type"]]}
    name = json_text(choice.get("name"))
    chosen = next((tool for tool in tools if tool.get("name") == name), None)
    if chosen is None:
        message = f"Invalid 'tool_choice.name': must be the name of one of the tools, not {quote(name)}."
        raise InvalidRequest(message, param="tool_choice.name", code="invalid_value")
    if found := hosted_type(json_text(chosen.get("type"))):
        return {**fields, "tool_choice": {"type": found}}
    return {**fields, "tool_choice": {"type": "function", "name": short_name(name)}}


# Predefined client tools. Anthropic's models know their schemas, which requests omit. Source: anthropic 2.14,
# `lib/tools`.

_TEXT = {"type": "string"}
_INTEGER = {"type": "integer"}
_PAIR = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}


def _schema(properties: JSONObject, *required: str) -> JSONObject:
    return {"type": "object", "properties": properties, "required": [*required]}


_BASH = _schema(
    {
        "command": {**_TEXT, "description": "The command to run."},
        "restart": {"type": "boolean", "description": "Restart the shell instead of running a command."},
    }
)
_EDITOR = _schema(
    {
        "command": {**_TEXT, "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
        "path": {**_TEXT, "description": "Absolute path of a file or directory."},
        "file_text": {**_TEXT, "description": "Content of the file to create."},
        "old_str": {**_TEXT, "description": "Text to replace; must occur once in the file."},
        "new_str": {**_TEXT, "description": "Replacement for old_str, or text to insert."},
        "insert_text": {**_TEXT, "description": "Text to insert."},
        "insert_line": {**_INTEGER, "description": "Insert after this line; 0 is the start of the file."},
        "view_range": {**_PAIR, "description": "First and last line to view; -1 is the end of the file."},
    },
    *("command", "path"),
)
_MEMORY = _schema(
    {
        "command": {**_TEXT, "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        "path": {**_TEXT, "description": "Path below /memories."},
        "file_text": _TEXT,
        "old_str": _TEXT,
        "new_str": _TEXT,
        "insert_line": _INTEGER,
        "insert_text": _TEXT,
        "view_range": _PAIR,
        "old_path": _TEXT,
        "new_path": _TEXT,
    },
    "command",
)
_COMPUTER = _schema(
    {
        "action": {
            **_TEXT,
            "description": "One of: key, type, mouse_move, left_click, left_click_drag, right_click, middle_click,"
            " double_click, triple_click, left_mouse_down, left_mouse_up, scroll, hold_key, wait, screenshot,"
            " cursor_position, zoom.",
        },
        "coordinate": {**_PAIR, "description": "[x, y] in pixels."},
        "start_coordinate": {**_PAIR, "description": "[x, y] where a drag starts."},
        "text": {**_TEXT, "description": "Text to type, or keys to press."},
        "scroll_direction": {**_TEXT, "enum": ["up", "down", "left", "right"]},
        "scroll_amount": _INTEGER,
        "duration": {"type": "number", "description": "Seconds to wait or hold."},
        "region": {"type": "array", "items": _INTEGER, "description": "[x0, y0, x1, y1] to zoom into."},
    },
    "action",
)


def _fixed(name: str, description: str, schema: JSONObject) -> Callable[[JSONMapping], JSONObject]:
    def declare(tool: JSONMapping) -> JSONObject:
        screen = (
            f" The screen is {width} by {tool.get('display_height_px')} pixels."
            if (width := tool.get("display_width_px"))
            else ""
        )
        return {"name": json_text(tool.get("name")) or name, "description": description + screen, "parameters": schema}

    return declare


# By type prefix, before its date.
_KNOWN: Mapping[str, Callable[[JSONMapping], JSONObject]] = {
    "bash_": _fixed("bash", "Run a command in a persistent shell on the user's machine.", _BASH),
    "text_editor_": _fixed(
        "str_replace_based_edit_tool", "View, create and edit files on the user's machine.", _EDITOR
    ),
    "memory_": _fixed("memory", "Read and write the files of the memory, below /memories.", _MEMORY),
    "computer_2": _fixed(
        "computer", "Control the user's computer by mouse and keyboard, and take screenshots.", _COMPUTER
    ),
}
_UNKNOWN = {
    f"tool_search_tool_{way}": "The tool search was ignored: all tools are offered to the model."
    for way in ("regex", "bm25")
}
