"""The functions that the server runs itself, as the core knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

# The namespace of functions that have no name of their own to a client, such as the one search for tools.
UNNAMED = ""

NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class HostedFunction:
    """A function that the server runs itself when the model calls it; see `app.tools`."""

    name: str  # as the tool knows it
    item: str  # the type of the item that a call of it is, such as `mcp_call`
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: NO_PARAMETERS)  # a JSON Schema
    namespace: str | None = None  # `lab` of `lab__add`: where functions of several sessions may have the same name
    fields: Mapping[str, object] = field(default_factory=dict)  # of each item when it opens, such as its `container_id`
    strict: bool | None = None
    needs_approval: bool = False  # is each call to be approved by the caller first?
    deferred: bool = False  # is it offered only after a search for tools has found it?

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: no two functions of a response have the same."""
        return self.namespace or UNNAMED, self.name

    @property
    def server_label(self) -> str:
        """What an approval request calls the server that the function is of."""
        return str(self.fields.get("server_label") or self.namespace or self.item.removesuffix("_call"))


@dataclass(frozen=True, slots=True)
class HostedTools:
    """The hosted tools of a request: the functions to offer, each with the types that a `tool_choice` has for it."""

    functions: Sequence[tuple[HostedFunction, Collection[str]]] = ()
    served: Collection[int] = frozenset()  # the positions of their declarations in the request's `tools`
    types: Collection[str] = frozenset()  # the types of these declarations


NO_HOSTED_TOOLS = HostedTools()
