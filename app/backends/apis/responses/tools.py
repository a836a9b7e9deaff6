from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.core.profile import RequestOptions
from app.core.request.model_request import TranslationState
from app.core.request.tool_choice import Choice, choose
from app.core.request.tools import Function, ToolSet
from app.core.types import JSONMapping, JSONObject
from app.core.types.hosted import HostedTools

Named = JSONMapping


def native_tools(
    tools: Sequence[Named], options: RequestOptions, hosted: HostedTools
) -> tuple[list[int], list[JSONObject]]:
    """Exclude tools that run here."""
    if not options.passes:
        return [], []
    positions = [
        position
        for position, tool in enumerate(tools)
        if tool["type"] in options.passes and position not in hosted.served
    ]
    return positions, [{**tools[position]} for position in positions]


def declared(functions: Mapping[str, Function], options: RequestOptions) -> list[JSONObject]:
    tools: list[JSONObject] = []
    namespaces: dict[str, JSONObject] = {}
    for name, function in functions.items():
        source, tool = function.source, _declared(name, function, options)
        if source is None or not is_in_namespace(function, options):
            tools.append(tool)
            continue
        assert source.namespace
        if (group := namespaces.get(source.namespace)) is None:
            about = source.about or f"The tools of {source.namespace}."
            group = {"type": "namespace", "name": source.namespace, "description": about, "tools": []}
            namespaces[source.namespace] = group
            tools.append(group)
        group["tools"].append({**tool, "name": source.name})
    return tools


def _declared(name: str, function: Function, options: RequestOptions) -> JSONObject:
    if is_custom(function, options):
        assert function.source
        fields = function.source.tool
        known = {field: value for field in ("description", "format") if (value := fields.get(field))}
        return {"type": "custom", "name": name, **known}
    fields = function.tool["function"]
    strict = {} if options.strict == "drop" else {"strict": fields.get("strict")}
    about = {"description": fields["description"]} if "description" in fields else {}
    if about and function.source and is_in_namespace(function, options):
        about = {"description": function.source.tool.get("description") or ""}  # without the namespace's description
    return {"type": "function", "name": name, **about, "parameters": fields["parameters"], **strict}


def is_custom(function: Function, options: RequestOptions) -> bool:
    source = function.source
    return source is not None and source.tool["type"] == "custom" and "custom" in options.native_tools


def is_in_namespace(function: Function, options: RequestOptions) -> bool:
    return bool(function.source and function.source.namespace) and "namespace" in options.native_tools


def native_name(name: str, function: Function | None, options: RequestOptions) -> JSONObject:
    if function is None or function.source is None or not is_in_namespace(function, options):
        return {"name": name}
    return {"name": function.source.name, "namespace": function.source.namespace}


def tool_choice(state: TranslationState, tools: ToolSet, native: Sequence[Named]) -> tuple[Choice, object]:
    request = state.request
    sent: Any = request.tool_choice if "tool_choice" in state.given else None
    types = {tool["type"] for tool in native}
    if isinstance(sent, dict) and sent["type"] in types:
        return Choice(tools.functions, allowed=frozenset()), sent
    if isinstance(sent, dict) and sent["type"] == "allowed_tools":
        return _allowed_tools(sent, state, tools, types)
    if isinstance(sent, str) and types and not tools.functions:
        return Choice({}, allowed=frozenset()), sent
    choice = choose(sent, tools, state)
    return choice, _native(choice.value, tools, state.options)


def _allowed_tools(
    sent: JSONMapping, state: TranslationState, tools: ToolSet, native: set[str]
) -> tuple[Choice, object]:
    own = [tool for tool in sent["tools"] if tool["type"] in native]
    others = [tool for tool in sent["tools"] if tool["type"] not in native]
    if not own:
        choice = choose(sent, tools, state)
        return choice, _native(choice.value, tools, state.options)
    names = choose({**sent, "tools": others, "mode": "auto"}, tools, state).allowed if others else frozenset()
    assert names is not None
    listed = [_named(name, tools, state.options) for name in sorted(names)]
    mode = sent.get("mode") or "auto"
    if mode == "none":
        return Choice(tools.functions, allowed=frozenset()), "none"
    value = {"type": "allowed_tools", "mode": mode, "tools": [*listed, *own]}
    return Choice(tools.functions, allowed=names), value


def _native(value: object, tools: ToolSet, options: RequestOptions) -> object:
    """Convert a Chat Completions `tool_choice`."""
    if value == "any":
        return "required"
    if not isinstance(value, dict):
        return value
    if value["type"] == "function":
        return _named(value["function"]["name"], tools, options)
    inner = value["allowed_tools"]
    named = [_named(tool["function"]["name"], tools, options) for tool in inner["tools"]]
    return {"type": "allowed_tools", "mode": inner["mode"], "tools": named}


def _named(name: str, tools: ToolSet, options: RequestOptions) -> JSONObject:
    function = tools.functions.get(name)
    kind = "custom" if function and is_custom(function, options) else "function"
    return {"type": kind, **native_name(name, function, options)}
