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

import dataclasses
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from app.core.profile import RequestOptions
from app.core.request.tool_types import TOOL_NAME, TOOL_TYPES, ToolFields
from app.core.request.translation_context import TranslationContext
from app.core.stream.event_types import ToolBinding
from app.core.types import list_field
from app.core.types.hosted import NO_PARAMETERS, UNNAMED, HostedFunction
from app.core.types.items import FUNCTION_CALL, ITEM_TYPES, MCP_APPROVAL_REQUEST
from app.core.types.request import Item
from app.errors import InvalidRequest, did_you_mean, label

_MAX_NAME = 64  # characters, by the spec

# Functions that a backend is offered at most: OpenAI's own ceiling, and many servers fail beyond it.
MOST_FUNCTIONS = 128

SEARCH = (UNNAMED, "tool_search")


class Function(NamedTuple):
    """A function as the backend is told of it, and what it is to the client."""

    tool: dict[str, Any]
    callee: ToolBinding


class ToolSet:
    """The functions of a request, by the names that the backend knows them by."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.deferred: set[tuple[str | None, str]] = set()  # they have to be searched for first
        self.hosted_types: frozenset[str] = frozenset()  # the types of tools that the server runs itself
        self._names: dict[tuple[str | None, str], str] = {}  # by namespace and name, as the client knows them
        self._chosen: list[tuple[HostedFunction, Collection[str]]] = []

    def add(self, namespace: str | None, name: str, tool: ToolFields, options: RequestOptions) -> None:
        """Add a function, or say anew what it is."""
        known = self._names[namespace, name] = self.name(namespace, name)
        kind = TOOL_TYPES[tool["type"]]
        declared = {"type": "function", "function": {"name": known, **kind.declare(tool, options)}}
        fields = {**named(namespace, name)} if kind.name is None else {**kind.fields}
        if tool.get("async") is True:
            fields["async"] = True  # its calls say so, too: their outputs may come in any later turn
        self.functions[known] = Function(declared, ToolBinding(kind.call, fields))

    def add_hosted(self, function: HostedFunction, types: Collection[str], options: RequestOptions) -> bool:
        """Add a function that the server runs itself; tell whether there was room for it and its name."""
        if function.key in self._names or len(self.functions) >= MOST_FUNCTIONS:
            return False
        known = self._names[function.key] = self.name(*function.key)
        tool = {"description": function.description, "parameters": function.parameters, "strict": function.strict}
        declared = {"type": "function", "function": {"name": known, **TOOL_TYPES["function"].declare(tool, options)}}
        if function.needs_approval:
            fields = {"server_label": function.server_label, "name": function.name}
            callee = ToolBinding(MCP_APPROVAL_REQUEST, fields)
        else:
            kind = ITEM_TYPES[function.item]
            # A search for tools is of one type, whoever runs it.
            kind = kind if kind.hosted else dataclasses.replace(kind, role="hosted", waits=False)
            callee = ToolBinding(kind, function.fields, function)
        self.functions[known] = Function(declared, callee)
        self._chosen.append((function, types))
        return True

    def name(self, namespace: str | None, name: str) -> str:
        """Return the name by which the backend knows a function, also of one that is not offered any more."""
        if known := self._names.get((namespace, name)):
            return known
        if namespace is None:
            return name
        flat = re.sub(r"[^a-zA-Z0-9_-]", "_", "__".join(filter(None, (namespace, name))))
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
            hint = did_you_mean(name, (other for _, other in self._names))
            raise InvalidRequest(f"There is no tool {label(name)} among the tools on offer.{hint}", param="tool_choice")
        return known

    def find_hosted(self, choice: Mapping[str, object]) -> list[str]:
        """Return the names of the hosted functions that a choice such as `{"type": "mcp", "server_label"}` means."""
        label_, name = choice.get("server_label"), choice.get("name")
        found = [
            self.name(*function.key)
            for function, types in self._chosen
            if choice["type"] in types
            and label_ in (None, function.server_label)
            and (name in (None, function.name) or choice["type"] == name)
        ]
        if not found:
            raise InvalidRequest(
                f"There is no function of {label(label_ or choice['type'])} among the tools on offer.",
                param="tool_choice",
            )
        return found

    def brought(self, item: Item) -> list[tuple[str, ToolFields]]:
        """Return the tools of an item that brings some, each with the name by which the backend knows it."""
        entries = _entries(list_field(item, "tools"), lambda *_: None)
        return [(self.name(*entry.key), entry.tool) for entry in entries]


def named(namespace: str | None, name: str) -> dict[str, object]:
    """Return how a call names the tool that it calls."""
    return {"name": name} if namespace is None else {"name": name, "namespace": namespace}


def namespace_of(named: Mapping[str, object]) -> str | None:
    """Return the namespace of a call or a choice: clients replay it as null where there is none."""
    return namespace if isinstance(namespace := named.get("namespace"), str) and namespace else None


class _Entry(NamedTuple):
    """A tool somewhere in a request."""

    namespace: str | None
    name: str
    tool: ToolFields
    place: str = ""  # among the request's own tools; the tools of items have none
    found: bool = False

    @property
    def key(self) -> tuple[str | None, str]:
        return self.namespace, self.name


def collect_tools(context: TranslationContext, items: Iterable[Item]) -> ToolSet:
    """
    Return the functions of a request and of the `items` of its conversation.

    Where the client runs a `tool_search`, tools with `defer_loading` are offered once it has found them. Raises
    `InvalidRequest` if two of the request's tools have the same name, and in a strict context if one of them cannot be
    offered; `param` is the path of the tool.
    """
    options, hosted = context.options, context.hosted

    def warn(message: str, type_: object, place: str) -> None:
        context.warnings.add(f"{message}; left out.")

    entries = [*_entries(context.request.tools, _refuse if context.strict else warn, "tools", served=hosted.served)]
    for item in items:
        if (row := ITEM_TYPES.get(item["type"])) and row.brings:
            entries += _entries(list_field(item, "tools"), warn, found=row.brings == "found")
    searchable = any(entry.key == SEARCH for entry in entries)
    own_keys = {function.key for function, _ in hosted.functions}
    entries = [entry for entry in entries if not (entry.found and (entry.namespace or UNNAMED, entry.name) in own_keys)]
    offered = ToolSet()
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
    offered.hosted_types = frozenset(hosted.types)
    on_offer = _without_deferred(hosted.functions, items, searchable)
    left_out = [function.name for function, types in on_offer if not offered.add_hosted(function, types, options)]
    if left_out:
        context.warnings.add(
            f"Of the hosted tools, {len(left_out)} functions were left out, such as {label(left_out[0])}: {_FULL}"
        )
    return offered


def _without_deferred(
    functions: Sequence[tuple[HostedFunction, Collection[str]]], items: Iterable[Item], searchable: bool
) -> list[tuple[HostedFunction, Collection[str]]]:
    """Leave out hosted functions that have to be searched for first, and a search that can find nothing."""
    deferred = [function.key for function, _ in functions if function.deferred]
    if not deferred:
        return [one for one in functions if one[0].key != SEARCH]
    if not searchable and SEARCH not in [function.key for function, _ in functions]:
        return list(functions)
    unknown = set(deferred) - _found_keys(items)
    return [one for one in functions if one[0].key not in unknown]


def _found_keys(items: Iterable[Item]) -> set[tuple[str, str]]:
    """Return namespaces and names of the tools that searches have found."""
    found = set()
    for item in items:
        if (row := ITEM_TYPES.get(item["type"])) and row.brings == "found":
            for tool in filter(_is_object, list_field(item, "tools")):
                inner = tool.get("tools")
                names = [one.get("name") for one in filter(_is_object, inner)] if isinstance(inner, list) else []
                found |= {(str(tool.get("name")), str(name)) for name in names} or {(UNNAMED, str(tool.get("name")))}
    return found


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


_FULL = f"their names are taken, or there are more than {MOST_FUNCTIONS} functions."

# What is done about a tool that cannot be offered: its message without an end, the type of the tool, and its place.
_Unoffered: TypeAlias = Callable[[str, object, str], None]


def _refuse(message: str, type_: object, place: str) -> None:
    known = {*TOOL_TYPES, "namespace"}
    hint = did_you_mean(type_, known) if isinstance(type_, str) and type_ not in known else ""
    raise InvalidRequest(f"{message}.{hint}", param=place)


def _entries(
    tools: Sequence[Any],
    unoffered: _Unoffered,
    place: str = "",
    found: bool = False,
    served: Collection[int] = frozenset(),
) -> Iterator[_Entry]:
    """Yield the tools of a list that the client runs and that can be offered, those of namespaces among them."""
    for index, tool in enumerate(tools):
        type_ = tool.get("type") if isinstance(tool, dict) else None
        where = f"{place}[{index}]" if place else ""
        kind = TOOL_TYPES.get(type_) if isinstance(type_, str) else None
        if place and index in served:
            continue
        if _is_named(tool):
            yield _Entry(None, tool["name"], tool, where, found)
        elif type_ == "namespace" and isinstance(tool.get("name"), str) and tool["name"]:
            yield from _inner(tool, unoffered, where, found)
        elif kind and kind.name and kind.offered(tool):
            yield _Entry(UNNAMED, kind.name, tool, where, found)
        else:
            unoffered(f"Tools of type {label(type_)} cannot be offered to this backend", type_, where)


def _inner(namespace: ToolFields, unoffered: _Unoffered, place: str, found: bool) -> Iterator[_Entry]:
    tools = namespace.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        where = place and f"{place}.tools[{index}]"
        if _is_named(tool):
            yield _Entry(namespace["name"], tool["name"], tool, where, found)
        else:
            type_ = tool.get("type") if isinstance(tool, dict) else None
            unoffered(f"A tool of the namespace {label(namespace['name'])} is no function", type_, where)


def _is_named(tool: Any) -> bool:
    """Tell if a tool is called by a name of its own."""
    if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
        return False
    return isinstance(name := tool.get("name"), str) and TOOL_NAME.fullmatch(name) is not None


def of_history(items: Iterable[Item], offered: ToolSet) -> dict[str, Function]:
    """
    Return functions for the calls in a conversation, for backends that refuse it without their declaration.

    They are only declared, with no parameters known, and not to be called.
    """
    functions = {}
    for item in items:
        if item["type"] == "function_call" and (known := offered.called(item)) not in functions:
            declared = {"type": "function", "function": {"name": known, "parameters": NO_PARAMETERS}}
            functions[known] = Function(declared, ToolBinding(FUNCTION_CALL, named(namespace_of(item), item["name"])))
    return functions
