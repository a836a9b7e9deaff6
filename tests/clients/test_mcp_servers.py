"""The protocol's own reference server, which is written in another language, over each of its transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.core.redaction import Redactor
from app.tools.mcp.connection import ServerConnection
from app.tools.mcp.server import MCPFailure, ServerAddress
from app.tools.mcp.session import outcome_of
from app.tools.mcp.settings import MCPServer
from tests.clients.program import ENVIRONMENTS, installed, running
from tests.support.ports import free_port

PACKAGE = "@modelcontextprotocol/server-everything"
PATHS = {"streamableHttp": "mcp", "sse": "sse"}


@asynccontextmanager
async def server_options(kind: str, directory: Path) -> AsyncIterator[dict[str, Any]]:
    """The server's address, by transport; an HTTP server is running."""
    script = str(installed(PACKAGE) / "dist" / "index.js")
    if kind == "stdio":
        yield {"command": (str(ENVIRONMENTS / "node" / "bin" / "node"), script, "stdio")}
        return
    port = free_port()
    async with running("node", script, kind, env={"PORT": str(port)}, cwd=directory) as process:
        assert process.stderr
        async for line in process.stderr:
            if str(port).encode() in line:
                break
        yield {"url": f"http://127.0.0.1:{port}/{PATHS[kind]}"}


@pytest.fixture(params=["streamableHttp", "sse", "stdio"])
async def everything(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServerConnection]:
    async with server_options(request.param, tmp_path) as options:
        connection = ServerConnection(ServerAddress(MCPServer(timeout=60, **options), policy="any"))
        await connection.open()
        yield connection
        if goodbyes := connection.close():
            await goodbyes


async def call(connection: ServerConnection, name: str, **arguments: Any) -> Any:
    return outcome_of(await connection.call_tool(name, arguments), Redactor(), 10_000)


async def test_mcp_server_with_every_feature_is_used(everything: ServerConnection) -> None:
    tools, whole = await everything.list_tools()
    assert whole and {"echo", "get-sum", "get-tiny-image"} <= {tool["name"] for tool in tools}
    assert (await call(everything, "echo", message="Hello!")).output == "Echo: Hello!"
    assert "42" in (await call(everything, "get-sum", a=40, b=2)).output
    picture = (await call(everything, "get-tiny-image")).output
    assert picture[1]["image_url"].startswith("data:image/png;base64,")
    weather = (await call(everything, "get-structured-content", location="New York")).output
    assert "temperature" in weather
    links = (await call(everything, "get-resource-links", count=2)).output
    assert links.count("](") == 2
    wrong = await call(everything, "get-sum", a="forty")
    assert wrong.status == "failed" and wrong.fields["error"]["type"] == "mcp_tool_execution_error"


async def test_mcp_call_that_takes_long_is_answered(everything: ServerConnection) -> None:
    done = await call(everything, "trigger-long-running-operation", duration=0.5, steps=2)
    assert done.status == "completed"


async def test_mcp_request_that_the_model_cannot_answer_is_refused(everything: ServerConnection) -> None:
    """The server may ask its client something itself; there is nobody to answer, so such tools are not there."""
    tools, _ = await everything.list_tools()
    assert not {tool["name"] for tool in tools} & {"trigger-sampling-request", "trigger-elicitation-request"}
    try:
        outcome = await call(everything, "trigger-sampling-request", prompt="Hello?")
        assert outcome.status == "failed"
    except MCPFailure:
        pass
