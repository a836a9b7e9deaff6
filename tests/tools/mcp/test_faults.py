"""What an MCP server may do wrong, and what the model and the caller are told of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from app.tools.mcp.connection import MAX_PAGES, ServerConnection
from app.tools.mcp.http import MAX_RESULT_BYTES
from app.tools.mcp.server import MCPFailure, ServerAddress
from tests.support.upstream import CLOSE, HANG, RESET, Received, Step, Upstream, head, reply, sse, status

Answer = Callable[[dict[str, Any]], list[Step]]


def result(message: dict[str, Any], value: dict[str, Any]) -> list[Step]:
    return reply(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": value}).encode())


def error(message: dict[str, Any], code: int, text: str) -> list[Step]:
    return reply(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text}}).encode())


def initialized(message: dict[str, Any]) -> list[Step]:
    capabilities = {"tools": {"listChanged": False}}
    info = {"name": "broken", "version": "1"}
    return result(message, {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})


def listed(message: dict[str, Any], **more: Any) -> list[Step]:
    return result(message, {"tools": [{"name": "add", "inputSchema": {"type": "object"}}], **more})


def called(message: dict[str, Any]) -> list[Step]:
    return result(message, {"content": [{"type": "text", "text": "fine"}]})


class Broken(Upstream):
    """A server of the protocol of 2025 that does what it should, but where a test says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.everything: list[Step] | None = None
        self.methods: dict[str, Answer] = {
            "server/discover": lambda message: error(message, -32601, "Method not found"),
            "initialize": initialized,
            "notifications/initialized": lambda message: status(202),
            "notifications/cancelled": lambda message: status(202),
            "tools/list": listed,
            "tools/call": called,
        }
        self.asked: list[str] = []
        self.heard = asyncio.Event()

    def answer_to(self, request: Received) -> list[Step]:
        self.requests.append(request)
        if self.everything is not None:
            return self.everything
        if request.method != "POST":
            return status(405)
        self.asked.append(request.json["method"])
        if self.asked[-1] == "tools/call":
            self.heard.set()
        return self.methods[self.asked[-1]](request.json)


@pytest.fixture
async def broken() -> AsyncIterator[Broken]:
    async with Broken() as server:
        yield server


def session(server: Broken, **options: Any) -> ServerConnection:
    return ServerConnection(ServerAddress(url=f"{server.url}/mcp", reach="any", **{"transport": "http", **options}))


async def close(connection: ServerConnection) -> None:
    if goodbyes := connection.close():
        await goodbyes


async def failing(connection: ServerConnection) -> dict[str, Any]:
    """The error of a call, or of the opening before it."""
    with pytest.raises(MCPFailure) as failure:
        await connection.open()
        await connection.call_tool("add", {})
    await close(connection)
    return failure.value.error


def http_error(code: int, words: str) -> dict[str, Any]:
    return {"type": "http_error", "code": code, "message": f"The MCP server answered with the HTTP status {words}."}


UNREADABLE = -32700


@pytest.mark.parametrize("transport", ["auto", "http", "sse"])
@pytest.mark.parametrize(
    ("code", "words"), [(401, "401 Unauthorized"), (403, "403 Forbidden"), (404, "404 Not Found"), (503, "503 Service")]
)
async def test_a_server_that_refuses(broken: Broken, transport: str, code: int, words: str) -> None:
    broken.everything = status(code, {"error": "The token abc123 is wrong."})
    failure = await failing(session(broken, transport=transport))
    assert (failure["type"], failure["code"]) == ("http_error", code)
    assert words in failure["message"] and "abc123" not in failure["message"]


async def test_a_gateway_that_fails_in_mid_session_fails_one_call(broken: Broken) -> None:
    connection = session(broken)
    await connection.open()
    broken.methods["tools/call"] = lambda message: status(502)
    with pytest.raises(MCPFailure) as failure:
        await connection.call_tool("add", {})
    assert failure.value.error == http_error(502, "502 Bad Gateway")
    broken.methods["tools/call"] = called
    assert (await connection.call_tool("add", {}))["content"][0]["text"] == "fine"
    await close(connection)


async def test_a_lost_session_gets_no_more_requests(broken: Broken) -> None:
    connection = session(broken)
    await connection.open()
    broken.methods["tools/call"] = lambda message: status(404)
    with pytest.raises(MCPFailure):
        await connection.call_tool("add", {})
    assert not connection.is_open
    await close(connection)


async def test_a_refused_call_does_not_take_the_others_with_it(broken: Broken) -> None:
    go = asyncio.Event()
    connection = session(broken)
    await connection.open()
    answers = [lambda message: [go, *called(message)], lambda message: status(502)]
    broken.methods["tools/call"] = lambda message: answers.pop(0)(message)
    first = asyncio.ensure_future(connection.call_tool("add", {}))
    await broken.heard.wait()
    with pytest.raises(MCPFailure):
        await connection.call_tool("add", {})
    go.set()
    assert (await first)["content"][0]["text"] == "fine"
    await close(connection)


@pytest.mark.parametrize("method", ["server/discover", "tools/list", "tools/call"])
async def test_a_server_that_hangs(broken: Broken, method: str) -> None:
    broken.methods[method] = lambda message: [HANG]
    connection = session(broken, open_seconds=0.3, call_seconds=0.3)
    with pytest.raises(MCPFailure, match="in time") as failure:
        await connection.open()
        await connection.list_tools()
        await connection.call_tool("add", {})
    assert failure.value.error["code"] == -32001
    await close(connection)
    hung = next(one for one in broken.requests if one.method == "POST" and one.json.get("method") == method)
    await hung.gone.wait()


@pytest.mark.parametrize(
    "steps",
    [
        [head({"Content-Type": "text/event-stream"}), b"event: message\ndata: {", CLOSE],
        [head({"Content-Type": "text/event-stream"}), b"event: message\ndata: {", RESET],
        [head({"Content-Type": "application/json", "Content-Length": "1000"}), b'{"jsonrpc"', CLOSE],
        [CLOSE],
        [RESET],
        sse('{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}'),
        sse("no JSON"),
        sse('{"jsonrpc": "1.0"}'),
        reply(b"no JSON"),
        reply(b"{}"),
        reply(b'{"jsonrpc": "2.0", "id": 1, "result": 7}'),
        reply(b"[" * 100_000),
        reply(b"<html>Welcome!</html>", "text/html"),
        reply(b"", ""),
        status(202),
        status(204),
        reply(b'{"jsonrpc": "2.0", "result": {"content": "text"}}'),
    ],
)
async def test_answers_that_are_none(broken: Broken, steps: list[Step]) -> None:
    broken.methods["tools/call"] = lambda message: steps
    failure = await failing(session(broken, call_seconds=2))
    assert failure["type"] == "mcp_protocol_error" and failure["code"] < 0 and failure["message"]


async def test_results_of_a_wrong_shape(broken: Broken) -> None:
    broken.methods["tools/call"] = lambda message: result(message, {"content": [{"type": "hologram"}]})
    assert (await failing(session(broken)))["code"] == UNREADABLE
    broken.methods["tools/list"] = lambda message: result(message, {"tools": [{"name": 7}]})
    connection = session(broken)
    await connection.open()
    with pytest.raises(MCPFailure):
        await connection.list_tools()
    await close(connection)


async def test_an_error_of_the_protocol_is_reported(broken: Broken) -> None:
    broken.methods["tools/call"] = lambda message: error(message, -32602, "There is no tool 'add'.")
    assert await failing(session(broken)) == {
        "type": "mcp_protocol_error",
        "code": -32602,
        "message": "There is no tool 'add'.",
    }


def endless(fields: dict[str, str], begin: bytes) -> list[Step]:
    return [head(fields), begin, *[b"a" * 2_000_000] * (MAX_RESULT_BYTES // 2_000_000 + 2), HANG]


@pytest.mark.parametrize(
    "steps",
    [
        endless({"Content-Type": "application/json"}, b'{"jsonrpc": "2.0", "id": 1, "result": "'),
        endless({"Content-Type": "text/event-stream"}, b"event: message\ndata: "),
    ],
    ids=["JSON", "SSE"],
)
async def test_a_hundred_megabytes_are_not_read(broken: Broken, steps: list[Step]) -> None:
    broken.methods["tools/call"] = lambda message: steps
    failure = await failing(session(broken))
    assert failure["type"] == "mcp_protocol_error"
    await broken.requests[-1].gone.wait()


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_no_request_is_sent_to_another_origin(broken: Broken, transport: str) -> None:
    async with Broken() as other:
        broken.everything = status(307, headers={"Location": f"{other.url}/mcp?token=secret"})
        failure = await failing(session(broken, transport=transport, headers={"Authorization": "Bearer secret"}))
        assert (failure["type"], failure["code"]) == ("http_error", 307)
        assert "secret" not in failure["message"]
        assert other.connections == 0


async def test_an_sse_server_that_sends_its_messages_elsewhere(broken: Broken) -> None:
    async with Broken() as other:
        event = f"event: endpoint\ndata: {other.url}/messages\n\n".encode()
        broken.everything = [head({"Content-Type": "text/event-stream"}), event, HANG]
        await failing(session(broken, transport="sse", open_seconds=1))
        assert other.connections == 0


async def test_an_sse_server_that_refuses_a_message(broken: Broken) -> None:
    """The SDK says this to nobody, and the call would wait until its time is over."""

    class Old(Broken):
        def answer_to(self, request: Received) -> list[Step]:
            self.requests.append(request)
            if request.method == "GET":
                return [head({"Content-Type": "text/event-stream"}), b"event: endpoint\ndata: /messages\n\n", HANG]
            return status(502)

    async with Old() as old:
        failure = await failing(session(old, transport="sse", open_seconds=30))
        assert failure == http_error(502, "502 Bad Gateway")


async def test_a_list_that_never_ends(broken: Broken) -> None:
    pages = iter(range(10**6))
    broken.methods["tools/list"] = lambda message: listed(message, nextCursor=str(next(pages)))
    connection = session(broken)
    await connection.open()
    tools, whole = await connection.list_tools()
    assert (len(tools), whole) == (MAX_PAGES, False)
    broken.methods["tools/list"] = lambda message: listed(message, nextCursor="again")
    tools, whole = await connection.list_tools()
    assert (len(tools), whole) == (2, False)
    await close(connection)


async def test_nobody_listens(broken: Broken) -> None:
    await broken.close()
    failure = await failing(session(broken))
    assert failure == {"type": "mcp_protocol_error", "code": -32000, "message": "The MCP server cannot be reached."}
    await broken.open()


async def test_a_server_that_goes_away(broken: Broken) -> None:
    connection = session(broken)
    await connection.open()
    await broken.close()
    for _ in range(2):
        with pytest.raises(MCPFailure, match=r"was lost|cannot be reached"):
            await connection.call_tool("add", {})
    assert not connection.is_open
    await close(connection)
    await broken.open()
