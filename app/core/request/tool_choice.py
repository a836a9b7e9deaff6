"""Which of its functions a backend is told of, and what it is told of calling them: a `tool_choice` in its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.profile import RequestOptions
from app.core.request.tool_types import TOOL_TYPES
from app.core.request.tools import Function, ToolSet, namespace_of
from app.core.request.translation_context import TranslationContext
from app.core.types.hosted import UNNAMED
from app.errors import InvalidRequest, label


@dataclass(frozen=True, slots=True)
class Choice:
    """What the backend is told of the tools."""

    functions: Mapping[str, Function]  # those that are sent
    value: object = None  # of `tool_choice`; None: not sent
    allowed: frozenset[str] | None = None  # see `Chat.allowed`
    request: str | None = None  # what to ask of the model in words, where the backend cannot be told


def choose(choice: Any, offered: ToolSet, context: TranslationContext) -> Choice:
    """
    Decide what is sent for a `tool_choice` (None: the caller gave none), in the backend's own terms.

    Raises `InvalidRequest` if it names a function that is not among the tools, or forces a call where no tool can be
    called.
    """
    if choice is None or isinstance(choice, str):
        return _by_mode(choice, offered, context)
    if choice["type"] == "allowed_tools":
        return _allowed_tools(choice, offered, context)
    if choice["type"] in offered.hosted_types:
        return _one_of_hosted(offered.find_hosted(choice), offered, context)
    if choice["type"] not in TOOL_TYPES:
        raise _cannot_be_kept(f"tools of the type {label(choice['type'])} cannot be run here")
    return _named(offered.find(*_wanted(choice)), offered, context)


_NO_TOOL = "there is no tool that this server can offer to the model"


def _cannot_be_kept(reason: str) -> InvalidRequest:
    """Return the error for a call that is forced and cannot be: the response would say that it was."""
    return InvalidRequest(f"This tool_choice cannot be kept: {reason}.", param="tool_choice")


def _by_mode(mode: str | None, offered: ToolSet, context: TranslationContext) -> Choice:
    if not offered.functions:
        if mode == "required":
            raise _cannot_be_kept(_NO_TOOL)
        # A model that calls what it was never offered is not kept from it: the caller will know what to say to that.
        return Choice({}, allowed=frozenset() if mode == "none" else None)
    if mode == "none":
        return _none(offered, context.options)
    if mode == "required":
        return _required(offered.functions, None, context)
    return Choice(offered.functions, mode)


def _none(offered: ToolSet, options: RequestOptions) -> Choice:
    # Servers that ignore `none` call tools all the same, so they do not get to see any.
    if options.tool_choice.none == "drop_tools" and not options.tools_for_history:
        return Choice({}, allowed=frozenset())
    value = "none" if options.tool_choice.none == "none" else None
    return Choice(offered.functions, value, frozenset())


def _required(functions: Mapping[str, Function], allowed: frozenset[str] | None, context: TranslationContext) -> Choice:
    form = context.options.tool_choice.required
    if form == "message":
        return Choice(functions, None, allowed, f"Call {_one_of(functions)} now, instead of answering in words.")
    if form == "auto":
        context.warnings.add("This backend cannot be made to call a tool; it may answer in words.")
    return Choice(functions, form, allowed)


def _one_of(functions: Mapping[str, Function]) -> str:
    return f"the tool `{next(iter(functions))}`" if len(functions) == 1 else "one of the tools"


def _named(name: str, offered: ToolSet, context: TranslationContext) -> Choice:
    allowed = frozenset({name})
    if context.options.tool_choice.named == "object":
        return Choice(offered.functions, {"type": "function", "function": {"name": name}}, allowed)
    only = _only(offered, allowed)
    if context.options.tool_choice.named == "filter_required":
        return _required(only, allowed, context)
    context.warnings.add("This backend cannot be made to call a certain tool; it was offered no other.")
    return Choice(only, None, allowed)


def _one_of_hosted(names: Sequence[str], offered: ToolSet, context: TranslationContext) -> Choice:
    if len(names) == 1:
        return _named(names[0], offered, context)
    allowed = frozenset(names)
    return _required(_only(offered, allowed), allowed, context)


def _allowed_tools(choice: Mapping[str, Any], offered: ToolSet, context: TranslationContext) -> Choice:
    names = []
    for tool in choice["tools"]:
        if tool["type"] in offered.hosted_types:
            names += offered.find_hosted(tool)
        elif tool["type"] in TOOL_TYPES:
            if (wanted := _wanted(tool)) not in offered.deferred:
                names.append(offered.find(*wanted))
        else:
            context.warnings.add(f"The allowed tool {label(tool['type'])} is no function and was left out.")
    allowed = frozenset(names)
    mode = choice.get("mode") or "auto"
    if mode == "required" and not allowed:
        raise _cannot_be_kept(_NO_TOOL)
    if not offered.functions:
        return Choice({}, allowed=allowed)
    if mode == "none" or not allowed:
        return _none(offered, context.options)
    if context.options.tool_choice.allowed == "keep":
        tools = [{"type": "function", "function": {"name": name}} for name in dict.fromkeys(names)]
        value = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        return Choice(offered.functions, value, allowed)
    if mode == "required" and len(allowed) == 1:
        return _named(names[0], offered, context)  # where it can be, the list of tools stays as it was
    only = _only(offered, allowed)
    return _required(only, allowed, context) if mode == "required" else Choice(only, "auto", allowed)


def _only(offered: ToolSet, names: frozenset[str]) -> dict[str, Function]:
    return {name: function for name, function in offered.functions.items() if name in names}


def _wanted(tool: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the namespace and name of the tool that is meant; some clients name it as chat requests do."""
    if fixed := TOOL_TYPES[tool["type"]].name:
        return UNNAMED, fixed
    nested = tool.get(tool["type"])
    name = tool.get("name") or (nested.get("name") if isinstance(nested, dict) else None)
    if not isinstance(name, str):
        raise InvalidRequest(f"A tool_choice of type {label(tool['type'])} needs the name of one.", param="tool_choice")
    return namespace_of(tool), name
