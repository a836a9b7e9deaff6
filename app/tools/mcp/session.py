"""One MCP server during one response: its tools as functions, and the calls of them."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from app.core.redaction import Redactor
from app.core.types.request import Item
from app.tools import HostedFunction, Outcome, Report, ToolCall
from app.tools.mcp.results import failed, outcome_of, without_secrets
from app.tools.mcp.server import MCPFailure, MCPServerTools, ServerAddress

if TYPE_CHECKING:
    from app.tools.mcp.connection import ServerConnection

_CONNECTION = "app.tools.mcp.connection"

# What an item keeps of how it was made, where callers do not see it.
_SOURCE = "source"


async def open_connection(address: ServerAddress, *, stderr: bool = False) -> ServerConnection:
    """Return an open session with a server; raises `MCPFailure`. The SDK is imported by the first that is opened."""
    if _CONNECTION not in sys.modules:
        await asyncio.to_thread(importlib.import_module, _CONNECTION)  # which takes more than a second
    from app.tools.mcp.connection import ServerConnection

    connection = ServerConnection(address, stderr=stderr)
    await connection.open()
    return connection


class MCPSession:
    """A `ToolSession`: connects when it first has to ask something, and anew where a session was lost."""

    def __init__(
        self, label: str, address: ServerAddress, tools: MCPServerTools, redactor: Redactor, max_chars: int
    ) -> None:
        self._label = label
        self._address = address
        self._tools = tools
        self._redactor = redactor
        self._max_chars = max_chars
        self._connecting = asyncio.Lock()
        self._connections: list[ServerConnection] = []

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """Return the tools that may be called; they are listed once in a conversation, by an item that stays in it."""
        source = f"{self._address.fingerprint}:{self._tools.fingerprint}"
        known = self._known(items, report, source)
        tools = known if known is not None else await self._list(report, source)
        return [self._function(tool) for tool in tools if self._tools.allows(tool)]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        """Call a tool of the server."""
        try:
            connection = await self._connection()
            result = await connection.call_tool(call.function.name, call.arguments)
        except MCPFailure as failure:
            return failed(failure.error, self._redactor)
        return outcome_of(result, self._redactor, self._max_chars)

    def close(self) -> list[asyncio.Task[None]]:
        """End what is open; returns the tasks in which the goodbyes are said."""
        return [goodbyes for connection in self._connections if (goodbyes := connection.close())]

    def _known(self, items: Sequence[Item], report: Report, source: str) -> list[dict[str, object]] | None:
        """Return the tools of the latest list in the conversation, if it is one of this server."""
        for item in reversed(items):
            if item["type"] == "mcp_list_tools" and item.get("server_label") == self._label:
                # An item that came from elsewhere has no notes: its label has to do.
                if item.get("error") or report.notes(item).get(_SOURCE, source) != source:
                    return None
                return [tool for tool in map(_read, item.get("tools") or ()) if tool]
        return None

    async def _list(self, report: Report, source: str) -> list[dict[str, object]]:
        item = report.add("mcp_list_tools", server_label=self._label)
        try:
            connection = await self._connection()
            listed, whole = await connection.list_tools()
        except MCPFailure as failure:
            message = self._redactor(failure.message)
            item.close("failed", error=message)
            report.warn(f"The tools of the MCP server {self._label!r} cannot be used: {message}")
            return []
        if not whole:
            report.warn(f"The list of the tools of the MCP server {self._label!r} has no end; it was cut off.")
        tools = [
            tool for one in listed if (tool := _read(without_secrets(one, self._redactor))) and self._tools.allows(tool)
        ]
        item.note(**{_SOURCE: source})
        item.close("completed", tools=tools)
        return tools

    def _function(self, tool: Mapping[str, Any]) -> HostedFunction:
        return HostedFunction(
            name=tool["name"],
            item="mcp_call",
            description=tool.get("description") or "",
            parameters=tool["input_schema"],
            namespace=self._label,
            fields={"server_label": self._label, "name": tool["name"]},
            needs_approval=self._tools.needs_approval(tool),
            deferred=self._tools.deferred,
        )

    async def _connection(self) -> ServerConnection:
        async with self._connecting:
            if not self._connections or not self._connections[-1].is_open:
                self._connections.append(await open_connection(self._address))
            return self._connections[-1]


def _read(tool: object) -> dict[str, object] | None:
    """Read a tool, of a server's list or of an item, as an `mcp_list_tools` item has it; None for one that is none."""
    if not isinstance(tool, Mapping) or not isinstance(name := tool.get("name"), str) or not name:
        return None
    schema = tool.get("inputSchema", tool.get("input_schema"))
    read: dict[str, object] = {"name": name, "input_schema": schema if isinstance(schema, dict) else {"type": "object"}}
    if isinstance(description := tool.get("description") or tool.get("title"), str):
        read["description"] = description
    if isinstance(annotations := tool.get("annotations"), dict):
        read["annotations"] = annotations
    return read


@asynccontextmanager
async def opened(session: MCPSession, closing: Callable[[asyncio.Task[None]], None]) -> AsyncIterator[MCPSession]:
    """Give a session, and end it without waiting for its goodbyes, which go to `closing`."""
    try:
        yield session
    finally:
        for goodbyes in session.close():
            closing(goodbyes)
