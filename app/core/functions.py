"""
From the tools of a request, and of its conversation, to the functions of a chat request.

Backends know functions only, each by one name. A tool in a namespace (`{"type": "namespace", "name": "mcp__lab",
"tools": [...]}`, as Codex sends them) is the function `mcp__lab__add` to them. A tool of a type that cannot be offered
is left out with a warning, never refused: Codex always sends some, and works well without.

Tools come in the request's `tools`, in items of type `additional_tools`, and in those of type `tool_search_output`, of
this turn or of an earlier one. What the request's `tools` say counts for more than what stands in items, and a later
item for more than an earlier one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.core.declarations import KINDS, NAME, NO_PARAMETERS, Tool
from app.core.kinds import FUNCTION_CALL, Callee
from app.core.parts import label
from app.core.profile import Request
from app.core.schema import Item
from app.errors import InvalidRequest

_MAX_NAME = 64  # characters, by the spec

# The search for tools has no name to a client; to a backend it has one that no other function has.
SEARCH = ("", "tool_search")

# The items that bring tools, and whether these were found by a search.
_BRINGING = {"additional_tools": False, "tool_search_output": True}


class Function(NamedTuple):
    """A function as the backend is told of it, and what it is to the client."""

    tool: dict[str, Any]
    callee: Callee


@dataclass(frozen=True, slots=True)
class HostedFunction:
    """A function that the server runs itself when the model calls it; see `app.tools`."""

    name: str  # as the tool knows it
    item: str  # the type of the item that a call of it is, such as `mcp_call`
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)  # a JSON Schema
    namespace: str | None = None  # `lab` of `lab__add`: where functions of several sessions may have the same name
    fields: Mapping[str, Any] = field(default_factory=dict)  # of each item when it opens, such as its `container_id`
    strict: bool | None = None
    needs_approval: bool = False  # is each call to be approved by the caller first?
    deferred: bool = False  # is it offered only after a search for tools has found it?


class Offer:
    """The functions of a request, by the names that the backend knows them by."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.deferred: set[tuple[str | None, str]] = set()  # they have to be searched for first
        self._names: dict[tuple[str | None, str], str] = {}  # by namespace and name, as the client knows them

    def add(self, namespace: str | None, name: str, tool: Tool, options: Request) -> None:
        """Add a function, or say anew what it is."""
        known = self._names[namespace, name] = self.name(namespace, name)
        kind = KINDS[tool["type"]]
        declared = {"type": "function", "function": {"name": known, **kind.declare(tool, options)}}
        fields: dict[str, Any] = {"execution": "client"} if (namespace, name) == SEARCH else named(namespace, name)
        if tool.get("async") is True:
            fields["async"] = True  # its calls say so, too: their outputs may come in any later turn
        self.functions[known] = Function(declared, Callee(kind.call, fields))

    def name(self, namespace: str | None, name: str) -> str:
        """Return the name by which the backend knows a function, also of one that is not offered any more."""
        if known := self._names.get((namespace, name)):
            return known
        if namespace is None:
            return name
        flat = "__".join(filter(None, (re.sub(r"[^a-zA-Z0-9_-]", "_", namespace), name)))
        if len(flat) <= _MAX_NAME and flat not in self.functions:
            return flat
        mark = hashlib.sha256(f"{namespace}\n{name}".encode(errors="replace")).hexdigest()[:8]
        return f"{flat[: _MAX_NAME - 9]}_{mark}"

    def called(self, item: Item) -> str:
        """Return the name by which the backend knows the function of a `function_call` item."""
        return self.name(namespace_of(item), item["name"])

    def find(self, namespace: str | None, name: str) -> str:
        """Return the name by which the backend knows a function that the request must have."""
        if (known := self._names.get((namespace, name))) is None:
            raise InvalidRequest(f"There is no tool {label(name)} among the tools on offer.", param="tool_choice")
        return known


def named(namespace: str | None, name: str) -> dict[str, Any]:
    """Return how a call names the tool that it calls."""
    return {"name": name} if namespace is None else {"name": name, "namespace": namespace}


def namespace_of(named: Mapping[str, Any]) -> str | None:
    """Return the namespace of a call or a choice: clients replay it as null where there is none."""
    return namespace if isinstance(namespace := named.get("namespace"), str) and namespace else None


class _Entry(NamedTuple):
    """A tool somewhere in a request."""

    namespace: str | None
    name: str
    tool: Tool
    place: str = ""  # among the request's own tools; the tools of items have none
    found: bool = False

    @property
    def key(self) -> tuple[str | None, str]:
        return self.namespace, self.name


def offer(tools: Sequence[Any], items: Iterable[Item], options: Request, warnings: list[str]) -> Offer:
    """
    Return the functions of a request with these tools, and of its conversation.

    Raises `InvalidRequest`, with the place of the name, where two of `tools` have the same. Where the client runs a
    `tool_search`, tools with `defer_loading` are offered once it has found them.
    """
    entries = [*_entries(tools, warnings, place="tools")]
    for item in items:
        if (found := _BRINGING.get(item["type"])) is not None:
            brought = item.get("tools")
            entries += _entries(brought if isinstance(brought, list) else (), warnings, found=found)
    searchable = any(entry.key == SEARCH for entry in entries)
    offered = Offer()
    own: set[tuple[str | None, str]] = set()
    entries.sort(key=lambda entry: entry.namespace is not None)  # flat names give way to those of the functions
    for entry in entries:
        if entry.place and entry.key in own:
            raise InvalidRequest(f"There are two tools named '{entry.name}'.", param=f"{entry.place}.name")
        if searchable and entry.tool.get("defer_loading") is True and not entry.found:
            offered.deferred.add(entry.key)
        elif entry.place or entry.key not in own or entry.key in offered.deferred:
            offered.add(*entry.key, entry.tool, options)
            offered.deferred.discard(entry.key)
        if entry.place:
            own.add(entry.key)
    return offered


def _entries(tools: Sequence[Any], warnings: list[str], place: str = "", found: bool = False) -> Iterator[_Entry]:
    """Yield the tools of a list that can be offered, those of namespaces among them."""
    for index, tool in enumerate(tools):
        type_ = tool.get("type") if isinstance(tool, dict) else None
        where = f"{place}[{index}]" if place else ""
        if _is_named(tool):
            yield _Entry(None, tool["name"], tool, where, found)
        elif type_ == "namespace" and isinstance(tool.get("name"), str) and tool["name"]:
            yield from _inner(tool, warnings, where, found)
        elif type_ == "tool_search" and tool.get("execution") == "client":
            yield _Entry(*SEARCH, tool, where, found)
        else:
            warnings.append(f"Tools of type {label(type_)} cannot be offered to this backend; left out.")


def _inner(namespace: Tool, warnings: list[str], place: str, found: bool) -> Iterator[_Entry]:
    tools = namespace.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if _is_named(tool):
            yield _Entry(namespace["name"], tool["name"], tool, place and f"{place}.tools[{index}]", found)
        else:
            warnings.append(f"A tool of the namespace {label(namespace['name'])} is no function and was left out.")


def _is_named(tool: Any) -> bool:
    """Tell if a tool is called by a name of its own."""
    if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
        return False
    return isinstance(name := tool.get("name"), str) and NAME.fullmatch(name) is not None


def brought(item: Item, offered: Offer) -> list[tuple[str, Tool]]:
    """Return the tools of an item that brings some, each with the name by which the backend knows it."""
    tools = item.get("tools")
    return [(offered.name(*entry.key), entry.tool) for entry in _entries(tools if isinstance(tools, list) else (), [])]


def of_history(items: Iterable[Item], offered: Offer) -> dict[str, Function]:
    """
    Return functions for the calls in a conversation, for backends that refuse it without their declaration.

    They are only declared, with no parameters known, and not to be called.
    """
    functions = {}
    for item in items:
        if item["type"] == "function_call" and (known := offered.called(item)) not in functions:
            declared = {"type": "function", "function": {"name": known, "parameters": NO_PARAMETERS}}
            functions[known] = Function(declared, Callee(FUNCTION_CALL, named(namespace_of(item), item["name"])))
    return functions
