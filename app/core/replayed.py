"""
Calls of other kinds, and their outputs, as those of functions: it is as functions that a backend knows all tools.

A conversation may come from elsewhere, so calls of tools that are never offered here (OpenAI's shell and patches) are
read as well: what the model did is better told than left out. A kind of item is a row of a table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.core.arguments import INPUT
from app.core.functions import SEARCH, Offer, brought
from app.core.schema import Item


def as_functions(items: Iterable[Item], offered: Offer) -> list[Item]:
    """Return the items, each in its place, with calls and outputs as those of functions where they can be read so."""
    return [read(item, offered) if (read := _READ.get(item["type"])) else item for item in items]


def _call(item: Item, call_id: Any, name: str, arguments: Any) -> Item:
    """Return a call of a function; an item that cannot be paired with another stays what it is."""
    if not (isinstance(call_id, str) and call_id):
        return item
    written = arguments if isinstance(arguments, str) else _json(arguments)
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": written}
    return call | {field: item[field] for field in ("id", "namespace", "async") if item.get(field)}


def _output(item: Item, call_id: Any, output: Any) -> Item:
    if not (isinstance(call_id, str) and call_id):
        return item
    told = output if isinstance(output, str) else _json(output)
    return {"type": "function_call_output", "call_id": call_id, "output": told}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode()


def _custom_tool_call(item: Item, offered: Offer) -> Item:
    return _call(item, item["call_id"], item["name"], {INPUT: item["input"]})


def _custom_tool_call_output(item: Item, offered: Offer) -> Item:
    return {**item, "type": "function_call_output"}


def _tool_search_call(item: Item, offered: Offer) -> Item:
    return _call(item, item.get("call_id"), offered.name(*SEARCH), item.get("arguments") or {})


def _tool_search_output(item: Item, offered: Offer) -> Item:
    found = [f"- {name}{_about(tool)}" for name, tool in brought(item, offered)]
    told = "\n".join(["These tools were found, and can be called:", *found]) if found else "No tools were found."
    return _output(item, item.get("call_id"), told)


def _about(tool: Mapping[str, Any]) -> str:
    description = tool.get("description")
    return f": {description}" if isinstance(description, str) and description else ""


def _calling(name: str, field: str) -> Callable[[Item, Offer], Item]:
    return lambda item, offered: _call(item, item.get("call_id"), name, item.get(field) or {})


def _local_shell_call_output(item: Item, offered: Offer) -> Item:
    return _output(item, item.get("call_id") or item.get("id"), item.get("output") or "")


def _shell_call_output(item: Item, offered: Offer) -> Item:
    return _output(item, item.get("call_id"), item.get("output") or "")


def _apply_patch_call_output(item: Item, offered: Offer) -> Item:
    return _output(item, item.get("call_id"), item.get("output") or item.get("status") or "")


_READ: dict[str, Callable[[Item, Offer], Item]] = {
    "custom_tool_call": _custom_tool_call,
    "custom_tool_call_output": _custom_tool_call_output,
    "tool_search_call": _tool_search_call,
    "tool_search_output": _tool_search_output,
    "local_shell_call": _calling("local_shell", "action"),
    "local_shell_call_output": _local_shell_call_output,
    "shell_call": _calling("shell", "action"),
    "shell_call_output": _shell_call_output,
    "apply_patch_call": _calling("apply_patch", "operation"),
    "apply_patch_call_output": _apply_patch_call_output,
}
