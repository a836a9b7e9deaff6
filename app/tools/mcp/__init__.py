"""
MCP servers as tools: `{"type": "mcp", "server_label": "lab", ...}`.

Callers select a server declared in `[tools.mcp.servers.lab]` by label or `connector_id`, or send a `server_url` that
matches the operator's `allow_urls`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from app.errors import InvalidRequest
from app.loading import require_packages
from app.tools import Declaration, HostedTool, ToolHost, is_label, unknown_server
from app.tools.guard import URL_NOT_ALLOWED, OutboundRefused, checked_url, urls_equivalent
from app.tools.mcp.pool import SessionPool
from app.tools.mcp.server import MCPFailure, MCPServerTools, ServerAddress
from app.tools.mcp.session import MCPSession, read_tool, tools_of
from app.tools.mcp.settings import CALLERS_URLS, Approval, MCPServer, MCPSettings, ToolFilter, read_settings

T = TypeVar("T")

_APPROVAL: TypeAdapter[Approval] = TypeAdapter(Approval)
_ALLOWED: TypeAdapter[list[str] | ToolFilter] = TypeAdapter(list[str] | ToolFilter)

# Set by the transport, or could forge a request's origin.
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


class MCPTool(HostedTool):
    types = ("mcp",)

    def __init__(self, settings: MCPSettings, max_result_chars: int) -> None:
        self._settings = settings
        self._max_chars = max_result_chars
        self._pool = SessionPool(settings)
        self._details: dict[str, str] = {}

    @classmethod
    def from_settings(cls, table: Mapping[str, object], host: ToolHost) -> MCPTool:
        require_packages(["mcp"], "mcp")
        return cls(read_settings(table, host.environment, host.directory), host.max_result_chars)

    def declarations(self, key_names: Collection[str]) -> list[dict[str, object]]:
        servers = self._settings.servers.items()
        return [{"type": "mcp", "server_label": name} for name, server in servers if server.serves(key_names)]

    def rights(self, declaration: Mapping[str, object]) -> tuple[str, str]:
        return _rights(str(declaration["server_label"]))

    def open(self, declaration: Declaration) -> MCPSession:
        """Raises `InvalidRequest` and `PermissionDenied`."""
        label = declaration.tool.get("server_label")
        if not is_label(label):
            raise unknown_server(declaration)
        chosen = self._chosen(declaration, label)
        requested = _validated(_ALLOWED, declaration, "allowed_tools", ToolFilter())
        allowed = [requested if isinstance(requested, ToolFilter) else ToolFilter(tool_names=requested)]
        deferred = declaration.tool.get("defer_loading") is True
        if chosen is None:
            named, headers = MCPServer.model_construct(url=_url_of(declaration)), _headers_of(declaration)
            settings = self._settings
            address = ServerAddress(named, headers=headers, policy=settings.policy, check=settings.check_url)
            approval = _validated(_APPROVAL, declaration, "require_approval", "always")
            tools = MCPServerTools(allowed, approval, deferred=deferred)
        else:
            name, server = chosen
            address = server_address(name, server)
            if declaration.secrets.get("headers"):
                message = f"The headers of the MCP server '{name}' are set by its operator. Send only `authorization`."
                raise InvalidRequest(message, param=f"{declaration.param_path}.headers")
            if not _has_token(address.headers):
                address = replace(address, headers={**address.headers, **_authorization(declaration)})
            setting = server.require_approval
            approval = self._settings.require_approval if setting is None else setting
            added = _validated(_APPROVAL, declaration, "require_approval", "never")
            tools = MCPServerTools([server.allowed, *allowed], approval, added, deferred)
        return MCPSession(label, address, tools, self._max_chars, self._pool, declaration.owner)

    def _chosen(self, declaration: Declaration, label: str) -> tuple[str, MCPServer] | None:
        """
        The declared server and its name; None to call the caller's URL.

        The caller's right to use the server is checked only here.
        """
        tool, param_path, url = declaration.tool, declaration.param_path, _url_of(declaration)
        if tool.get("tunnel_id"):
            raise InvalidRequest("Tunnels are not supported. Send a `server_url`.", param=f"{param_path}.tunnel_id")
        connector = tool.get("connector_id")
        if connector is not None and not isinstance(connector, str):
            raise InvalidRequest("Invalid 'connector_id': must be a string.", param=f"{param_path}.connector_id")
        name = label if connector is None else connector
        server = self._settings.servers.get(name)
        if url and not (server and urls_equivalent(url, server.url)):
            if connector is not None:
                message = "Send either `connector_id` or `server_url`, not both."
                raise InvalidRequest(message, param=f"{param_path}.connector_id")
            return self._named_by_url(url, declaration)
        declaration.require(*_rights(name))
        if server is None or not server.serves(declaration.key_names):
            raise unknown_server(declaration)
        return name, server

    def _named_by_url(self, url: str, declaration: Declaration) -> tuple[str, MCPServer] | None:
        """A declared server's settings also apply when selected by URL."""
        settings, field = self._settings, f"{declaration.param_path}.server_url"
        declaration.require(*_rights(CALLERS_URLS))
        if not settings.allow_urls:
            raise unknown_server(declaration)
        try:
            checked_url(url, allowed=settings.allow_urls, policy=settings.policy)
        except OutboundRefused as error:
            raise InvalidRequest(str(error), param=field) from None
        if not (declared := settings.declared_at(url)):
            return None
        for name, server in declared:
            if server.serves(declaration.key_names) and declaration.access.allows_tool(*_rights(name)):
                if declaration.secrets.get("authorization") and _has_token(server.headers):
                    message = (
                        f"The MCP server '{name}' at this URL uses its operator's token. Do not send `authorization`."
                    )
                    raise InvalidRequest(message, param=f"{declaration.param_path}.authorization")
                return name, server
        raise InvalidRequest(URL_NOT_ALLOWED, param=field)

    async def prepare(self) -> list[str]:
        servers = self._settings.servers.items()
        return [f"servers.{name}: {problem}" for name, server in servers if (problem := server.program_problem())]

    async def check(self) -> Mapping[str, str | None]:
        servers = self._settings.servers.items()
        errors = await asyncio.gather(*(self._check(name, server) for name, server in servers))
        return dict(zip(self._settings.servers, errors, strict=True))

    async def _check(self, name: str, server: MCPServer) -> str | None:
        if problem := server.program_problem():
            return problem
        address = server_address(name, server)
        try:
            return self._examine(name, server, await tools_of(address))
        except MCPFailure as failure:
            return address.redactor(failure.message)

    def _examine(self, name: str, server: MCPServer, listed: Sequence[Mapping[str, object]]) -> str | None:
        """Record callable tools; return an error if the settings allow none."""
        tools = [tool for description in listed if (tool := read_tool(description))]
        if not tools:
            self._details[name] = "but has no tools"
            return None
        selection = MCPServerTools([server.allowed], "never")
        allowed = [tool for tool in tools if selection.allows(tool)]
        missing = selection.missing(allowed)
        if not allowed:
            return f"`allowed_tools` {missing}; its tools are {_names(tools)}"
        number = f"{len(allowed)} of {len(tools)}" if len(allowed) < len(tools) else f"{len(tools)}"
        details = f"{number} tools: {_names(allowed)}"
        self._details[name] = f"{details}; but `allowed_tools` {missing}" if missing else details
        return None

    def details(self) -> Mapping[str, str]:
        return self._details

    async def aclose(self) -> None:
        await self._pool.aclose()


def _rights(server: str) -> tuple[str, str]:
    return f"mcp:{server}", "mcp"


def server_address(name: str, server: MCPServer) -> ServerAddress:
    headers = {header: value.get_secret_value() for header, value in server.headers.items()}
    return ServerAddress(server, name, headers, policy="any")


def _has_token(headers: Collection[str]) -> bool:
    return any(header.lower() == "authorization" for header in headers)


def _url_of(declaration: Declaration) -> str | None:
    url = declaration.secrets.get("server_url")
    if url is not None and not isinstance(url, str):
        raise InvalidRequest("Invalid 'server_url': must be a string.", param=f"{declaration.param_path}.server_url")
    return url or None


def _names(tools: Sequence[Mapping[str, object]]) -> str:
    return ", ".join(str(tool["name"]) for tool in tools)


def _authorization(declaration: Declaration) -> dict[str, str]:
    token = declaration.secrets.get("authorization")
    if token is None:
        return {}
    if not isinstance(token, str) or not _is_header_value(token):
        message = "Invalid 'authorization': must be a token without line breaks."
        raise InvalidRequest(message, param=f"{declaration.param_path}.authorization")
    token = token.strip()
    return {"Authorization": token if re.match(r"(?i)(bearer|basic)\s", token) else f"Bearer {token}"}


def _headers_of(declaration: Declaration) -> dict[str, str]:
    declared, field = declaration.secrets.get("headers") or {}, f"{declaration.param_path}.headers"
    if not isinstance(declared, Mapping):
        raise InvalidRequest("Invalid 'headers': must be an object of strings.", param=field)
    headers = _authorization(declaration)
    for name, value in declared.items():
        if not isinstance(value, str) or not _is_header_value(value) or not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name):
            raise InvalidRequest("Invalid 'headers': must be an object of valid header names and values.", param=field)
        lower = name.lower()
        if lower in _RESERVED or lower.startswith(("mcp-", "x-forwarded-", "sec-")):
            raise InvalidRequest(f"Invalid 'headers': must not contain '{name[:64]}'.", param=field)
        if lower != "authorization" or "Authorization" not in headers:
            headers[name] = value
    return headers


def _is_header_value(value: str) -> bool:
    return value.isascii() and not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value)


def _validated(adapter: TypeAdapter[T], declaration: Declaration, field: str, default: T) -> T:
    value = declaration.tool.get(field)
    if value is None:
        return default
    try:
        return adapter.validate_python(value)
    except ValidationError:
        message = f"Invalid '{field}': must match the documented MCP tool format."
        raise InvalidRequest(message, param=f"{declaration.param_path}.{field}") from None
