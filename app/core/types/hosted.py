"""Hosted functions, which the server runs itself, as the core knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# The namespace of functions without a name of their own, such as the tool search.
DEFAULT_NAMESPACE = ""

# The table of the settings that configures each type of tool that the server runs.
HOSTED_TABLES: Mapping[str, str] = {
    "code_interpreter": "tools.code_interpreter",
    "file_search": "tools.file_search",
    "image_generation": "tools.image_generation",
    "mcp": "tools.mcp",
    "shell": "tools.code_interpreter",
    "tool_search": "tools.mcp",  # works without a table
    "web_search": "tools.web_search",
    "web_search_2025_08_26": "tools.web_search",
    "web_search_preview": "tools.web_search",
    "web_search_preview_2025_03_11": "tools.web_search",
}

FILE_SEARCH_RESULTS = 20  # of a `file_search` that does not say how many

NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class HostedFunction:
    """A function that the server runs itself when the model calls it; see `app.tools`."""

    name: str  # in its tool
    item: str  # the type of item of its calls, such as `mcp_call`
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: NO_PARAMETERS)  # a JSON Schema
    namespace: str | None = None  # `lab` of `lab__add`: sessions may have functions of the same name
    fields: Mapping[str, object] = field(
        default_factory=dict
    )  # initial fields of each item, such as its `container_id`; see `item_fields`
    strict: bool | None = None
    needs_approval: bool = False  # whether the caller has to approve each call
    deferred: bool = False  # whether it is offered only after a tool search has found it

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, unique in a response."""
        return self.namespace or DEFAULT_NAMESPACE, self.name

    @property
    def item_fields(self) -> Mapping[str, object]:
        """The initial fields of an item; an `mcp_call` always names its server and function, which are required."""
        if self.item != "mcp_call":
            return self.fields
        return {"server_label": self.server_label, "name": self.name, **self.fields}

    @property
    def server_label(self) -> str:
        """The server's label in an approval request."""
        return str(self.fields.get("server_label") or self.namespace or self.item.removesuffix("_call"))


@dataclass(frozen=True, slots=True)
class DeferredTool:
    """A tool that is declared to the model only after a tool search has found it."""

    declaration: Mapping[str, Any]  # as in a request: its type, name, description and parameters
    namespace: str | None = None
    about: str = ""  # the description of the namespace

    @property
    def name(self) -> str:
        return str(self.declaration["name"])

    @property
    def description(self) -> str:
        return str(self.declaration.get("description") or "")

    @classmethod
    def of_hosted(cls, function: HostedFunction) -> DeferredTool:
        """Return a function that the server runs, in the namespace of its server."""
        declaration = {
            "type": "function",
            "name": function.name,
            "description": function.description,
            "parameters": dict(function.parameters),
            "strict": function.strict,
            "defer_loading": True,
        }
        return cls(declaration, function.server_label)


def needs_table(table: str) -> str:
    """Return the end of a sentence on tools, or endpoints, that need a table in the settings."""
    return f"require a table [{table}] in this server's settings"


@dataclass(frozen=True, slots=True)
class HostedTools:
    """The hosted tools of a request: the functions to offer, each with the types that a `tool_choice` has for it."""

    functions: Sequence[tuple[HostedFunction, Collection[str]]] = ()
    served: Collection[int] = frozenset()  # the positions of their declarations in the request's `tools`
    types: Collection[str] = frozenset()  # the types of these declarations
    # How the functions are declared to a server, by name, so that they are declared once for all rounds of a response.
    declared: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


NO_HOSTED_TOOLS = HostedTools()
