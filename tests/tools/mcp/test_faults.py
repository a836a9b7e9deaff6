"""MCP server faults, and the resulting messages to the model and the caller."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.bounded_json import is_deeper
from app.tools import Declaration, ToolHost
from app.tools.mcp import MCPTool
from app.tools.mcp.connection import (
    MAX_LIST_BYTES,
    MAX_MESSAGE,
    MAX_PAGES,
    MAX_RESULT_BYTES,
    ServerConnection,
    truncate_nesting,
)
from app.tools.mcp.server import MCPFailure, ServerAddress
from app.tools.mcp.session import MAX_SCHEMA_LEVELS
from app.tools.mcp.settings import MCPServer
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
    """A server with the 2025 protocol, correct except as a test specifies."""

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
        self.received: list[str] = []
        self.tool_called = asyncio.Event()

    def answer_to(self, request: Received) -> list[Step]:
        self.requests.append(request)
        if self.everything is not None:
            return self.everything
        if request.method != "POST":
            return status(405)
        self.received.append(request.json["method"])
        if self.received[-1] == "tools/call":
            self.tool_called.set()
        return self.methods[self.received[-1]](request.json)


@pytest.fixture
async def broken() -> AsyncIterator[Broken]:
    async with Broken() as server:
        yield server


def session(server: Broken, headers: dict[str, str] | None = None, **options: Any) -> ServerConnection:
    settings = MCPServer(url=f"{server.url}/mcp", **{"transport": "http", **options})
    return ServerConnection(ServerAddress(settings, headers=headers or {}, policy="any"))


async def close(connection: ServerConnection) -> None:
    if goodbyes := connection.close():
        await goodbyes


async def failing(connection: ServerConnection) -> dict[str, Any]:
    """The error from a call, or from opening the session."""
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
async def test_server_that_refuses_is_reported(broken: Broken, transport: str, code: int, words: str) -> None:
    broken.everything = status(code, {"error": "The token abc123 is wrong."})
    failure = await failing(session(broken, transport=transport))
    assert (failure["type"], failure["code"]) == ("http_error", code)
    assert words in failure["message"] and "abc123" not in failure["message"]


async def test_gateway_that_fails_within_a_session_fails_one_call(broken: Broken) -> None:
    connection = session(broken)
    await connection.open()
    broken.methods["tools/call"] = lambda message: status(502)
    with pytest.raises(MCPFailure) as failure:
        await connection.call_tool("add", {})
    assert failure.value.error == http_error(502, "502 Bad Gateway")
    broken.methods["tools/call"] = called
    assert (await connection.call_tool("add", {}))["content"][0]["text"] == "fine"
    await close(connection)


async def test_session_that_was_lost_gets_no_more_requests(broken: Broken) -> None:
    connection = session(broken)
    await connection.open()
    broken.methods["tools/call"] = lambda message: status(404)
    with pytest.raises(MCPFailure):
        await connection.call_tool("add", {})
    assert not connection.is_open
    await close(connection)


async def test_call_that_is_refused_does_not_take_the_others_with_it(broken: Broken) -> None:
    go = asyncio.Event()
    connection = session(broken)
    await connection.open()
    answers = [lambda message: [go, *called(message)], lambda message: status(502)]
    broken.methods["tools/call"] = lambda message: answers.pop(0)(message)
    first = asyncio.ensure_future(connection.call_tool("add", {}))
    await broken.tool_called.wait()
    with pytest.raises(MCPFailure):
        await connection.call_tool("add", {})
    go.set()
    assert (await first)["content"][0]["text"] == "fine"
    await close(connection)


@pytest.mark.parametrize("method", ["server/discover", "tools/list", "tools/call"])
async def test_server_that_hangs_is_abandoned(broken: Broken, method: str) -> None:
    broken.methods[method] = lambda message: [HANG]
    opens = method != "server/discover"  # then it may take long on a busy machine
    connection = session(broken, open_timeout=60 if opens else 0.3, timeout=1)
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
async def test_answers_that_are_none_are_reported(broken: Broken, steps: list[Step]) -> None:
    broken.methods["tools/call"] = lambda message: steps
    failure = await failing(session(broken, timeout=2))
    assert failure["type"] == "mcp_protocol_error" and failure["code"] < 0 and failure["message"]


async def test_results_of_a_wrong_shape_are_reported(broken: Broken) -> None:
    broken.methods["tools/call"] = lambda message: result(message, {"content": [{"type": "hologram"}]})
    assert (await failing(session(broken)))["code"] == UNREADABLE
    broken.methods["tools/list"] = lambda message: result(message, {"tools": [{"name": 7}]})
    connection = session(broken)
    await connection.open()
    with pytest.raises(MCPFailure):
        await connection.list_tools()
    await close(connection)


async def test_error_of_the_protocol_is_reported(broken: Broken) -> None:
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
async def test_answer_of_a_hundred_megabytes_is_not_read(broken: Broken, steps: list[Step]) -> None:
    broken.methods["tools/call"] = lambda message: steps
    failure = await failing(session(broken))
    assert failure["type"] == "mcp_protocol_error"
    await broken.requests[-1].gone.wait()


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_redirect_to_another_origin_is_not_followed(broken: Broken, transport: str) -> None:
    async with Broken() as other:
        broken.everything = status(307, headers={"Location": f"{other.url}/mcp?token=secret"})
        failure = await failing(session(broken, transport=transport, headers={"Authorization": "Bearer secret"}))
        assert (failure["type"], failure["code"]) == ("http_error", 307)
        assert "secret" not in failure["message"]
        assert other.connections == 0


async def test_sse_server_that_sends_its_messages_elsewhere_is_refused(broken: Broken) -> None:
    async with Broken() as other:
        event = f"event: endpoint\ndata: {other.url}/messages\n\n".encode()
        broken.everything = [head({"Content-Type": "text/event-stream"}), event, HANG]
        await failing(session(broken, transport="sse", open_timeout=1))
        assert other.connections == 0


async def test_sse_server_that_refuses_a_message_is_reported(broken: Broken) -> None:
    """The SDK says this to nobody, and the call would wait until its time is over."""

    class Old(Broken):
        def answer_to(self, request: Received) -> list[Step]:
            self.requests.append(request)
            if request.method == "GET":
                return [head({"Content-Type": "text/event-stream"}), b"event: endpoint\ndata: /messages\n\n", HANG]
            return status(502)

    async with Old() as old:
        failure = await failing(session(old, transport="sse", open_timeout=30))
        assert failure == http_error(502, "502 Bad Gateway")


async def test_list_that_never_ends_is_bounded(broken: Broken) -> None:
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


async def test_server_that_is_not_there_is_reported(broken: Broken) -> None:
    await broken.close()
    failure = await failing(session(broken))
    assert failure == {"type": "mcp_protocol_error", "code": -32000, "message": "The MCP server cannot be reached."}
    await broken.open()


async def test_server_that_goes_away_is_reported(broken: Broken) -> None:
    connection = session(broken)
    await connection.open()
    await broken.close()
    for _ in range(2):
        with pytest.raises(MCPFailure, match=r"was lost|cannot be reached"):
            await connection.call_tool("add", {})
    assert not connection.is_open
    await close(connection)
    await broken.open()


async def test_error_of_the_servers_own_is_not_a_lost_connection(broken: Broken) -> None:
    """The SDK has the same code for both."""
    broken.methods["tools/call"] = lambda message: error(message, -32000, "The disk is full.")
    connection = session(broken)
    await connection.open()
    with pytest.raises(MCPFailure) as failure:
        await connection.call_tool("add", {})
    assert failure.value.error == {"type": "mcp_protocol_error", "code": -32000, "message": "The disk is full."}
    assert connection.is_open
    await close(connection)


async def test_error_that_is_long_is_cut(broken: Broken) -> None:
    broken.methods["tools/call"] = lambda message: error(message, -32602, "x" * 1_000_000)
    assert len((await failing(session(broken)))["message"]) == MAX_MESSAGE


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "description": 'A "deep" one: [{'}
    for _ in range(levels // 2):
        schema = {"type": "object", "properties": {"a\\": schema}}
    return schema


GOOD = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


@pytest.mark.parametrize("levels", [90, 200, 300, 5_000])
@pytest.mark.parametrize("framing", ["JSON", "SSE"])
async def test_deep_schema_does_not_take_the_other_tools_with_it(broken: Broken, levels: int, framing: str) -> None:
    page = {"tools": [{"name": "deep", "inputSchema": nested(levels)}, GOOD]}
    text = json_text(page)

    def answer(message: dict[str, Any]) -> list[Step]:
        body = f'{{"jsonrpc": "2.0", "id": {json.dumps(message["id"])}, "result": {text}}}'
        return reply(body.encode()) if framing == "JSON" else sse(body)

    broken.methods["tools/list"] = answer
    connection = session(broken)
    await connection.open()
    tools, whole = await connection.list_tools()
    assert [tool["name"] for tool in tools] == ["deep", "add"] and whole
    assert tools[1]["inputSchema"] == GOOD["inputSchema"]
    assert is_deeper(tools[0]["inputSchema"], MAX_SCHEMA_LEVELS) is (levels > MAX_SCHEMA_LEVELS)
    await close(connection)


def json_text(value: Any) -> str:
    """JSON of any depth, which `json.dumps` limits."""
    if isinstance(value, dict):
        parts: list[str] = []
        stack: list[Any] = [value]
        while stack:
            one = stack.pop()
            if isinstance(one, tuple):
                parts.append(one[0])
            elif isinstance(one, dict):
                inner = [entry for name, field in one.items() for entry in ((",",), (f"{json.dumps(name)}:",), field)]
                stack += [("}",), *inner[:0:-1], ("{",)]
            elif isinstance(one, list):
                inner = [entry for field in one for entry in ((",",), field)]
                stack += [("]",), *inner[:0:-1], ("[",)]
            else:
                parts.append(json.dumps(one))
        return "".join(parts)
    return json.dumps(value)


PROGRAM = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "tools/list":
        result = PAGE
    elif message["method"] == "initialize":
        info = {"name": "deep", "version": "1"}
        result = json.dumps({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif "id" not in message:
        continue
    answer = '"error": {"code": -32601, "message": "Method not found"}'
    if message["method"] in ("tools/list", "initialize"):
        answer = '"result": ' + result
    print('{"jsonrpc": "2.0", "id": ' + json.dumps(message["id"]) + ", " + answer + "}", flush=True)
"""


async def test_deep_schema_of_a_program_does_not_take_the_other_tools_with_it(tmp_path: Path) -> None:
    page = json_text({"tools": [{"name": "deep", "inputSchema": nested(300)}, GOOD]})
    program = tmp_path / "program.py"
    program.write_text(f"PAGE = {page!r}\n{PROGRAM}")
    connection = ServerConnection(ServerAddress(MCPServer(command=[sys.executable, str(program)])))
    await connection.open()
    tools, _ = await connection.list_tools()
    assert [tool["name"] for tool in tools] == ["deep", "add"]
    await close(connection)


@pytest.mark.parametrize(
    ("data", "repaired"),
    [
        (b"[]", b"[]"),
        (b"[[[1]]]", b"[[null]]"),
        (b'{"a": {"b": {"c": [1, {}]}}, "d": [1]}', b'{"a": {"b": null}, "d": [1]}'),
        (b'[["]]\\"[{", [[[2]], 3]]]', b'[["]]\\"[{", null]]'),
        (b"[[[1]", b"[[[1]"),  # no JSON
        (b"[[[1]]]]", b"[[[1]]]]"),
    ],
)
def test_value_that_is_nested_too_deeply_is_cut(data: bytes, repaired: bytes) -> None:
    assert truncate_nesting(data, 2) == repaired


async def test_answer_that_cannot_be_read_is_not_quoted(broken: Broken) -> None:
    broken.methods["tools/call"] = lambda message: reply(b'{"token": "hush-hush"}')
    failure = await failing(session(broken))
    assert failure == {
        "type": "mcp_protocol_error",
        "code": UNREADABLE,
        "message": "The MCP server sent an invalid response.",
    }


ANY = {"type": "object"}


@pytest.mark.parametrize(
    ("tool", "listed"),
    [
        ("no tool", {"name": "", "inputSchema": ANY}),
        ({"name": 7, "inputSchema": ANY}, {"name": "", "inputSchema": ANY}),
        ({"name": "x"}, {"name": "x", "inputSchema": ANY}),
        ({"name": "x", "inputSchema": {}}, {"name": "x", "inputSchema": ANY}),
        ({"name": "x", "inputSchema": []}, {"name": "x", "inputSchema": ANY}),
        ({"name": "x", "inputSchema": {"type": ["object", "null"]}}, {"name": "x", "inputSchema": ANY}),
        ({"name": "x", "inputSchema": {**ANY, "properties": [], "required": 1}}, {"name": "x", "inputSchema": ANY}),
        ({"name": "x", "description": 7, "inputSchema": ANY}, {"name": "x", "inputSchema": ANY}),
        ({"name": "x", "inputSchema": ANY, "outputSchema": {"type": "string"}}, {"name": "x", "inputSchema": ANY}),
        (
            {"name": "x", "inputSchema": ANY, "annotations": {"readOnlyHint": "yes", "destructiveHint": False}},
            {"name": "x", "inputSchema": ANY, "annotations": {"destructiveHint": False}},
        ),
    ],
)
async def test_tool_that_deviates_does_not_take_the_others_with_it(
    broken: Broken, tool: object, listed: dict[str, Any]
) -> None:
    pages = {None: {"tools": [tool, GOOD], "nextCursor": "2"}, "2": {"tools": [{**GOOD, "name": "subtract"}]}}
    broken.methods["tools/list"] = lambda message: result(message, pages[message.get("params", {}).get("cursor")])
    connection = session(broken)
    await connection.open()
    tools, whole = await connection.list_tools()
    assert tools == [listed, GOOD, {**GOOD, "name": "subtract"}] and whole
    await close(connection)


async def test_list_takes_no_more_memory_than_allowed(broken: Broken) -> None:
    pages = iter(range(10**6))
    tool = {"name": "add", "description": "word " * (MAX_LIST_BYTES // 20), "inputSchema": {"type": "object"}}
    broken.methods["tools/list"] = lambda message: result(message, {"tools": [tool], "nextCursor": str(next(pages))})
    connection = session(broken)
    await connection.open()
    tools, whole = await connection.list_tools()
    assert (len(tools), whole) == (3, False)
    await close(connection)


class Leading(Broken):
    """A server that redirects clients to its other paths."""

    def __init__(self, *, to: str, sse: bool = False) -> None:
        super().__init__()
        self._to, self._sse = to, sse

    def answer_to(self, request: Received) -> list[Step]:
        if request.path == self._to:
            return super().answer_to(request)
        self.requests.append(request)
        if self._sse and request.method == "GET":
            event = f"event: endpoint\ndata: {self._to}\n\n".encode()
            return [head({"Content-Type": "text/event-stream"}), event, HANG]
        return status(405 if self._sse else 307, headers={"Location": self._to})


@pytest.mark.parametrize("by_sse", [False, True])
@pytest.mark.parametrize(
    ("to", "allowed", "led"),
    [("/v1/admin", "/mine/*", False), ("/v1/mine/x", "/mine/*", True), ("/v1/admin", "/*", False)],
)
async def test_redirect_of_a_caller_to_a_forbidden_address_is_not_followed(
    by_sse: bool, to: str, allowed: str, led: bool
) -> None:
    """Nor to an operator's server with other settings."""
    async with Leading(to=to, sse=by_sse) as server:
        table = {
            "allow_urls": [f"{server.url}{allowed}"],
            "allow_private": True,
            "servers": {"admin": {"url": f"{server.url}/admin"}},
        }
        tool = MCPTool.from_settings(table, ToolHost())
        url = f"{server.url}/mine/{'sse' if by_sse else 'mcp'}"
        fields = {"type": "mcp", "server_label": "mine"}
        declared = Declaration(fields, {**fields, "server_url": url}, "tools[0]", "", "resp_1", "chain")
        async with tool.open(declared) as opened:
            settings = opened._address.settings.model_copy(update={"open_timeout": 2})
            connection = ServerConnection(replace(opened._address, settings=settings))
            with suppress(MCPFailure):
                await connection.open()
            await close(connection)
        await tool.aclose()
        assert any(request.path == to for request in server.requests) is led
