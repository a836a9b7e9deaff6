"""
Translate a request's and its conversation's tools into chat functions.

A tool `add` in Codex's namespace `mcp__lab` becomes `mcp__lab__add`. Unsupported types only cause a warning: Codex
always sends some. Request tools override tools in `additional_tools` and `tool_search_output` items; later items
override earlier.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from app.core.items import FUNCTION_CALL, ITEM_TYPES, MCP_APPROVAL_REQUEST
from app.core.profile import RequestOptions
from app.core.request.model_request import TranslationState
from app.core.request.tool_types import REJECTED_KEYWORD, TOOL_NAME, TOOL_TYPES, ToolFields, keyword_paths
from app.core.stream.event_types import ToolBinding
from app.core.types import JSONObject, json_list, json_object, json_objects, json_text
from app.core.types.hosted import (
    DEFAULT_NAMESPACE,
    HOSTED_TABLES,
    NO_HOSTED_TOOLS,
    NO_PARAMETERS,
    HostedFunction,
    ToolEntry,
    needs_table,
)
from app.core.types.request import Item
from app.errors import InvalidRequest, Warnings, did_you_mean, quote

_MAX_NAME = 64  # characters, by the spec
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

# OpenAI's limit, above which many servers fail.
MAX_FUNCTIONS = 128

SEARCH = (DEFAULT_NAMESPACE, "tool_search")
_MAX_LISTED = 200  # tools in the search's description
_MAX_ABOUT = 200  # characters per tool description


class Function(NamedTuple):
    tool: JSONObject
    binding: ToolBinding
    source: ToolEntry | None = None  # None: declared by the server


def _hosted(chat_name: str, function: HostedFunction, options: RequestOptions) -> Function:
    tool = {"description": function.description, "parameters": function.parameters, "strict": function.strict}
    declared = {"type": "function", "function": {"name": chat_name, **TOOL_TYPES["function"].declare(tool, options)}}
    if function.needs_approval:
        fields = {"server_label": function.server_label, "name": function.name}
        return Function(declared, ToolBinding(MCP_APPROVAL_REQUEST, fields))
    kind = ITEM_TYPES[function.item]
    # A tool search has the same item type, whether client or server runs it.
    kind = kind if kind.hosted else dataclasses.replace(kind, role="hosted", awaits_client=False)
    return Function(declared, ToolBinding(kind, function.item_fields, function))


class ToolSet:
    """A request's functions, by chat name."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.deferred: set[tuple[str | None, str]] = set()  # until found by a search
        self.hosted_types: frozenset[str] = frozenset()
        self._names: dict[tuple[str | None, str], str] = {}  # chat names, by the client's namespace and name
        self._chosen: list[tuple[HostedFunction, Collection[str]]] = []

    def add(self, entry: ToolEntry, options: RequestOptions) -> None:
        namespace, name, tool = entry[:3]
        chat_name = self._names[namespace, name] = self.name(namespace, name)
        kind = TOOL_TYPES[tool["type"]]
        declared = {"type": "function", "function": {"name": chat_name, **kind.declare(entry.declared, options)}}
        fields = named(namespace, name) if kind.name is None else {**kind.fields}
        if tool.get("async") is True:
            fields["async"] = True  # also in its calls: their outputs can arrive in any later turn
        self.functions[chat_name] = Function(declared, ToolBinding(kind.call, fields), entry)

    def add_hosted(self, function: HostedFunction, types: Collection[str], state: TranslationState) -> bool:
        """False if the function's name is taken or the limit reached."""
        key = function.key
        if key in self._names or len(self.functions) >= MAX_FUNCTIONS:
            return False
        chat_name = self._names[key] = self.name(*key)
        declared = state.hosted.declared
        profile, earlier, _ = declared.get(chat_name, (None, None, None))
        if profile is not state.profile or earlier is not function:
            declared[chat_name] = (state.profile, function, _hosted(chat_name, function, state.options))
        self.functions[chat_name] = declared[chat_name][2]
        self._chosen.append((function, types))
        return True

    def describe_search(self, tools: Sequence[ToolEntry]) -> None:
        """List deferred tools in the tool search's description."""
        chat_name = self._names.get(SEARCH, "")
        search = self.functions.get(chat_name)
        if search is None or search.source:
            return
        listed: dict[str, str] = {}
        for tool in tools[:_MAX_LISTED]:
            named, about = (tool.name, tool.description) if tool.namespace is None else (tool.namespace, tool.about)
            listed.setdefault(named, f"- {named}: {about[:_MAX_ABOUT]}" if about else f"- {named}")
        function = search.tool["function"]
        description = "\n".join(
            [f"{function.get('description', '')} It can find these tools:".strip(), "", *listed.values()]
        )
        declared = {**search.tool, "function": {**function, "description": description}}
        self.functions[chat_name] = search._replace(tool=declared)

    def move_to_end(self, added: Mapping[tuple[str | None, str], int]) -> None:
        """Move functions added by items to the end, to keep the cached prompt."""
        if added:
            order = {self._names[key]: number for key, number in added.items() if key in self._names}
            self.functions = dict(sorted(self.functions.items(), key=lambda named: order.get(named[0], 0)))

    def name(self, namespace: str | None, name: str) -> str:
        """A function's chat name, even if it is no longer offered."""
        if namespace is None:
            return name
        if chat_name := self._names.get((namespace, name)):
            return chat_name
        flat = _NOT_IN_NAMES.sub("_", "__".join(filter(None, (namespace, name))))
        if len(flat) <= _MAX_NAME and flat not in self.functions:
            return flat
        digest = hashlib.sha256(f"{namespace}\n{name}".encode(errors="replace")).hexdigest()[:8]
        return f"{flat[: _MAX_NAME - 9]}_{digest}"

    def chat_name_of(self, item: Item) -> str:
        """
        A `function_call` item's chat name.

        For functions found by a search, VS Code repeats the name as the namespace.
        """
        name: str = item["name"]
        if not item.get("namespace"):
            return name
        namespace = namespace_of(item)
        if namespace == name and (namespace, name) not in self._names and (None, name) in self._names:
            namespace = None
        return self.name(namespace, name)

    def find(self, namespace: str | None, name: str) -> str:
        """Raises `InvalidRequest` for an undeclared function."""
        if (chat_name := self._names.get((namespace, name))) is None:
            hint = did_you_mean(name, (other for _, other in self._names))
            raise InvalidRequest(
                f"Invalid 'tool_choice': tool {quote(name)} not found in 'tools'.{hint}", param="tool_choice"
            )
        return chat_name

    def find_hosted(self, choice: Mapping[str, object]) -> list[str]:
        """Chat names for a choice, for example `{"type": "mcp", "server_label"}`."""
        label_, name = choice.get("server_label"), choice.get("name")
        names = [
            self.name(*function.key)
            for function, types in self._chosen
            if choice["type"] in types
            and label_ in (None, function.server_label)
            and (name in (None, function.name) or choice["type"] == name)
        ]
        if not names:
            raise InvalidRequest(
                f"Invalid 'tool_choice': no function of {quote(label_ or choice['type'])} found in 'tools'.",
                param="tool_choice",
            )
        return names

    def declared_in(self, item: Item) -> list[tuple[str, ToolFields]]:
        entries = _entries(json_list(item.get("tools")))
        return [(self.name(*entry.key), entry.declared) for entry in entries]


NO_TOOLS = ToolSet()  # must not be modified


def named(namespace: str | None, name: str) -> dict[str, object]:
    return {"name": name} if namespace is None else {"name": name, "namespace": namespace}


def namespace_of(named: Mapping[str, object]) -> str | None:
    return namespace if isinstance(namespace := named.get("namespace"), str) and namespace else None


_TYPE = itemgetter("type")
_ADDING = {row.type: row.adds_tools for row in ITEM_TYPES.values() if row.adds_tools}


def collect_tools(state: TranslationState, items: Iterable[Item]) -> ToolSet:
    """
    With a `tool_search`, tools with `defer_loading` are offered once found.

    Raises `InvalidRequest` if two request tools have the same name, or, if strict, a tool cannot be offered; `param` is
    the tool's path.
    """
    options, hosted = state.options, state.hosted
    if hosted is NO_HOSTED_TOOLS and "tools" not in state.given and _ADDING.keys().isdisjoint(map(_TYPE, items)):
        return NO_TOOLS
    entries = [*_entries(state.request.tools, state, "tools", served=hosted.served)]
    added: dict[tuple[str | None, str], int] = {}
    for item in items:
        if item["type"] in _ADDING:
            found = _ADDING[item["type"]] == "search"
            of_item = [*_entries(json_list(item.get("tools")), state, found=found)]
            for entry in of_item:
                added.setdefault(entry.key, len(added) + 1)
            entries += of_item
    own_keys = {function.key for function, _ in hosted.functions}
    searchable = SEARCH in own_keys or any(entry.key == SEARCH for entry in entries)
    # Also in the last round, which does not offer hosted functions.
    searchable |= any(state.request.tools[position]["type"] == "tool_search" for position in hosted.served)
    entries = [
        entry
        for entry in entries
        if not (entry.found and (entry.namespace or DEFAULT_NAMESPACE, entry.name) in own_keys)
    ]
    # Functions' own names take precedence over names with namespaces.
    entries.sort(key=lambda entry: entry.namespace is not None)
    own = _checked_keys(entries, state.warnings)
    offered = ToolSet()
    for entry in entries:
        if searchable and entry.is_deferred:
            offered.deferred.add(entry.key)
        elif entry.path or entry.key not in own or entry.key in offered.deferred:
            offered.add(entry, options)
            offered.deferred.discard(entry.key)
            if entry.path:
                added.pop(entry.key, None)
    offered.hosted_types = frozenset(hosted.types)
    on_offer = _offered_hosted(hosted.functions, items, searchable, any(entry.is_deferred for entry in entries))
    left_out = [function.name for function, types in on_offer if not offered.add_hosted(function, types, state)]
    if left_out:
        state.warnings.add(
            f"{len(left_out)} functions of hosted tools were left out, for example {quote(left_out[0])}: {_FULL}"
        )
    deferred = [entry for entry in entries if entry.path and entry.is_deferred]
    deferred += [function.deferred_tool for function, _ in hosted.functions if function.deferred]
    offered.describe_search(deferred)
    offered.move_to_end(added)
    _warn_dropped_keywords(offered.functions.values(), state)
    return offered


def deferred_tools(tools: Sequence[Any], items: Iterable[Item]) -> list[ToolEntry]:
    entries = [*_entries(tools)]
    for item in items:
        if _ADDING.get(item["type"]) == "declared":
            entries += _entries(json_list(item.get("tools")))
    return [entry for entry in entries if entry.is_deferred]


def _warn_dropped_keywords(functions: Iterable[Function], state: TranslationState) -> None:
    """For keywords in `request.schema_drop`, except `$schema`, which restricts nothing."""
    drops = {*state.options.schema_drop} - {"$schema"}
    for function in functions if drops else ():
        if function.tool["function"].get("strict") is not True:
            tool = function.source.tool if function.source else None
            hosted = function.binding.hosted
            parameters = tool.get("parameters") if tool else hosted.parameters if hosted else None
            for keyword in sorted({name for name, _ in keyword_paths(parameters)} & drops):
                state.warnings.add(REJECTED_KEYWORD.format(keyword))


def _checked_keys(entries: Iterable[ToolEntry], warnings: Warnings) -> set[tuple[str | None, str]]:
    """The request's own tools; raises `InvalidRequest` for two with the same name, or an invalid strict function."""
    own: set[tuple[str | None, str]] = set()
    for entry in entries:
        for name in ("output_schema", "allowed_callers"):
            if (value := entry.tool.get(name)) and value != ["direct"]:
                warnings.add(f"The parameter 'tools[].{name}' is not supported by this backend and was ignored.")
        if not entry.path:
            continue
        if entry.key in own:
            message = f"Invalid '{entry.path}.name': must be unique, but two tools are named '{entry.name}'."
            raise InvalidRequest(message, param=f"{entry.path}.name")
        own.add(entry.key)
        if entry.tool.get("strict") is True:
            _check_strict(entry)
    return own


def _check_strict(entry: ToolEntry) -> None:
    """Raises OpenAI's error for a strict function with an optional property."""
    parameters = json_object(entry.tool.get("parameters"))
    required = {name for name in json_list(parameters.get("required")) if isinstance(name, str)}
    for name in json_object(parameters.get("properties")):
        if name not in required:
            message = (
                f"Invalid schema for function '{entry.name}': In context=(), 'required' is required to be supplied and "
                f"to be an array including every key in properties. Missing {quote(name)}."
            )
            param = f"{entry.path}.parameters"
            raise InvalidRequest(message, param=param, code="invalid_function_parameters")


def _offered_hosted(
    functions: Sequence[tuple[HostedFunction, Collection[str]]], items: Iterable[Item], searchable: bool, needed: bool
) -> list[tuple[HostedFunction, Collection[str]]]:
    """
    Remove deferred functions not yet found, and an unnecessary search.

    Once offered, the search stays, even after finding everything.
    """
    deferred = {function.key for function, _ in functions if function.deferred}
    if not (deferred or needed):
        return [entry for entry in functions if entry[0].key != SEARCH]
    missing = deferred if searchable else set()
    found = (item for item in items if missing and _ADDING.get(item["type"]) == "search")
    for tool in (tool for item in found for tool in json_objects(item.get("tools"))):
        names = {(str(tool.get("name")), str(inner.get("name"))) for inner in json_objects(tool.get("tools"))}
        missing -= names or {(DEFAULT_NAMESPACE, str(tool.get("name")))}
    return [entry for entry in functions if entry[0].key not in missing]


_FULL = f"their names are already used, or the request has more than {MAX_FUNCTIONS} functions."


def _leave_out(state: TranslationState | None, message: str, type_: object, path: str) -> None:
    """Warn about a tool, or raise `InvalidRequest` in a strict request."""
    if state and path and state.model_request.strict:
        known = {*TOOL_TYPES, "namespace"}
        hint = did_you_mean(type_, known) if isinstance(type_, str) and type_ not in known else ""
        raise InvalidRequest(f"{message}.{hint}", param=path)
    if state:
        state.warnings.add(f"{message}; left out.")


def _entries(
    tools: Sequence[Any],
    state: TranslationState | None = None,
    path: str = "",
    found: bool = False,
    served: Collection[int] = frozenset(),
) -> Iterator[ToolEntry]:
    """Supported tools; with a `state`, others cause warnings or errors."""
    for index, tool in enumerate(tools):
        type_ = tool.get("type") if isinstance(tool, dict) else None
        where = f"{path}[{index}]" if path else ""
        kind = TOOL_TYPES.get(type_) if isinstance(type_, str) else None
        if index in served:
            continue
        if _is_named(tool):
            yield ToolEntry(None, tool["name"], tool, where, found)
        elif type_ == "namespace" and isinstance(tool.get("name"), str) and tool["name"]:
            yield from _inner(tool, state, where, found)
        elif kind and kind.name and kind.offered(tool):
            yield ToolEntry(DEFAULT_NAMESPACE, kind.name, tool, where, found)
        else:
            _leave_out(state, _why_unoffered(type_, in_request=bool(path)), type_, where)


def _why_unoffered(type_: object, *, in_request: bool) -> str:
    if type_ in TOOL_TYPES and type_ not in HOSTED_TABLES:
        return f"A tool of type {quote(type_)} must have a valid name"
    if type_ in HOSTED_TABLES and not in_request:
        return f"Tools of type {quote(type_)} must be in the request's 'tools'"
    return f"Tools of type {quote(type_)} {why_not_run(type_)}"


_NOT_RUN = {"programmatic_tool_calling": "are not supported: the model calls functions one by one"}


def why_not_run(type_: object) -> str:
    """As the end of a sentence."""
    if not isinstance(type_, str):
        return "are not supported"
    table = HOSTED_TABLES.get(type_)
    return needs_table(table) if table else _NOT_RUN.get(type_, "are not supported")


def _inner(namespace: ToolFields, state: TranslationState | None, path: str, found: bool) -> Iterator[ToolEntry]:
    about = json_text(namespace.get("description"))
    is_first = True
    defers = namespace.get("defer_loading") is True
    for index, tool in enumerate(json_list(namespace.get("tools"))):
        where = path and f"{path}.tools[{index}]"
        if _is_named(tool):
            tool = {**tool, "defer_loading": True} if defers else tool
            yield ToolEntry(namespace["name"], tool["name"], tool, where, found, about, is_first)
            is_first = False
        else:
            type_ = tool.get("type") if isinstance(tool, dict) else None
            _leave_out(state, f"A tool of the namespace {quote(namespace['name'])} is not a function", type_, where)


def _is_named(tool: object) -> bool:
    if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
        return False
    return isinstance(name := tool.get("name"), str) and TOOL_NAME.fullmatch(name) is not None


def functions_in_history(items: Iterable[Item], offered: ToolSet) -> dict[str, Function]:
    """For backends that reject calls to undeclared functions; the model must not call them."""
    functions = {}
    for item in items:
        if item["type"] == "function_call" and (chat_name := offered.chat_name_of(item)) not in functions:
            declared = {"type": "function", "function": {"name": chat_name, "parameters": NO_PARAMETERS}}
            functions[chat_name] = Function(
                declared, ToolBinding(FUNCTION_CALL, named(namespace_of(item), item["name"]))
            )
    return functions
