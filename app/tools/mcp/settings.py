"""The settings table `[tools.mcp]`, and files in other programs' `mcpServers` format."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from app.core.access import hash_of
from app.core.types import JSONMapping, JSONObject
from app.tools import SettingsTable
from app.tools.guard import URL_NOT_ALLOWED, AddressPolicy, OutboundRefused, URLPattern, checked_url, urls_equivalent
from app.tools.validation import read_table

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# The right `mcp:url` is for callers' URLs, so no declared server may have this name.
CALLERS_URLS = "url"


class ToolFilter(SettingsTable):
    tool_names: list[str] | None = None
    read_only: bool | None = None

    def matches(self, name: str, read_only: bool) -> bool:
        name_matches = self.tool_names is None or any(fnmatchcase(name, pattern) for pattern in self.tool_names)
        return name_matches and self.read_only in (None, read_only)


class ApprovalFilter(SettingsTable):
    """`always` overrides `never`; tools in neither need approval."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


Approval: TypeAlias = Literal["always", "never"] | ApprovalFilter


def needs_approval(setting: Approval, name: str, read_only: bool) -> bool:
    if isinstance(setting, str):
        return setting == "always"
    if setting.always and setting.always.matches(name, read_only):
        return True
    return not (setting.never and setting.never.matches(name, read_only))


def adds_approval(requested: Approval, name: str, read_only: bool) -> bool:
    """
    Whether a request requires approval beyond the operator's setting.

    A filter selects the tools in `always`, or else all tools except those in `never`.
    """
    if isinstance(requested, str):
        return requested == "always"
    if requested.always:
        return requested.always.matches(name, read_only)
    return requested.never is not None and not requested.never.matches(name, read_only)


def _url(url: str) -> str:
    if not re.fullmatch(r"https?://[^/?#\s]+\S*", url):
        raise ValueError("must be an http or https URL, such as http://127.0.0.1:9000/mcp")
    return url


def _command(command: object) -> object:
    if not isinstance(command, str):
        return command
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"must be a command: {error}") from None


def _pattern(pattern: object) -> object:
    return URLPattern.parse(pattern) if isinstance(pattern, str) else pattern


def _server(server: object) -> object:
    """Accept a plain URL or command, like `antiphon serve --mcp`."""
    if not isinstance(server, str):
        return server
    return {"url": server} if re.match(r"https?://", server) else {"command": server}


class MCPServer(SettingsTable):
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Endpoint URL, for streamable HTTP or SSE."""
    transport: Literal["auto", "http", "sse"] = "auto"
    """`auto` tries streamable HTTP first, then SSE if the server does not support it."""
    command: Annotated[list[str], BeforeValidator(_command)] = []
    """A program to run in place of a URL, with its arguments. It communicates over standard input and output."""
    env: dict[str, SecretStr] = {}
    """Environment variables for the program. It inherits only ordinary variables, such as PATH and HOME."""
    directory: str | None = None
    """The program's working directory."""
    headers: dict[str, SecretStr] = {}
    """Headers sent with each request."""
    headers_env: dict[str, str] = {}
    """Headers whose values are in these environment variables. A bare token is sent as `Bearer`."""
    allowed_tools: list[str] | ToolFilter = ["*"]
    """Globs for names of callable tools, or a filter."""
    require_approval: Approval | None = None
    """`always`, `never`, or a filter for each. Callers can require more approvals, never fewer."""
    keys: list[SecretStr] | None = None
    """Keys that may use the server. Default: all. Each is the name of a table `[keys.NAME]`, `sha256:` with a key's
    SHA-256, or a key."""
    description: str = ""
    """The server's purpose, shown to a model that searches for tools."""
    open_timeout: float = Field(30, gt=0)
    """Time limit to connect and to list tools, in seconds."""
    timeout: float = Field(120, gt=0)
    """Time limit per call, in seconds."""
    shared: bool = False
    """Whether all callers share a session, for servers without state. By default, each owner has a session."""

    @model_validator(mode="after")
    def _has_one_address(self) -> MCPServer:
        if bool(self.url) == bool(self.command):
            raise ValueError("must have either a `url` or a `command`")
        return self

    @property
    def allowed(self) -> ToolFilter:
        allowed = self.allowed_tools
        return allowed if isinstance(allowed, ToolFilter) else ToolFilter(tool_names=allowed)

    def program_problem(self) -> str | None:
        """Why the server's program cannot be run, or None."""
        if not self.command:
            return None
        if self.directory and not Path(self.directory).is_dir():
            return f"directory {self.directory!r} not found"
        program, path = self.command[0], self.env.get("PATH")
        in_path = os.sep not in program
        location = program if in_path else str(Path(self.directory or "", program))
        if shutil.which(location, path=path.get_secret_value() if path else None):
            return None
        return f"program {program!r} not found{' in the PATH' if in_path else ''}"

    def serves(self, key_names: Collection[str]) -> bool:
        """See `Declaration.key_names`."""
        if self.keys is None:
            return True
        keys = [key.get_secret_value() for key in self.keys]
        return any(key in key_names or hash_of(key) in key_names for key in keys)


class MCPSettings(SettingsTable):
    servers: dict[str, Annotated[MCPServer, BeforeValidator(_server)]] = {}
    """Servers by name. A plain URL or command is accepted: `time = "uvx mcp-server-time"`."""
    allow_urls: list[Annotated[URLPattern, BeforeValidator(_pattern)]] = []
    """Patterns for URLs that callers may send in `server_url`, such as `https://*.example.com/*`."""
    allow_private: bool = False
    """Whether callers' URLs may resolve to private addresses."""
    file: str | None = None
    """A file with more servers, in the form `{"mcpServers": {NAME: {"url" | "command", "args", "env", "headers"}}}`."""
    require_approval: Approval = "always"
    """Default for servers without this setting."""
    max_sessions: int = Field(50, ge=0)
    """Sessions with declared servers kept open for later responses, per process."""
    session_idle: float = Field(300, ge=0)
    """Seconds until an unused session is closed; 0 closes it when its response ends."""
    session_age: float = Field(3600, gt=0)
    """Seconds until a session is no longer reused."""

    @property
    def policy(self) -> AddressPolicy:
        return "private" if self.allow_private else "public"

    def check_url(self, url: str) -> None:
        """Raises `OutboundRefused` unless callers may use this URL, also for redirects."""
        checked_url(url, allowed=self.allow_urls, policy=self.policy)
        if self.declared_at(url):
            raise OutboundRefused(URL_NOT_ALLOWED)

    def declared_at(self, url: str) -> list[tuple[str, MCPServer]]:
        return [(name, server) for name, server in self.servers.items() if urls_equivalent(url, server.url)]

    @field_validator("servers")
    @classmethod
    def _are_labels(cls, servers: dict[str, MCPServer]) -> dict[str, MCPServer]:
        for name in servers:
            if not LABEL.fullmatch(name):
                raise ValueError(f"{name!r} must contain only letters, digits, '_', '-' and '.'")
            if name == CALLERS_URLS:
                raise ValueError(f"must not contain the name {name!r}: the right `mcp:{name}` is for callers' URLs")
        return servers


def read_settings(table: Mapping[str, object], environment: Mapping[str, str], directory: Path) -> MCPSettings:
    """
    The table's `file` is relative to `directory`.

    Adds the values of `headers_env` to `headers`. Raises `ValueError` with the invalid key.
    """
    file = table.get("file")
    from_file = read_file(directory / file, environment) if isinstance(file, str) else {}
    servers = table.get("servers")
    merged = {**table, "servers": {**from_file, **servers}} if isinstance(servers, Mapping) else dict(table)
    if not isinstance(servers, Mapping) and from_file:
        merged["servers"] = from_file
    settings = read_table(MCPSettings, merged)
    with_headers = {name: _with_headers(name, server, environment) for name, server in settings.servers.items()}
    return settings.model_copy(update={"servers": with_headers})


def _with_headers(name: str, server: MCPServer, environment: Mapping[str, str]) -> MCPServer:
    headers = dict(server.headers)
    for header, variable in server.headers_env.items():
        if not (value := environment.get(variable)):
            raise ValueError(f"servers.{name}.headers_env.{header}: the environment variable {variable} is not set")
        headers[header] = SecretStr(value)
    for header, secret in headers.items():
        value = secret.get_secret_value()
        if re.search(r"[\r\n\0]", value) or not re.fullmatch(r"[!#$%&'*+.^_`|~\w-]+", header, re.ASCII):
            raise ValueError(f"servers.{name}.headers: {header!r} is not a valid header")
        if header.lower() == "authorization" and " " not in value.strip():
            headers[header] = SecretStr(f"Bearer {value.strip()}")
    return server.model_copy(update={"headers": headers})


def read_file(path: Path, environment: Mapping[str, str]) -> JSONObject:
    """
    An `mcpServers` file's servers as settings tables.

    `${NAME}`, `${env:NAME}` and `${NAME:-default}` are replaced by environment variables. Disabled servers are skipped.
    Raises `ValueError`.
    """
    try:
        document = json.loads(path.expanduser().read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"file: cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"file: {str(path)!r} is not JSON: {error}") from None
    servers = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
    if not isinstance(servers, dict):
        raise ValueError(f"file: {str(path)!r} must have an object `mcpServers`")
    tables = {}
    for name, server in servers.items():
        if not isinstance(server, dict):
            raise ValueError(f"file: `mcpServers.{name}` must be an object")
        if server.get("disabled") is not True and server.get("enabled") is not False:
            tables[name] = _table(_expanded(server, environment, f"mcpServers.{name}"))
    return tables


_TRANSPORTS = {"sse": "sse", "http": "http", "streamable-http": "http", "streamable_http": "http"}
_SAME = ("url", "env", "headers", "headers_env", "description", "allowed_tools", "require_approval", "keys")


def _table(server: JSONMapping) -> dict[str, object]:
    """Unknown settings are ignored."""
    table: JSONObject = {name: server[name] for name in _SAME if server.get(name) is not None}
    if url := server.get("serverUrl") or server.get("httpUrl"):
        table.setdefault("url", url)
    if isinstance(command := server.get("command"), str):
        table["command"] = [command, *map(str, server.get("args") or ())]
    elif isinstance(command, list):
        table["command"] = [*map(str, command), *map(str, server.get("args") or ())]
    if kind := _TRANSPORTS.get(str(server.get("type") or server.get("transport") or "").lower()):
        table["transport"] = kind
    if directory := server.get("cwd"):
        table["directory"] = directory
    approved = server.get("alwaysAllow") or server.get("autoApprove")
    if isinstance(approved, Sequence) and not isinstance(approved, str):
        table.setdefault("require_approval", {"never": {"tool_names": list(approved)}})
    if isinstance(table.get("env"), dict):
        table["env"] = {name: str(value) for name, value in table["env"].items()}
    return table


_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}")


def _expanded(value: object, environment: Mapping[str, str], param_path: str) -> Any:
    if isinstance(value, dict):
        return {name: _expanded(field, environment, f"{param_path}.{name}") for name, field in value.items()}
    if isinstance(value, list):
        return [_expanded(element, environment, param_path) for element in value]
    if not isinstance(value, str):
        return value

    def expand(match: re.Match[str]) -> str:
        name, default = match.groups()
        expanded = environment.get(name) or default
        if expanded is None:
            raise ValueError(f"file: {param_path}: the environment variable {name} is not set")
        return expanded

    return _VARIABLE.sub(expand, value)
