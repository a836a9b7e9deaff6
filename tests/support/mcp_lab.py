"""
An MCP server with the official SDK on a real socket, with a tool for each feature that clients must support.

    async with MCPLab().serve() as lab:
        ...                                   # ask `lab.url`, or `lab.sse_url`
        assert lab.calls == [("add", {"a": 1, "b": 2})]
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.support.serving import serving

# The smallest PNG: a transparent pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LONG_NAME = "a_tool_with_a_name_that_is_as_long_as_the_names_of_functions_may"


class MCPLab:
    """A server with the tools below, which records calls, headers and cancellations."""

    def __init__(self, name: str = "lab", *, only: str | None = None) -> None:
        self.server = MCPServer(name)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.lists = 0
        self.headers: list[dict[str, str]] = []  # of each request
        self.asleep = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.together = 0
        self.url = self.sse_url = ""
        self._barrier = asyncio.Barrier(2)
        tools: list[tuple[Callable[..., Any], dict[str, Any]]] = [
            (self.add, {"annotations": ToolAnnotations(read_only_hint=True)}),
            (self.echo, {}),
            (self.fail, {}),
            (self.sleep, {}),
            (self.meet, {}),
            (self.picture, {}),
            (self.sound, {}),
            (self.resource, {}),
            (self.structured, {}),
            (self.huge, {}),
            (self.tell_secret, {}),
            (self.long_name, {"name": LONG_NAME}),
        ]
        for tool, options in tools:
            if only is None or tool.__name__ == only:
                self.server.add_tool(tool, **options)

    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.calls.append(("add", {"a": a, "b": b}))
        return str(a + b)

    def echo(self, value: Any = None) -> str:
        """Return the value."""
        self.calls.append(("echo", {"value": value}))
        return json.dumps(value)

    def fail(self) -> str:
        """Fail."""
        raise ToolError("It does not work.")

    async def sleep(self) -> str:
        """Sleep until it is cancelled."""
        self.asleep.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ""

    async def meet(self) -> str:
        """Wait for another call of the same."""
        await self._barrier.wait()
        return "met"

    def picture(self) -> list[TextContent | ImageContent]:
        """Draw a picture."""
        return [
            TextContent(type="text", text="One pixel:"),
            ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        ]

    def sound(self) -> AudioContent:
        """Make a sound."""
        return AudioContent(type="audio", data=base64.b64encode(b"RIFF").decode(), mime_type="audio/wav")

    def resource(self) -> list[ResourceLink | EmbeddedResource]:
        """Give resources."""
        return [
            ResourceLink(type="resource_link", uri="file:///readme.md", name="readme", description="What to read."),
            EmbeddedResource(
                type="resource",
                resource=TextResourceContents(uri="file:///notes.txt", text="Notes.", mime_type="text/plain"),
            ),
            EmbeddedResource(
                type="resource",
                resource=BlobResourceContents(uri="file:///pixel.png", blob=PIXEL, mime_type="image/png"),
            ),
        ]

    def structured(self) -> CallToolResult:
        """Return structured content without text."""
        return CallToolResult(content=[], structured_content={"sum": 3})

    def huge(self) -> str:
        """Give very much."""
        return "word " * 100_000

    def tell_secret(self) -> str:
        """Return the request's headers."""
        return json.dumps(self.headers[-1])

    def long_name(self) -> str:
        """Answer to a long name."""
        return "long"

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[MCPLab]:
        """Serve by streamable HTTP at `url` and by SSE at `sse_url`."""
        http = self.server.streamable_http_app()
        app = Starlette(
            routes=[*http.routes, Mount("/old", self.server.sse_app())], lifespan=http.router.lifespan_context
        )
        async with serving(self._noting(app)) as url:  # type: ignore[arg-type]
            self.url, self.sse_url = f"{url}/mcp", f"{url}/old/sse"
            yield self

    def _noting(self, app: Any) -> Callable[..., Awaitable[None]]:
        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})

                async def counted_receive() -> Any:
                    message = await receive()
                    self.lists += b'"tools/list"' in message.get("body", b"")
                    return message

                await app(scope, counted_receive, send)
            else:
                await app(scope, receive, send)

        return noting
