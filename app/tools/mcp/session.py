"""List an MCP server's tools as functions, and call these tools, during a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias

from app.core.bounded_json import is_deeper
from app.core.redaction import Redactor
from app.core.types import JSONMapping, Part
from app.core.types.request import Item
from app.tools import HostedFunction, Outcome, Report, ToolCall, ToolSession, truncated_result
from app.tools.mcp.pool import SessionPool, open_connection
from app.tools.mcp.server import MCPFailure, MCPServerTools, ServerAddress, first_names

if TYPE_CHECKING:
    from app.tools.mcp.connection import ServerConnection

MAX_SCHEMA_LEVELS = 100  # in an offered tool's schema; `truncate_nesting` cuts at 150 levels

# Private data of a list item, so that callers cannot forge it: fingerprints of the server and its tool filters, and a
# hash of the tools.
_SOURCE, _DIGEST = "source", "digest"


async def tools_of(address: ServerAddress) -> list[dict[str, object]]:
    """Raises `MCPFailure`."""
    connection = await open_connection(address, stderr=True)
    try:
        listed, _ = await connection.list_tools()
        return listed
    finally:
        if closing := connection.close():
            await closing


class MCPSession(ToolSession):
    """
    Acquires a pooled connection on first use, and a new one after a loss.

    Responses with the same `scope` share a connection.
    """

    def __init__(
        self,
        label: str,
        address: ServerAddress,
        tools: MCPServerTools,
        max_chars: int,
        pool: SessionPool,
        scope: str,
    ) -> None:
        self._pool, self._scope = pool, scope
        self._label = label
        self._address = address
        self._tools = tools
        self._redactor = address.redactor
        self._max_chars = max_chars
        self._connecting = asyncio.Lock()
        self._connections: list[ServerConnection] = []

    async def __aexit__(self, *exc: object) -> None:
        for connection in self._connections:
            self._pool.release(connection)

    async def functions(self, items: Sequence[Item], report: Report) -> Sequence[HostedFunction]:
        """List the tools once per conversation; later turns reuse the list item."""
        source = f"{self._address.fingerprint}:{self._tools.fingerprint}"
        tools = self._earlier_list(items, report, source)
        if tools is None:
            tools = await self._list(report, source)
        if tools is None:
            return []
        if missing := self._tools.missing(tools):
            report.warn(f"`allowed_tools` of the MCP server {self._label!r} {missing}.")
        return [self._function(tool) for tool in tools if self._tools.allows(tool)]

    async def run(self, call: ToolCall, report: Report) -> Outcome:
        try:
            connection = await self._connection()
        except MCPFailure as failure:
            return failed_outcome(failure.error, self._redactor, begun=False)
        try:
            result = await connection.call_tool(call.function.name, call.arguments)
        except MCPFailure as failure:
            return failed_outcome(failure.error, self._redactor)
        return outcome_of(result, self._redactor, self._max_chars)

    def _earlier_list(self, items: Sequence[Item], report: Report, source: str) -> list[dict[str, object]] | None:
        """
        The tools in the conversation's latest list of this server; None if not reusable.

        A list says which tools are read-only, and thus callable without approval, so it must be this server's own and
        unmodified.
        """
        for item in reversed(items):
            if item["type"] == "mcp_list_tools" and item.get("server_label") == self._label:
                listed = item.get("tools")
                tools = [tool for tool in map(read_tool, listed if isinstance(listed, list) else ()) if tool]
                data = report.private_data(item)
                unmodified = data.get(_SOURCE) == source and data.get(_DIGEST) == _digest(tools)
                return tools if unmodified else None
        return None

    async def _list(self, report: Report, source: str) -> list[dict[str, object]] | None:
        item = report.add("mcp_list_tools", server_label=self._label)
        try:
            connection = await self._connection()
            listed, complete = await connection.list_tools()
        except MCPFailure as failure:
            message = self._redactor(failure.message)
            item.close("failed", error=message)
            report.warn(f"The tools of the MCP server {self._label!r} cannot be used: {message}")
            return None
        if not complete:
            report.warn(f"The tool list of the MCP server {self._label!r} is too long or has no end; it was truncated.")
        tools = [tool for description in listed if (tool := read_tool(without_secrets(description, self._redactor)))]
        if len(tools) < len(listed):
            report.warn(f"The MCP server {self._label!r} lists tools without a name; they were ignored.")
        if deep := [tool["name"] for tool in tools if is_deeper(tool["input_schema"], MAX_SCHEMA_LEVELS)]:
            which = f"Tools of the MCP server {self._label!r} with schemas deeper than {MAX_SCHEMA_LEVELS} levels"
            report.warn(f"{which} were ignored: {first_names(deep)}.")
        tools = [tool for tool in tools if tool["name"] not in deep and self._tools.allows(tool)]
        item.set_private_data(**{_SOURCE: source, _DIGEST: _digest(tools)})
        item.close("completed", tools=tools)
        return tools

    def _function(self, tool: JSONMapping) -> HostedFunction:
        return HostedFunction(
            name=tool["name"],
            item="mcp_call",
            description=tool.get("description") or "",
            parameters=tool["input_schema"],
            namespace=self._label,
            needs_approval=self._tools.needs_approval(tool),
            deferred=self._tools.deferred,
        )

    async def _connection(self) -> ServerConnection:
        async with self._connecting:
            if not self._connections or not self._connections[-1].is_open:
                self._connections.append(await self._pool.acquire(self._address, self._scope))
            return self._connections[-1]


def read_tool(tool: object) -> dict[str, object] | None:
    """The `mcp_list_tools` shape of a tool; None if malformed."""
    if not isinstance(tool, Mapping) or not isinstance(name := tool.get("name"), str) or not name:
        return None
    schema = tool.get("inputSchema", tool.get("input_schema"))
    read: dict[str, object] = {"name": name, "input_schema": schema if isinstance(schema, dict) else {"type": "object"}}
    if isinstance(description := tool.get("description") or tool.get("title"), str):
        read["description"] = description
    if isinstance(annotations := tool.get("annotations"), dict):
        read["annotations"] = annotations
    return read


def _digest(tools: Sequence[Mapping[str, object]]) -> str:
    return sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()[:32]


Block: TypeAlias = JSONMapping  # in a result's `content`, as defined by the protocol
MAX_IMAGES, MAX_IMAGE_CHARS = 32, 20_000_000  # base64, per result; stored with the turn


def without_secrets(value: object, redactor: Redactor) -> object:
    """Redact secrets at any depth in a JSON value."""
    if isinstance(value, str):
        return redactor.without_known(value)
    if isinstance(value, list):
        return [without_secrets(element, redactor) for element in value]
    if isinstance(value, dict):
        return {redactor.without_known(name): without_secrets(field, redactor) for name, field in value.items()}
    return value


def outcome_of(result: JSONMapping, redactor: Redactor, max_chars: int) -> Outcome:
    blocks: list[Block] = result.get("content") or []
    texts = [*filter(None, map(_block_text, blocks))]
    structured = result.get("structuredContent")  # only used without text blocks
    if structured is not None and not any(block.get("type") == "text" for block in blocks):
        texts.insert(0, json.dumps(structured, ensure_ascii=False))
    text = truncated_result(redactor.without_known("\n".join(texts)), max_chars)
    if result.get("isError"):
        content = [{"type": "text", "text": text}]
        error = {"type": "mcp_tool_execution_error", "content": content}
        return Outcome.failed(f"Error: {text}", {"output": None, "error": error})
    images, omitted = _images(blocks)
    if omitted:
        text += f"\n[{omitted} images in this result were omitted: too many or too large.]"
    output: str | list[Part] = [{"type": "input_text", "text": text}, *images] if images else text
    return Outcome(output, {"output": text, "error": None})


def failed_outcome(error: Mapping[str, object], redactor: Redactor, *, begun: bool = True) -> Outcome:
    """`error` is the `error` in the `mcp_call` item."""
    message = redactor(str(error["message"]))
    return Outcome.failed(f"Error: {message}", {"output": None, "error": {**error, "message": message}}, begun=begun)


def _block_text(block: Block) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType')}]"
        case "resource_link":
            description = f": {block['description']}" if block.get("description") else ""
            return f"[{block.get('name') or 'resource'}]({block.get('uri')}){description}"
        case "resource":
            resource = block.get("resource") or {}
            if isinstance(text := resource.get("text"), str):
                return f"{resource.get('uri')}:\n{text}"
            return f"[resource: {resource.get('uri')} {resource.get('mimeType') or ''}".rstrip() + "]"
    return ""


def _images(blocks: Iterable[Block]) -> tuple[list[Part], int]:
    """Images for the model, and the number omitted."""
    shown: list[Part] = []
    left, omitted = MAX_IMAGE_CHARS, 0
    for image in filter(None, map(_image, blocks)):
        size = len(str(image["image_url"]))
        if size > left or len(shown) == MAX_IMAGES:
            omitted += 1
            continue
        left -= size
        shown.append(image)
    return shown, omitted


def _image(block: Block) -> Part | None:
    """Convert an image block or embedded image resource."""
    if block.get("type") == "resource":
        resource = block.get("resource") or {}
        media_type, data = resource.get("mimeType"), resource.get("blob")
    else:
        media_type, data = block.get("mimeType"), block.get("data")
    if not isinstance(media_type, str) or not isinstance(data, str) or not media_type.startswith("image/"):
        return None
    return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}"}
