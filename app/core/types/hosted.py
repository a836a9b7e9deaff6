"""Functions that the server runs itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.core.types import json_text

# For functions without their own name, for example the tool search.
DEFAULT_NAMESPACE = ""

HOSTED_TABLES: Mapping[str, str] = {
    "code_interpreter": "tools.code_interpreter",
    "file_search": "tools.file_search",
    "image_generation": "tools.image_generation",
    "mcp": "tools.mcp",
    "shell": "tools.code_interpreter",
    "tool_search": "tools.mcp",  # also available without a table
    "web_search": "tools.web_search",
    "web_search_2025_08_26": "tools.web_search",
    "web_search_preview": "tools.web_search",
    "web_search_preview_2025_03_11": "tools.web_search",
}

FILE_SEARCH_RESULTS = 20

NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class HostedFunction:
    """See `app.tools`."""

    name: str  # in its tool
    item: str  # its calls' item type, for example `mcp_call`
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: NO_PARAMETERS)
    namespace: str | None = None  # `lab` in `lab__add`
    fields: Mapping[str, object] = field(default_factory=dict)  # initial item fields, for example `container_id`
    strict: bool | None = None
    needs_approval: bool = False  # the caller must approve each call
    deferred: bool = False  # a tool search must find it first

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, unique in a response."""
        return self.namespace or DEFAULT_NAMESPACE, self.name

    @property
    def item_fields(self) -> Mapping[str, object]:
        """In an `mcp_call`, includes the required server and function names."""
        if self.item != "mcp_call":
            return self.fields
        return {"server_label": self.server_label, "name": self.name, **self.fields}

    @property
    def server_label(self) -> str:
        """For approval requests."""
        return str(self.fields.get("server_label") or self.namespace or self.item.removesuffix("_call"))

    @property
    def deferred_tool(self) -> ToolEntry:
        """For a tool search."""
        declaration = {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
            "strict": self.strict,
            "defer_loading": True,
        }
        return ToolEntry(self.server_label, self.name, declaration)


class ToolEntry(NamedTuple):
    namespace: str | None
    name: str
    tool: Mapping[str, Any]  # as in a request: type, name, description and parameters
    path: str = ""  # in the request's `tools`; "" for tools in items
    found: bool = False  # by a tool search
    about: str = ""  # the namespace's description
    is_first: bool = False  # in its namespace

    @property
    def key(self) -> tuple[str | None, str]:
        return self.namespace, self.name

    @property
    def description(self) -> str:
        return json_text(self.tool.get("description"))

    @property
    def is_deferred(self) -> bool:
        """Whether it is offered only after a tool search finds it."""
        return self.tool.get("defer_loading") is True and not self.found

    @property
    def declared(self) -> Mapping[str, Any]:
        """The first has the namespace's description: Chat Completions has no namespaces."""
        if not (self.is_first and self.about):
            return self.tool
        return {**self.tool, "description": "\n\n".join(filter(None, (self.about, self.tool.get("description"))))}


def needs_table(table: str) -> str:
    """The end of a sentence about tools or endpoints without their settings table."""
    return f"require a table [{table}] in this server's settings"


@dataclass(frozen=True, slots=True)
class HostedTools:
    """A request's hosted functions, each with its types in a `tool_choice`."""

    functions: Sequence[tuple[HostedFunction, Collection[str]]] = ()
    served: Collection[int] = frozenset()  # the declarations' positions in the request's `tools`
    types: Collection[str] = frozenset()  # the declarations' types
    # Function declarations for a server, by name, for all rounds of a response.
    declared: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


NO_HOSTED_TOOLS = HostedTools()
