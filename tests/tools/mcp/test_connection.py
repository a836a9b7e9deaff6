"""One session with an MCP server: opened, asked, cancelled and closed from any task."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mcp.client.session
import pytest

from app.tools.guard import AddressPolicy
from app.tools.mcp.connection import ServerConnection
from app.tools.mcp.server import MCPFailure, ServerAddress
from app.tools.mcp.settings import MCPServer
from tests.support.mcp_lab import PIXEL, MCPLab

TIME = [sys.executable, "-m", "mcp_server_time"]


def address_of(url: str, policy: AddressPolicy = "any", **settings: Any) -> ServerAddress:
    return ServerAddress(MCPServer(url=url, **settings), policy=policy)


@asynccontextmanager
async def connected(address: ServerAddress) -> AsyncIterator[ServerConnection]:
    """A session in a task of its own, closed when the block ends."""
    connection = ServerConnection(address)
    await connection.open()
    try:
        yield connection
    finally:
        if goodbyes := connection.close():
            await goodbyes


@pytest.fixture
async def lab() -> AsyncIterator[MCPLab]:
    async with MCPLab().serve() as lab:
        yield lab


def text_of(result: dict[str, Any]) -> str:
    return "".join(block["text"] for block in result["content"] if block["type"] == "text")


@pytest.mark.parametrize("transport", ["http", "auto", "sse"])
async def test_tools_are_listed_and_called(lab: MCPLab, transport: str) -> None:
    url = lab.sse_url if transport == "sse" else lab.url
    async with connected(address_of(url, transport=transport)) as connection:
        tools, whole = await connection.list_tools()
        add = next(tool for tool in tools if tool["name"] == "add")
        assert (add["description"], add["annotations"]) == ("Add two numbers.", {"readOnlyHint": True})
        assert add["inputSchema"]["required"] == ["a", "b"]
        assert whole
        assert text_of(await connection.call_tool("add", {"a": 1, "b": 2})) == "3"
    assert lab.calls == [("add", {"a": 1, "b": 2})]


async def test_server_of_the_old_transport_is_found(lab: MCPLab) -> None:
    async with connected(address_of(lab.sse_url)) as connection:
        assert text_of(await connection.call_tool("add", {"a": 1, "b": 2})) == "3"


async def test_program_is_run_and_ended(lab: MCPLab) -> None:
    async with connected(ServerAddress(MCPServer(command=TIME))) as connection:
        tools, _ = await connection.list_tools()
        assert {tool["name"] for tool in tools} == {"get_current_time", "convert_time"}
        result = await connection.call_tool("get_current_time", {"timezone": "Europe/Lisbon"})
        assert "Europe/Lisbon" in text_of(result)


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, {"a": None}, "ümlaut\u2028", 2**60, [None]])
async def test_arguments_arrive_as_they_are(lab: MCPLab, value: Any) -> None:
    async with connected(address_of(lab.url)) as connection:
        await connection.call_tool("echo", {"value": value})
    assert lab.calls == [("echo", {"value": value})]


async def test_results_of_every_kind_are_read(lab: MCPLab) -> None:
    async with connected(address_of(lab.url)) as connection:
        picture = await connection.call_tool("picture", {})
        assert picture["content"][1] == {"type": "image", "data": PIXEL, "mimeType": "image/png"}
        assert (await connection.call_tool("structured", {}))["structuredContent"] == {"sum": 3}
        kinds = [block["type"] for block in (await connection.call_tool("resource", {}))["content"]]
        assert kinds == ["resource_link", "resource", "resource"]
        failed = await connection.call_tool("fail", {})
        assert failed["isError"] is True and "It does not work." in text_of(failed)
        assert (await connection.call_tool("no_such_tool", {}))["isError"] is True
        assert (await connection.call_tool("add", {"a": "x"}))["isError"] is True


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_calls_run_side_by_side(lab: MCPLab, transport: str) -> None:
    async with connected(address_of(lab.sse_url if transport == "sse" else lab.url, transport=transport)) as connection:
        met = await asyncio.gather(connection.call_tool("meet", {}), connection.call_tool("meet", {}))
    assert [text_of(result) for result in met] == ["met", "met"]


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_call_that_is_cancelled_is_cancelled_at_the_server_and_the_session_goes_on(
    lab: MCPLab, transport: str
) -> None:
    async with connected(address_of(lab.sse_url if transport == "sse" else lab.url, transport=transport)) as connection:
        call = asyncio.ensure_future(connection.call_tool("sleep", {}))
        await lab.asleep.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await lab.cancelled.wait()
        assert text_of(await connection.call_tool("add", {"a": 1, "b": 1})) == "2"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_session_closed_by_another_task_during_a_call_ends_it(lab: MCPLab, transport: str) -> None:
    connection = ServerConnection(address_of(lab.sse_url if transport == "sse" else lab.url))
    await asyncio.create_task(connection.open())
    call = asyncio.ensure_future(connection.call_tool("sleep", {}))
    await lab.asleep.wait()

    async def close() -> None:
        goodbyes = connection.close()
        assert goodbyes
        await goodbyes

    await asyncio.create_task(close())
    with pytest.raises(MCPFailure, match="ended"):
        await call
    await lab.cancelled.wait()
    with pytest.raises(MCPFailure):
        await connection.call_tool("add", {})


async def test_call_that_takes_too_long_fails(lab: MCPLab) -> None:
    async with connected(address_of(lab.url, timeout=1)) as connection:
        with pytest.raises(MCPFailure, match="in time") as failure:
            await connection.call_tool("sleep", {})
        assert failure.value.error == {
            "type": "mcp_protocol_error",
            "code": -32001,
            "message": "The MCP server did not answer in time.",
        }
        await lab.cancelled.wait()


async def test_open_that_is_cancelled_leaves_nothing(lab: MCPLab) -> None:
    connection = ServerConnection(address_of(lab.url))
    opening = asyncio.ensure_future(connection.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    if goodbyes := connection.close():
        await goodbyes
    assert not connection.is_open


async def test_headers_are_sent_with_each_request(lab: MCPLab) -> None:
    async with connected(
        replace(address_of(lab.url), headers={"Authorization": "Bearer token", "X-Team": "a"})
    ) as connection:
        await connection.list_tools()
    assert len(lab.headers) > 1
    assert all((sent["authorization"], sent["x-team"]) == ("Bearer token", "a") for sent in lab.headers)


async def test_address_shows_no_secret() -> None:
    settings = MCPServer.model_construct(url="https://example.com/SECRET", command=["x", "SECRET"])
    assert "SECRET" not in repr(ServerAddress(settings, headers={"Authorization": "SECRET"}))


async def test_private_addresses_of_callers_get_no_request(lab: MCPLab) -> None:
    with pytest.raises(MCPFailure, match="are not allowed"):
        await ServerConnection(address_of(lab.url, policy="public")).open()
    assert lab.headers == []


@pytest.mark.parametrize("command", [("/no/such/program",), (sys.executable, "-c", "raise SystemExit(1)")])
async def test_program_that_does_not_run_is_reported(command: tuple[str, ...]) -> None:
    with pytest.raises(MCPFailure):
        await ServerConnection(ServerAddress(MCPServer(command=command))).open()


def test_logger_of_the_sdk_is_silent_and_others_of_its_name_are_not(caplog: pytest.LogCaptureFixture) -> None:
    sdk = Path(mcp.client.session.__file__)
    logger = logging.getLogger("client")
    with caplog.at_level(logging.INFO):
        logger.handle(logger.makeRecord("client", logging.ERROR, str(sdk), 1, "of the SDK", (), None))
        logger.warning("of somebody else")
    assert caplog.messages == ["of somebody else"]
