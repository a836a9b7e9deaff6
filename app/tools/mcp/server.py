"""An MCP server's address, the tools callable in a response, and failures. Does not import the SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TypeAlias
from urllib.parse import parse_qsl, urlsplit

from app.core.redaction import Redactor
from app.core.types import JSONMapping
from app.errors import quote
from app.tools.guard import AddressPolicy, Resolver, resolve
from app.tools.mcp.settings import Approval, MCPServer, ToolFilter, adds_approval, needs_approval

ConnectionKey: TypeAlias = tuple[str, str, frozenset[tuple[str, str]]]  # server, owner, headers

CONNECTION_CLOSED = -32000  # JSON-RPC error codes of the SDK for failed connections
REQUEST_TIMEOUT = -32001

_LONG_SEGMENT = 16  # characters; longer URL path segments are treated as secrets


@dataclass(frozen=True)
class ServerAddress:
    """A server as a caller uses it. The `repr` contains no secrets."""

    settings: MCPServer = field(repr=False)  # only a URL for callers' servers
    name: str = ""  # declared servers only
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # the settings' and the caller's
    policy: AddressPolicy = "public"
    resolver: Resolver = field(default=resolve, repr=False)
    # Called with each request's URL, for callers' servers; raises `OutboundRefused`.
    check: Callable[[str], object] = field(default=str, repr=False)

    @property
    def url(self) -> str:
        return self.settings.url or ""

    @property
    def env(self) -> dict[str, str]:
        return {variable: value.get_secret_value() for variable, value in self.settings.env.items()}

    @property
    def redactor(self) -> Redactor:
        """Redacts secrets in the URL, in header values (with any scheme), and in environment variables."""
        parts = urlsplit(self.url)
        # Some servers expect a key in the path or query.
        path = [segment for segment in parts.path.split("/") if len(segment) >= _LONG_SEGMENT]
        whole = [f"{parts.path}?{parts.query}"] if parts.query else []
        query = [value for _, value in parse_qsl(parts.query)]
        values = [*self.env.values(), *whole, *path, *query, parts.password or ""]
        for value in self.headers.values():
            values += [value, value.partition(" ")[2]]
        return Redactor(values)

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the server without revealing its address."""
        address = "\n".join([self.name, self.url, *self.settings.command])
        return sha256(address.encode(errors="replace")).hexdigest()[:32]


class MCPFailure(Exception):
    """Its message is safe for the model and the caller. `error` is the `error` in the `mcp_call` item."""

    def __init__(
        self,
        message: str,
        code: int = CONNECTION_CLOSED,
        error_type: str = "mcp_protocol_error",
        *,
        by_server: bool = False,
    ) -> None:
        """`by_server`: a protocol error sent by the server itself, so the session continues."""
        super().__init__(message)
        self.message = message
        self.by_server = by_server
        self.error: dict[str, object] = {"type": error_type, "code": code, "message": message}


@dataclass(frozen=True)
class MCPServerTools:
    allowed: Sequence[ToolFilter]  # all must match
    approval: Approval
    added: Approval = "never"  # by the request, in addition
    deferred: bool = False  # only offered after a tool search returned them

    def allows(self, tool: JSONMapping) -> bool:
        """`tool` is described in an `mcp_list_tools` item."""
        return all(tool_filter.matches(tool["name"], is_read_only(tool)) for tool_filter in self.allowed)

    def needs_approval(self, tool: JSONMapping) -> bool:
        name, read_only = tool["name"], is_read_only(tool)
        return needs_approval(self.approval, name, read_only) or adds_approval(self.added, name, read_only)

    def missing(self, tools: Sequence[JSONMapping]) -> str:
        """
        The end of a warning about names in the request's filter (the last) that match no tool; "" if all match.

        `tools` are the callable tools: the caller must not learn about others.
        """
        requested = self.allowed[-1] if self.allowed else ToolFilter()
        names = [tool["name"] for tool in tools]
        unknown = [
            pattern for pattern in requested.tool_names or () if not any(fnmatchcase(name, pattern) for name in names)
        ]
        if unknown:
            return f"has names that match none of its tools: {first_names(unknown)}"
        return "" if tools or requested == ToolFilter() else "selects none of its tools"

    @property
    def fingerprint(self) -> str:
        return sha256(repr(self.allowed).encode(errors="replace")).hexdigest()[:32]


def first_names(names: Sequence[object]) -> str:
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return f"{', '.join(map(quote, names[:3]))}{more}"


def is_read_only(tool: Mapping[str, object]) -> bool:
    """Accepts MCP's `readOnlyHint` and OpenAI's `read_only`."""
    annotations = tool.get("annotations")
    if not isinstance(annotations, Mapping):
        return False
    return annotations.get("readOnlyHint") is True or annotations.get("read_only") is True
