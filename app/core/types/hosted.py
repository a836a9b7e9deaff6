"""Functions that the server runs itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class DeferredTool:
    """A tool declared only after a tool search finds it."""

    declaration: Mapping[str, Any]  # as in a request: type, name, description and parameters
    namespace: str | None = None
    about: str = ""  # the namespace's description

    @property
    def name(self) -> str:
        return str(self.declaration["name"])

    @property
    def description(self) -> str:
        return str(self.declaration.get("description") or "")

    @classmethod
    def of_hosted(cls, function: HostedFunction) -> DeferredTool:
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
