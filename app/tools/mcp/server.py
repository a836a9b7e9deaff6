"""Where an MCP server is, what a caller may ask of it, and how it fails. Nothing here needs the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from app.tools.guard import Reach, Resolver, resolve
from app.tools.mcp.settings import Approval, ToolFilter, needs_approval

TransportName: TypeAlias = Literal["auto", "http", "sse"]

CONNECTION_CLOSED = -32000  # the codes of JSON-RPC errors that the SDK has for what befalls a connection
REQUEST_TIMEOUT = -32001


@dataclass(frozen=True)
class ServerAddress:
    """Where an MCP server is, and what is sent to it. Its text shows no secret."""

    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: TransportName = "auto"
    reach: Reach = "public"
    command: Sequence[str] = field(default=(), repr=False)  # a program to run, in place of the URL
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the program, beside the ordinary variables
    directory: str | None = None  # that the program is run in
    open_seconds: float = 30
    call_seconds: float = 120
    resolver: Resolver = field(default=resolve, repr=False)

    @property
    def fingerprint(self) -> str:
        """The same for the same server; it tells nobody where that is."""
        return sha256("\n".join([self.url, *self.command]).encode(errors="replace")).hexdigest()[:32]


class MCPFailure(Exception):
    """
    What an MCP server did not do, in words fit for the model and the caller.

    `error` is the `error` of an `mcp_call` item.
    """

    def __init__(self, message: str, code: int = CONNECTION_CLOSED, type: str = "mcp_protocol_error") -> None:
        super().__init__(message)
        self.message = message
        self.error: dict[str, object] = {"type": type, "code": code, "message": message}


@dataclass(frozen=True)
class MCPServerTools:
    """Which tools of a server may be called in a response, and which calls need an approval."""

    allowed: Sequence[ToolFilter]  # all of them have to match
    approval: Sequence[Approval]  # one of them is enough
    deferred: bool = False  # are the tools offered once a search has found them?

    def allows(self, tool: Mapping[str, Any]) -> bool:
        """Tell whether a tool may be called, as an `mcp_list_tools` item describes it."""
        return all(one.matches(tool["name"], is_read_only(tool)) for one in self.allowed)

    def needs_approval(self, tool: Mapping[str, Any]) -> bool:
        """Tell whether its calls have to be approved."""
        return any(needs_approval(one, tool["name"], is_read_only(tool)) for one in self.approval)

    @property
    def fingerprint(self) -> str:
        """The same where the same tools may be called."""
        return sha256(repr(self.allowed).encode(errors="replace")).hexdigest()[:32]


def is_read_only(tool: Mapping[str, object]) -> bool:
    """Tell whether a server says of a tool that it changes nothing, in MCP's words or in those of OpenAI."""
    annotations = tool.get("annotations")
    if not isinstance(annotations, Mapping):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("read_only") is True
