from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.profile import RequestOptions
from app.core.request.model_request import TranslationState
from app.core.request.tool_types import TOOL_TYPES
from app.core.request.tools import Function, ToolSet, namespace_of, why_not_run
from app.core.types import JSONMapping, frozen, json_object
from app.core.types.hosted import DEFAULT_NAMESPACE
from app.errors import InvalidRequest, quote


@frozen
class Choice:
    functions: Mapping[str, Function]
    value: object = None  # for `tool_choice`; None: not sent
    allowed: frozenset[str] | None = None
    request: str | None = None  # message requesting a call, if the backend cannot force it


_NO_FUNCTIONS = Choice({})
_NO_CALLS = Choice({}, allowed=frozenset())
_NO_TOOL = "must not force a call if no tool can be offered to the model"


def choose(choice: Any, offered: ToolSet, state: TranslationState) -> Choice:
    """
    `choice` is None if the caller did not set it.

    Raises `InvalidRequest` for a function outside the tools, or a forced call without any tool.
    """
    if choice is None and not offered.functions:
        return _NO_FUNCTIONS  # most requests
    if choice is None or isinstance(choice, str):
        return _by_mode(choice, offered, state)
    choice = _with_tool_type(choice)
    if choice["type"] == "allowed_tools":
        return _allowed_tools(choice, offered, state)
    type_ = choice["type"]
    if type_ in offered.hosted_types:
        names = frozenset(offered.find_hosted(choice))
        if len(names) == 1:
            return _named(next(iter(names)), offered, state)
        return _required(_only(offered, names), names, state)
    if type_ in TOOL_TYPES:
        return _named(offered.find(*_tool_key(choice)), offered, state)
    if all(tool["type"] != type_ for tool in state.request.tools):
        raise _invalid_choice(f"must name a tool in 'tools', which has no tool of type {quote(type_)}")
    raise _invalid_choice(f"tools of type {quote(type_)} {why_not_run(type_)}")


_TOOL_TYPES_BY_CHOICE = {"computer_use": "computer"}


def _with_tool_type(choice: JSONMapping) -> JSONMapping:
    type_ = _TOOL_TYPES_BY_CHOICE.get(choice["type"])
    return {**choice, "type": type_} if type_ else choice


def _invalid_choice(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid 'tool_choice': {reason}.", param="tool_choice")


def _by_mode(mode: str | None, offered: ToolSet, state: TranslationState) -> Choice:
    if not offered.functions:
        if mode == "required":
            raise _invalid_choice(_NO_TOOL)
        # Without tools, the caller receives any calls that the model makes.
        return _NO_CALLS if mode == "none" else _NO_FUNCTIONS
    if mode == "none":
        return _none(offered, state.options)
    if mode == "required":
        return _required(offered.functions, None, state)
    return Choice(offered.functions, mode)


def _none(offered: ToolSet, options: RequestOptions) -> Choice:
    # Some servers ignore `none`, so they are sent no tools.
    if options.tool_choice.none == "drop_tools" and not options.tools_for_history:
        return _NO_CALLS
    value = "none" if options.tool_choice.none == "none" else None
    return Choice(offered.functions, value, frozenset())


def _required(functions: Mapping[str, Function], allowed: frozenset[str] | None, state: TranslationState) -> Choice:
    form = state.options.tool_choice.required
    if form == "message":
        tool = f"the tool `{next(iter(functions))}`" if len(functions) == 1 else "one of the tools"
        return Choice(functions, None, allowed, f"Call {tool} now. Do not answer with text.")
    if form == "auto":
        state.warnings.add("This backend cannot force tool calls; the model can answer with text.")
    return Choice(functions, form, allowed)


def _named(name: str, offered: ToolSet, state: TranslationState) -> Choice:
    allowed = frozenset({name})
    if state.options.tool_choice.named == "object":
        return Choice(offered.functions, {"type": "function", "function": {"name": name}}, allowed)
    only = _only(offered, allowed)
    if state.options.tool_choice.named == "filter_required":
        return _required(only, allowed, state)
    state.warnings.add("This backend cannot force the call of a certain tool; the model was offered only that tool.")
    return Choice(only, None, allowed)


def _allowed_tools(choice: JSONMapping, offered: ToolSet, state: TranslationState) -> Choice:
    names = []
    for tool in map(_with_tool_type, choice["tools"]):
        if tool["type"] in offered.hosted_types:
            names += offered.find_hosted(tool)
        elif tool["type"] in TOOL_TYPES:
            if (key := _tool_key(tool)) not in offered.deferred:
                names.append(offered.find(*key))
        else:
            state.warnings.add(f"The allowed tool {quote(tool['type'])} is not a function and was ignored.")
    allowed = frozenset(names)
    mode = choice.get("mode") or "auto"
    if mode == "required" and not allowed:
        raise _invalid_choice(_NO_TOOL)
    if not offered.functions:
        return Choice({}, allowed=allowed)
    if mode == "none" or not allowed:
        return _none(offered, state.options)
    if state.options.tool_choice.allowed == "keep":
        tools = [{"type": "function", "function": {"name": name}} for name in dict.fromkeys(names)]
        value = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        return Choice(offered.functions, value, allowed)
    if mode == "required" and len(allowed) == 1:
        return _named(names[0], offered, state)  # with all tools if possible, for the prompt cache
    only = _only(offered, allowed)
    return _required(only, allowed, state) if mode == "required" else Choice(only, "auto", allowed)


def _only(offered: ToolSet, names: frozenset[str]) -> dict[str, Function]:
    return {name: function for name, function in offered.functions.items() if name in names}


def _tool_key(tool: JSONMapping) -> tuple[str | None, str]:
    """Some clients nest the name as in Chat Completions."""
    if fixed := TOOL_TYPES[tool["type"]].name:
        return DEFAULT_NAMESPACE, fixed
    name = tool.get("name") or json_object(tool.get(tool["type"])).get("name")
    if not isinstance(name, str):
        raise _invalid_choice(f"must have a name for the type {quote(tool['type'])}")
    return namespace_of(tool), name
