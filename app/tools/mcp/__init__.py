"""
MCP servers as tools: `{"type": "mcp", "server_label": "lab", ...}`.

A server is declared by the operator, in the table `[tools.mcp.servers.lab]`, and selected by callers through its label
(or `connector_id`); or a caller sends a `server_url` that matches a pattern of the operator's `allow_urls`. This module
decides which server is used and which calls need an approval; `session` uses one server during one response,
`connection` holds the SDK's client, and `http` sends its requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from app.errors import InvalidRequest
from app.extras import require_packages
from app.tools import Declaration, HostedTool, ToolHost
from app.tools.guard import OutboundRefused, Reach, checked_url
from app.tools.mcp.results import redactor_for
from app.tools.mcp.server import MCPFailure, MCPServerTools, ServerAddress
from app.tools.mcp.session import MCPSession, open_connection, opened
from app.tools.mcp.settings import Approval, MCPServer, MCPSettings, ToolFilter, read_settings
from app.tools.search import ToolSearch

T = TypeVar("T")

_CLOSE_SECONDS = 10  # for closing all sessions at shutdown
_APPROVAL: TypeAdapter[Approval] = TypeAdapter(Approval)
_ALLOWED: TypeAdapter[list[str] | ToolFilter] = TypeAdapter(list[str] | ToolFilter)

# Headers that the transport sets itself, and headers that could forge the origin of a request.
_RESERVED = frozenset(
    (
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "forwarded",
        "host",
        "last-event-id",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


class MCPTool:
    """The hosted tool `mcp`."""

    types = ("mcp",)

    def __init__(self, settings: MCPSettings, max_result_chars: int = 60_000) -> None:
        self._settings = settings
        self._max_chars = max_result_chars
        self._closing: set[asyncio.Task[None]] = set()

    @classmethod
    def from_settings(cls, table: Mapping[str, object], host: ToolHost) -> MCPTool:
        """Create the tool from its table; raises `ValueError`."""
        require_packages(["mcp"], "mcp")
        return cls(read_settings(table, host.environment, host.directory), host.max_result_chars)

    def companions(self) -> dict[str, HostedTool]:
        """Return the search for deferred functions of MCP servers."""
        return {"tool_search": ToolSearch()}

    def declarations(self, key_names: Collection[str]) -> list[dict[str, object]]:
        """Return a declaration for each server that the operator lets a caller use."""
        servers = self._settings.servers.items()
        return [{"type": "mcp", "server_label": name} for name, server in servers if server.serves(key_names)]

    def open(self, declaration: Declaration) -> AbstractAsyncContextManager[MCPSession]:
        """Return the session for a declaration; raises `InvalidRequest` for a server that may not be used."""
        tool, place = declaration.tool, declaration.place
        label = tool.get("server_label")
        if not isinstance(label, str) or not label or len(label) > 128:
            raise InvalidRequest("An MCP server needs a label of 1 to 128 characters.", param=f"{place}.server_label")
        name, server = self._declared(declaration, label)
        if server is None:
            address = self._callers_server(declaration)
            allowed, added = [], None
            approval = _validated(_APPROVAL, declaration, "require_approval", "always")
        else:
            address = server_address(server)
            address = replace(address, headers=_with_token(name, address.headers, declaration))
            setting = server.require_approval
            approval = self._settings.require_approval if setting is None else setting
            added = _validated(_APPROVAL, declaration, "require_approval", "never")
            allowed = [server.allowed]
        requested = _validated(_ALLOWED, declaration, "allowed_tools", ToolFilter())
        allowed.append(requested if isinstance(requested, ToolFilter) else ToolFilter(tool_names=requested))
        tools = MCPServerTools(allowed, approval, added or "never", deferred=tool.get("defer_loading") is True)
        redactor = redactor_for(address.url, address.headers, address.env.values())
        return opened(MCPSession(label, address, tools, redactor, self._max_chars), self._close)

    def _declared(self, declaration: Declaration, label: str) -> tuple[str, MCPServer | None]:
        """Return the name of the declared server, and the operator's settings for it; None if it has its own URL."""
        tool, place, url = declaration.tool, declaration.place, _url_of(declaration)
        if tool.get("tunnel_id"):
            raise InvalidRequest("Tunnels are not known here; name a server.", param=f"{place}.tunnel_id")
        connector = tool.get("connector_id")
        name, field = (connector, "connector_id") if isinstance(connector, str) else (label, "server_label")
        server = self._settings.servers.get(name)
        if server is not None and not server.serves(declaration.key_names):
            server = None
        if url and (server is None or url != server.url):
            if connector:
                raise InvalidRequest("Name a `connector_id` or a `server_url`, not both.", param=f"{place}.{field}")
            return label, None
        if server is None:
            raise InvalidRequest(f"This server knows no MCP server named '{name}'.", param=f"{place}.{field}")
        return name, server

    def _callers_server(self, declaration: Declaration) -> ServerAddress:
        field = f"{declaration.place}.server_url"
        settings = self._settings
        if not settings.allow_urls:
            message = "This server only calls MCP servers that its operator has declared."
            raise InvalidRequest(message, param=field)
        reach: Reach = "private" if settings.allow_private else "public"
        url = _url_of(declaration) or ""
        try:
            checked_url(url, allowed=settings.allow_urls, reach=reach)
        except OutboundRefused as error:
            raise InvalidRequest(str(error), param=field) from None
        return ServerAddress(url=url, headers=_headers_of(declaration), reach=reach)

    def _close(self, closing: asyncio.Task[None]) -> None:
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def check(self) -> Mapping[str, str | None]:
        """Connect to every declared server and list its tools; return the error of each, or None."""
        servers = self._settings.servers.values()
        errors = await asyncio.gather(*(self._check(server_address(server)) for server in servers))
        return dict(zip(self._settings.servers, errors, strict=True))

    async def _check(self, address: ServerAddress) -> str | None:
        try:
            connection = await open_connection(address, stderr=True)
            try:
                await connection.list_tools()
            finally:
                if closing := connection.close():
                    await closing
        except MCPFailure as failure:
            return redactor_for(address.url, address.headers, address.env.values())(failure.message)
        return None

    async def aclose(self) -> None:
        """Wait for the sessions that are being closed, up to a timeout."""
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()


def server_address(server: MCPServer) -> ServerAddress:
    """Return the address of a server that the operator has declared."""
    headers = {header: value.get_secret_value() for header, value in server.headers.items()}
    return ServerAddress(
        url=server.url or "",
        headers=headers,
        transport=server.transport,
        reach="any",
        command=tuple(server.command),
        env={variable: value.get_secret_value() for variable, value in server.env.items()},
        directory=server.directory,
        open_seconds=server.open_timeout,
        call_seconds=server.timeout,
    )


def _with_token(name: str, headers: Mapping[str, str], declaration: Declaration) -> Mapping[str, str]:
    """Add the token that a caller sends for a declared server; other headers can only be set by the operator."""
    if _secret(declaration, "headers"):
        message = f"The headers of the MCP server '{name}' are set by its operator; send `authorization` alone."
        raise InvalidRequest(message, param=f"{declaration.place}.headers")
    if any(header.lower() == "authorization" for header in headers):
        return headers
    return {**headers, **_authorization(declaration)}


def _url_of(declaration: Declaration) -> str | None:
    url = _secret(declaration, "server_url")
    if url is not None and not isinstance(url, str):
        raise InvalidRequest("A `server_url` is a string.", param=f"{declaration.place}.server_url")
    return url or None


def _secret(declaration: Declaration, field: str) -> object:
    return declaration.secrets.get(field)


def _authorization(declaration: Declaration) -> dict[str, str]:
    token = _secret(declaration, "authorization")
    if token is None:
        return {}
    if not isinstance(token, str) or not _is_header_value(token):
        message = "An `authorization` is a token, in one line."
        raise InvalidRequest(message, param=f"{declaration.place}.authorization")
    token = token.strip()
    return {"Authorization": token if re.match(r"(?i)(bearer|basic)\s", token) else f"Bearer {token}"}


def _headers_of(declaration: Declaration) -> dict[str, str]:
    """Return the headers that a caller sends to a server of its own; raises `InvalidRequest`."""
    declared, field = _secret(declaration, "headers") or {}, f"{declaration.place}.headers"
    if not isinstance(declared, Mapping):
        raise InvalidRequest("`headers` is an object of strings.", param=field)
    headers = _authorization(declaration)
    for name, value in declared.items():
        if not isinstance(value, str) or not _is_header_value(value) or not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name):
            raise InvalidRequest("`headers` is an object of names and values that can be sent as headers.", param=field)
        lower = name.lower()
        if lower in _RESERVED or lower.startswith(("mcp-", "x-forwarded-", "sec-")):
            raise InvalidRequest(f"The header '{name[:64]}' cannot be set.", param=field)
        if lower != "authorization" or "Authorization" not in headers:
            headers[name] = value
    return headers


def _is_header_value(value: str) -> bool:
    return value.isascii() and not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value)


def _validated(adapter: TypeAdapter[T], declaration: Declaration, field: str, default: T) -> T:
    """Return a validated field of a declaration, or the default; raises `InvalidRequest`."""
    value = declaration.tool.get(field)
    if value is None:
        return default
    try:
        return adapter.validate_python(value)
    except ValidationError:
        message = f"`{field}` is not of a form that is known; see the documentation of MCP tools."
        raise InvalidRequest(message, param=f"{declaration.place}.{field}") from None
