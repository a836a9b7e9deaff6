"""
From the tools of a request to the functions of a chat request, and which of them the model may call.

Backends know functions only, each by one name. A tool in a namespace (`{"type": "namespace", "name": "mcp__lab",
"tools": [...]}`, as Codex sends them) is the function `mcp__lab__add` to them. A tool of a type that cannot be offered
is left out with a warning, never refused: Codex always sends some, and works well without.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.core.kinds import FUNCTION_CALL, Callee
from app.core.parts import label
from app.core.profile import Request
from app.core.schema import Item
from app.errors import InvalidRequest

_MAX_NAME = 64  # characters, by the spec
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Function(NamedTuple):
    """A function as the backend is told of it, and what it is to the client."""

    tool: dict[str, Any]
    callee: Callee


class Offer:
    """The functions of a request, by the names that the backend knows them by."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self._names: dict[tuple[str | None, str], str] = {}  # by namespace and name, as the client knows them

    def add(self, namespace: str | None, name: str, tool: dict[str, Any]) -> bool:
        """Add a function; tell if it is new."""
        if (namespace, name) in self._names:
            return False
        known = self._names[namespace, name] = self.name(namespace, name)
        self.functions[known] = _declared(known, namespace, name, tool)
        return True

    def name(self, namespace: str | None, name: str) -> str:
        """Return the name by which the backend knows a function, also of one that is not offered any more."""
        if known := self._names.get((namespace, name)):
            return known
        if namespace is None:
            return name
        flat = f"{re.sub(r'[^a-zA-Z0-9_-]', '_', namespace)}__{name}"
        if len(flat) <= _MAX_NAME and flat not in self.functions:
            return flat
        mark = hashlib.sha256(f"{namespace}\n{name}".encode(errors="replace")).hexdigest()[:8]
        return f"{flat[: _MAX_NAME - 9]}_{mark}"

    def called(self, item: Item) -> str:
        """Return the name by which the backend knows the function of a `function_call` item."""
        return self.name(_namespace(item), item["name"])

    def find(self, namespace: str | None, name: str) -> str:
        """Return the name by which the backend knows a function that the request must have."""
        if (known := self._names.get((namespace, name))) is None:
            raise InvalidRequest(f"There is no function {label(name)} among the tools.", param="tool_choice")
        return known


def _declared(known: str, namespace: str | None, name: str, function: Mapping[str, Any]) -> Function:
    fields = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    return Function({"type": "function", "function": {"name": known, **function}}, Callee(FUNCTION_CALL, fields))


def _namespace(named: Mapping[str, Any]) -> str | None:
    """Return the namespace of a call or a choice: clients replay it as null where there is none."""
    return namespace if isinstance(namespace := named.get("namespace"), str) and namespace else None


def offer(tools: Sequence[Any], options: Request, warnings: list[str]) -> Offer:
    """
    Return the functions of a request.

    Raises `InvalidRequest`, with the place of the name, where two have the same.
    """
    offered = Offer()
    namespaced = []
    for index, tool in enumerate(tools):
        if tool["type"] == "function":
            _add(offered, None, tool, f"tools[{index}]", options)
        elif tool["type"] == "namespace" and isinstance(tool.get("name"), str):
            namespaced.append((index, tool))
        else:
            warnings.append(f"Tools of type {label(tool['type'])} cannot be offered to this backend; left out.")
    for index, tool in namespaced:  # last, for their names give way to those of the functions
        for place, inner in _inner(tool, warnings):
            _add(offered, tool["name"], inner, f"tools[{index}].tools[{place}]", options)
    return offered


def _inner(namespace: Mapping[str, Any], warnings: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    tools = namespace.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") == "function" and _NAME.fullmatch(str(tool.get("name") or "")):
            yield index, tool
        else:
            warnings.append(f"A tool of the namespace {label(namespace['name'])} is no function and was left out.")


_NAME = re.compile(r"[a-zA-Z0-9_-]+")


def _add(offered: Offer, namespace: str | None, tool: Mapping[str, Any], place: str, options: Request) -> None:
    if not offered.add(namespace, tool["name"], _function(tool, options)):
        raise InvalidRequest(f"There are two tools named '{tool['name']}'.", param=f"{place}.name")


def _function(tool: Mapping[str, Any], options: Request) -> dict[str, Any]:
    """Return all but the name of a function: no nulls, and always `parameters`, or servers answer 400 and 500."""
    function: dict[str, Any] = {}
    if isinstance(description := tool.get("description"), str) and description:
        function["description"] = description
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        parameters = _NO_PARAMETERS
    if parameters.get("type") == "object" and "properties" not in parameters:
        parameters = {**parameters, "properties": {}}
    function["parameters"] = stripped(parameters, frozenset(options.schema_drop)) if options.schema_drop else parameters
    strict = _STRICT[options.strict](tool.get("strict"))
    return {**function, "strict": strict} if isinstance(strict, bool) else function


_STRICT: dict[str, Callable[[bool | None], bool | None]] = {
    "send": lambda strict: strict,
    "drop": lambda strict: None,
    "force": lambda strict: True,
}

# Under these the keys are names that the schema gives, and under those the values are data: no keywords in either.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"enum", "const", "default", "example", "examples"})


def stripped(schema: Any, keywords: frozenset[str]) -> Any:
    """Return a JSON Schema without these keywords, at any depth."""
    if isinstance(schema, list):
        return [stripped(one, keywords) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in keywords:
            continue
        if keyword in _NAMED and isinstance(value, dict):
            kept[keyword] = {name: stripped(one, keywords) for name, one in value.items()}
        else:
            kept[keyword] = value if keyword in _DATA else stripped(value, keywords)
    return kept


@dataclass(frozen=True, slots=True)
class Choice:
    """What the backend is told of the tools."""

    functions: Mapping[str, Function]  # those that are sent
    value: Any = None  # of `tool_choice`; None: not sent
    allowed: frozenset[str] | None = None  # see `Chat.allowed`
    request: str | None = None  # what to ask of the model in words, where the backend cannot be told


def choose(choice: Any, offered: Offer, options: Request, warnings: list[str]) -> Choice:
    """
    Decide what is sent for a `tool_choice` (None: the caller gave none), in the backend's own terms.

    Raises `InvalidRequest` if it names a function that is not among the tools.
    """
    if choice is None or isinstance(choice, str):
        return _by_mode(choice, offered, options, warnings)
    if choice["type"] == "allowed_tools":
        return _allowed_tools(choice, offered, options, warnings)
    if choice["type"] != "function":
        warnings.append(f"The tool_choice {label(choice['type'])} names no function and was left out.")
        return _by_mode(None, offered, options, warnings)
    return _named(_wanted(choice, offered), offered, options, warnings)


def _by_mode(mode: str | None, offered: Offer, options: Request, warnings: list[str]) -> Choice:
    if not offered.functions:
        if mode == "required":
            warnings.append("There is no tool to offer, so the tool_choice 'required' was left out.")
        return Choice({}, allowed=frozenset())
    if mode == "none":
        return _none(offered, options)
    if mode == "required":
        return _required(offered.functions, None, options, warnings)
    return Choice(offered.functions, mode)


def _none(offered: Offer, options: Request) -> Choice:
    # Servers that ignore `none` call tools all the same, so they do not get to see any.
    if options.tool_choice.none == "drop_tools" and not options.tools_for_history:
        return Choice({}, allowed=frozenset())
    value = "none" if options.tool_choice.none == "none" else None
    return Choice(offered.functions, value, frozenset())


def _required(
    functions: Mapping[str, Function], allowed: frozenset[str] | None, options: Request, warnings: list[str]
) -> Choice:
    form = options.tool_choice.required
    if form == "message":
        return Choice(functions, None, allowed, f"Call {_one_of(functions)} now, instead of answering in words.")
    if form == "auto":
        warnings.append("This backend cannot be made to call a tool; it may answer in words.")
    return Choice(functions, form, allowed)


def _one_of(functions: Mapping[str, Function]) -> str:
    return f"the tool `{next(iter(functions))}`" if len(functions) == 1 else "one of the tools"


def _named(name: str, offered: Offer, options: Request, warnings: list[str]) -> Choice:
    allowed = frozenset({name})
    if options.tool_choice.named == "object":
        return Choice(offered.functions, {"type": "function", "function": {"name": name}}, allowed)
    only = _only(offered, allowed)
    if options.tool_choice.named == "filter_required":
        return _required(only, allowed, options, warnings)
    warnings.append("This backend cannot be made to call a certain tool; it was offered no other.")
    return Choice(only, None, allowed)


def _allowed_tools(choice: Mapping[str, Any], offered: Offer, options: Request, warnings: list[str]) -> Choice:
    names = []
    for tool in choice["tools"]:
        if tool["type"] == "function":
            names.append(_wanted(tool, offered))
        else:
            warnings.append(f"The allowed tool {label(tool['type'])} is no function and was left out.")
    allowed = frozenset(names)
    mode = choice.get("mode") or "auto"
    if not offered.functions:
        return Choice({}, allowed=allowed)
    if mode == "none" or not allowed:
        return _none(offered, options)
    if options.tool_choice.allowed == "keep":
        tools = [{"type": "function", "function": {"name": name}} for name in dict.fromkeys(names)]
        value = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
        return Choice(offered.functions, value, allowed)
    if mode == "required" and len(allowed) == 1:
        return _named(names[0], offered, options, warnings)  # where it can be, the list of tools stays as it was
    only = _only(offered, allowed)
    return _required(only, allowed, options, warnings) if mode == "required" else Choice(only, "auto", allowed)


def _only(offered: Offer, names: frozenset[str]) -> dict[str, Function]:
    return {name: function for name, function in offered.functions.items() if name in names}


def _wanted(tool: Mapping[str, Any], offered: Offer) -> str:
    """Return the function that is meant; some clients name it as chat requests do."""
    nested = tool.get("function")
    name = tool.get("name") or (nested.get("name") if isinstance(nested, dict) else None)
    if not isinstance(name, str):
        raise InvalidRequest("A tool_choice of type 'function' needs the name of one.", param="tool_choice")
    return offered.find(_namespace(tool), name)


def of_history(items: Iterable[Item], offered: Offer) -> dict[str, Function]:
    """
    Return functions for the calls in a conversation, for backends that refuse it without their declaration.

    They are only declared, with no parameters known, and not to be called.
    """
    functions = {}
    for item in items:
        if item["type"] == "function_call" and (known := offered.called(item)) not in functions:
            functions[known] = _declared(known, _namespace(item), item["name"], {"parameters": _NO_PARAMETERS})
    return functions
