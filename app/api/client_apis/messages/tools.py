"""
Reads Messages tools as Responses API tools.

Custom tools and predefined client tools (`bash_*`, `text_editor_*`, `memory_*`, `computer_*`) become functions, server
tools become hosted tools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import cast

import orjson

from app.api.client_apis.messages.hosted import hosted_type, mcp_tool, web_tool
from app.core.types import JSONMapping, JSONObject, json_object, json_text
from app.errors import InvalidRequest, Warnings, quote

_MAX_NAME = 64  # characters, in the Responses API; Anthropic allows 128


def short_name(name: str) -> str:
    """Truncate a long name, with a hash."""
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


_NOT_DISABLED = (
    "Single tools of an MCP server cannot be disabled; 'configs' was ignored. Enable the tools you need instead."
)


class ToolReader:
    def __init__(self, warnings: Warnings) -> None:
        self.client_paths: dict[str, str] = {}  # see `ClientRequest`
        self.names: dict[str, str] = {}  # original names by truncated names
        self._tools: list[JSONObject] = []
        self._limits: list[object] = []  # `max_uses` of hosted tools
        self._warnings = warnings

    def read(
        self, tools: Sequence[JSONMapping], servers: Sequence[JSONMapping], choice: JSONMapping | None
    ) -> JSONObject:
        """Returns request fields. Raises `InvalidRequest` if `choice` names an undeclared tool."""
        self._read_tools(tools)
        self._read_servers(servers, tools)
        fields: JSONObject = {"tools": self._tools} if self._tools else {}
        if self._limits and all(self._limits):
            fields["max_tool_calls"] = sum(limit for limit in self._limits if isinstance(limit, int))
        elif any(self._limits):
            self._warnings.add("The parameter 'max_uses' was ignored: it must be set for all hosted tools or for none.")
        if choice:
            fields |= _choice(choice, tools)
        for tool in tools:
            name = json_text(tool.get("name"))
            if (short := short_name(name)) != name:
                self.names[short] = name
        return fields

    def _add(self, tool: JSONObject, path: str) -> None:
        self.client_paths[f"tools[{len(self._tools)}].parameters"] = f"{path}.input_schema"
        self.client_paths[f"tools[{len(self._tools)}]"] = path
        self._tools.append(tool)

    def _read_tools(self, tools: Sequence[JSONMapping]) -> None:
        web = [tool for tool in tools if hosted_type(json_text(tool.get("type"))) == "web_search"]
        for number, tool in enumerate(tools):
            kind, path = json_text(tool.get("type")) or "custom", f"tools[{number}]"
            if kind == "custom":
                declared: JSONObject = {"type": "function", "name": short_name(tool["name"])}
                fields = {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
                self._add({**declared, "parameters": tool["input_schema"], **fields}, path)
                for name in sorted(tool.keys() - _FIELDS - _WITHOUT_EFFECT):
                    self._warnings.add(f"The unknown parameter {quote(f'tools[].{name}')} was ignored.")
            elif found := hosted_type(kind):
                self._limits.append(tool.get("max_uses"))
                if found != "web_search":
                    self._add({"type": found, "container": {"type": "auto"}}, path)
                elif tool is web[0]:
                    self._add(web_tool(web), path)
            elif client_tool := _client_tool(tool, kind):
                self._add(client_tool, path)
            elif kind != "mcp_toolset":
                self._warnings.add(
                    _UNKNOWN.get(kind.rstrip("_0123456789"), f"Tools of unknown type {quote(kind)} were ignored.")
                )

    def _read_servers(self, servers: Sequence[JSONMapping], tools: Sequence[JSONMapping]) -> None:
        """A toolset in `tools` can select a server's tools."""
        toolsets = {tool.get("mcp_server_name"): tool for tool in tools if tool.get("type") == "mcp_toolset"}
        for number, server in enumerate(servers):
            toolset = toolsets.get(server["name"], {})
            configs = json_object(toolset.get("configs")).values()
            default = json_object(toolset.get("default_config")).get("enabled") is not False
            if default and any(json_object(config).get("enabled") is False for config in configs):
                self._warnings.add(_NOT_DISABLED)
            if json_object(server.get("tool_configuration")).get("enabled") is not False:
                self._add(mcp_tool(server, toolset), f"mcp_servers[{number}]")


_FIELDS = frozenset({"type", "name", "description", "input_schema", "strict"})
_WITHOUT_EFFECT = frozenset({"cache_control", "eager_input_streaming", "defer_loading", "allowed_callers"})
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


@cache
def _client_tools() -> dict[str, JSONObject]:
    """
    Functions for predefined client tools, by type prefix before its date.

    Anthropic's models know their schemas, which requests omit. Source: anthropic 2.14, `lib/tools`.
    """
    return cast(dict[str, JSONObject], orjson.loads(Path(__file__).with_name("client_tools.json").read_bytes()))


def _client_tool(tool: JSONMapping, kind: str) -> JSONObject | None:
    found = next((known for prefix, known in _client_tools().items() if kind.startswith(prefix)), None)
    if found is None:
        return None
    declared = {"type": "function", **found, "name": json_text(tool.get("name")) or found["name"]}
    if width := tool.get("display_width_px"):
        declared["description"] += f" The screen is {width} by {tool.get('display_height_px')} pixels."
    return declared


_UNKNOWN = {
    f"tool_search_tool_{way}": "The tool search was ignored: all tools are offered to the model."
    for way in ("regex", "bm25")
}
