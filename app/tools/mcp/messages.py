"""
Repairs MCP messages that the SDK would discard.

Too deeply nested messages cannot be parsed, and a nonconforming tool invalidates the whole tool list. So deep values
become null, and nonconforming fields are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import mcp_types
from mcp.client import streamable_http
from pydantic import ValidationError

MAX_LEVELS = 150  # in a message; pydantic parses about 200
MAX_REPAIRED_BYTES = 4 * 1024 * 1024  # the search for deep nesting blocks the event loop

# A string, or a bracket outside a string.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{}]', re.DOTALL)


def parse_leniently() -> None:
    adapter = _Adapter(mcp_types.jsonrpc_message_adapter)
    for module in (mcp_types, streamable_http):
        setattr(module, "jsonrpc_message_adapter", adapter)  # noqa: B010 - the SDK declares its type


class _Adapter:
    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def validate_json(self, data: str | bytes, **options: Any) -> Any:
        try:
            message = self._adapter.validate_json(data, **options)
        except ValidationError:
            if len(data) > MAX_REPAIRED_BYTES:
                raise
            encoded = data.encode(errors="surrogatepass") if isinstance(data, str) else data
            if (repaired := truncate_nesting(encoded)) == encoded:
                raise
            message = self._adapter.validate_json(repaired, **options)
        if isinstance(message, mcp_types.JSONRPCResponse) and isinstance(tools := message.result.get("tools"), list):
            conforming = [*map(conforming_tool, tools)]
            if any(tool["name"] for tool in conforming):  # otherwise not a tool list
                message.result["tools"] = conforming
        return message


def truncate_nesting(data: bytes, levels: int = MAX_LEVELS) -> bytes:
    """Replace objects and arrays nested below `levels` others with null."""
    parts: list[bytes] = []
    level = end = 0
    for token in _TOKENS.finditer(data):
        mark = data[token.start()]
        if mark in b"[{":
            level += 1
            if level == levels + 1:
                parts.append(data[end : token.start()])
        elif mark in b"]}":
            if level == levels + 1:
                parts.append(b"null")
                end = token.end()
            level -= 1
    return b"".join([*parts, data[end:]]) if level == 0 else data


def conforming_tool(tool: object) -> dict[str, object]:
    """The tool's fields that are used here."""
    described = tool if isinstance(tool, Mapping) and isinstance(tool.get("name"), str) else {"name": ""}
    fields: dict[str, object] = {
        field: text for field in ("name", "title", "description") if isinstance(text := described.get(field), str)
    }
    if isinstance(annotations := described.get("annotations"), Mapping):
        hints = {name: hint for name, hint in annotations.items() if isinstance(hint, bool)}
        fields |= {"annotations": hints} if hints else {}
    return {**fields, "inputSchema": _conforming_schema(described.get("inputSchema"))}


def _conforming_schema(schema: object) -> dict[str, object]:
    conforming = {**schema, "type": "object"} if isinstance(schema, dict) else {"type": "object"}
    properties, required = conforming.get("properties"), conforming.get("required")
    if not isinstance(properties, dict) or not all(isinstance(one, dict | bool) for one in properties.values()):
        conforming.pop("properties", None)
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        conforming.pop("required", None)
    if not isinstance(conforming.get("$schema"), str):
        conforming.pop("$schema", None)
    return conforming
