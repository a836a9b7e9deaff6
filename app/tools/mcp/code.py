"""
`code_interpreter` through an MCP server: `provider = "mcp:NAME"` in the table `[tools.code_interpreter]`.

The server has a tool that runs code, for example `run_python`. If it has a session argument, each container gets its
own session with state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field

from app.core.types.request import Item
from app.errors import InvalidRequest
from app.loading import require_packages
from app.tools import (
    Declaration,
    HostedFunction,
    HostedTool,
    Outcome,
    Report,
    SettingsTable,
    ToolCall,
    ToolHost,
    text_parameters,
)
from app.tools.mcp import server_address
from app.tools.mcp.pool import SessionPool
from app.tools.mcp.server import MCPFailure, MCPServerTools
from app.tools.mcp.session import MCPSession, outcome_of, tools_of
from app.tools.mcp.settings import MCPSettings, read_settings
from app.tools.validation import read_declaration, read_table

_CODE = ("code", "source", "script", "python_code")  # by preference
_SESSION = ("session_id", "container_id", "session")
_DESCRIPTION = (
    "Run Python code in a sandbox. Returns the printed output. Variables and files can be lost before the next call."
)
_STATEFUL = "Run Python code in a sandbox. Returns the printed output. Variables and files persist between calls."
_SCHEMA = text_parameters(code="Python code.")


def _provider(name: str) -> str:
    if not name.removeprefix("mcp:"):
        raise ValueError("must be mcp: and the name of a server of [tools.mcp.servers]")
    return name


class MCPCodeSettings(SettingsTable):
    provider: Annotated[str, AfterValidator(_provider)]
    """`mcp:` and the name of a server in `[tools.mcp.servers]`."""
    function: str = ""
    """The server's tool. Default: the first tool with a code argument."""
    stateful: bool = False
    """Whether variables and files persist between calls; the model is told. Set to true if the server has sessions."""


class MCPCodeContainer(BaseModel):
    type: Literal["auto"]
    file_ids: Annotated[list[str], Field(max_length=0)] = []
    network_policy: None = None  # the server decides
    skills: Annotated[list[object], Field(max_length=0)] | None = None


class MCPCodeInterpreter(HostedTool):
    types = ("code_interpreter",)

    def __init__(self, settings: MCPCodeSettings, mcp: MCPSettings, max_result_chars: int) -> None:
        """Raises `ValueError` for an unknown server."""
        name = settings.provider.removeprefix("mcp:")
        if name not in mcp.servers:
            declared = f"declared servers: {', '.join(mcp.servers)}" if mcp.servers else "no servers are declared"
            raise ValueError(f"provider: MCP server {name!r} not found in [tools.mcp.servers]; {declared}")
        self.settings = settings
        self.address = server_address(settings.provider, mcp.servers[name])
        self.max_chars = max_result_chars
        self.pool = SessionPool(mcp)

    @classmethod
    def from_settings(cls, table: Mapping[str, object], host: ToolHost) -> MCPCodeInterpreter:
        settings = read_table(MCPCodeSettings, table)
        require_packages(["mcp"], "mcp")
        mcp = read_settings(host.tables.get("mcp", {}), host.environment, host.directory)
        return cls(settings, mcp, host.max_result_chars)

    def open(self, declaration: Declaration) -> MCPCodeSession | None:
        """None if the caller may not use the server."""
        if not self.address.settings.serves(declaration.key_names):
            return None
        param_path, container = f"{declaration.param_path}.container", declaration.tool.get("container")
        if isinstance(container, Mapping):
            read_declaration(MCPCodeContainer, container, param_path, declaration.warnings)
            container = None
        elif not isinstance(container, str) or not container.startswith("cntr_"):
            message = f"Invalid '{param_path}': must be a container id, or {{'type': 'auto'}}."
            raise InvalidRequest(message, param=param_path, code="missing_required_parameter")
        return MCPCodeSession(self, declaration, container or "")

    async def check(self) -> Mapping[str, str | None]:
        try:
            code_call(await tools_of(self.address), self.settings.function)
        except MCPFailure as failure:
            return {self.settings.provider: self.address.redactor(failure.message)}
        return {self.settings.provider: None}

    async def aclose(self) -> None:
        await self.pool.aclose()


def code_call(
    tools: Sequence[Mapping[str, object]], name: str = "", code: str = "", session_id: str = ""
) -> tuple[str, dict[str, object]]:
    """
    Return the name and arguments of a call that runs `code`.

    The tool is `name`, or the first with a code argument. Raises `MCPFailure`.
    """
    for tool in tools:
        schema = tool.get("inputSchema")
        arguments = schema.get("properties") if isinstance(schema, Mapping) else None
        if name not in ("", tool.get("name")) or not isinstance(arguments, Mapping):
            continue
        if code_argument := next((argument for argument in _CODE if argument in arguments), None):
            session_argument = next((argument for argument in _SESSION if argument in arguments), None)
            session: dict[str, object] = {session_argument: session_id} if session_argument else {}
            return str(tool.get("name")), {code_argument: code, **session}
    missing = f"no tool {name!r} with" if name else "no tool with"
    raise MCPFailure(f"The MCP server has {missing} an argument for code ({', '.join(_CODE)}).")


class MCPCodeSession(MCPSession):
    def __init__(self, tool: MCPCodeInterpreter, declaration: Declaration, container: str) -> None:
        """`container` is "" for the conversation's."""
        # The server may keep code state in the session.
        scope = f"{declaration.owner}\n{container or declaration.chain}"
        label, tools = tool.settings.provider, MCPServerTools((), "never")
        super().__init__(label, tool.address, tools, tool.max_chars, tool.pool, scope)
        self._settings = tool.settings
        self._owner, self._chain = declaration.owner, declaration.chain
        self._container = container
        self._listed: Sequence[Mapping[str, object]] | None = None

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """A conversation continues in its latest call's container."""
        calls = (item for item in reversed(items) if item.get("type") == "code_interpreter_call")
        earlier = (container_id for item in calls if isinstance(container_id := item.get("container_id"), str))
        self._container = self._container or next(earlier, None) or f"cntr_{self._digest(self._chain, 48)}"
        description = _STATEFUL if self._settings.stateful else _DESCRIPTION
        fields = {"container_id": self._container}
        return [HostedFunction("code_interpreter", "code_interpreter_call", description, _SCHEMA, fields=fields)]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        code = call.arguments.get("code")
        if not isinstance(code, str) or not code.strip():
            return Outcome.failed("`code` must be Python code.", {"outputs": []})
        try:
            connection = await self._connection()
            if self._listed is None:
                self._listed, _ = await connection.list_tools()
            # The owner in the session id protects other callers' sessions.
            session_id = self._digest(self._container, 32)
            result = await connection.call_tool(*code_call(self._listed, self._settings.function, code, session_id))
        except MCPFailure as failure:
            message = self._redactor(failure.message)
            return Outcome.failed(message, {"outputs": [{"type": "logs", "logs": message}]})
        outcome = outcome_of(result, self._redactor, self._max_chars)
        parts = outcome.output if isinstance(outcome.output, list) else [{"type": "input_text", "text": outcome.output}]
        logs = "".join(str(part["text"]) for part in parts if part["type"] == "input_text")
        outputs: list[dict[str, object]] = [{"type": "logs", "logs": logs}] if logs else []
        outputs += [{"type": "image", "url": part["image_url"]} for part in parts if part["type"] == "input_image"]
        return Outcome(outcome.output or "(no output)", {"outputs": outputs}, outcome.status)

    def _digest(self, container_id: str, length: int) -> str:
        return sha256(f"{self._owner}\n{container_id}".encode()).hexdigest()[:length]
