"""Pooled sessions with declared MCP servers: sharing, expiry and replacement."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.tools import HostedFunction, Outcome
from app.tools.mcp import MCPTool
from tests.support.mcp_lab import MCPLab
from tests.tools.mcp.test_session import Response, call, declaration, lab, tool_of

__all__ = ["lab"]  # a fixture

# Answers requests line by line; notes each start, each list and each call in a file.
PROGRAM = """
import json, os, sys, time

def note(text):
    with open(sys.argv[1], "a") as file:
        file.write(f"{text} {os.getpid()}\\n")

note("start")
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("pid", "die", "change")]
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, result = message["method"], {}
    if method == "initialize":
        info = {"name": "program", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        note("list")
        result = {"tools": TOOLS}
    elif method == "tools/call":
        note(message["params"]["name"])
        if message["params"]["name"] == "die":
            os._exit(1)
        if message["params"]["name"] == "change":
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if method in ("initialize", "tools/list", "tools/call", "ping"):
        answer["result"] = result
    else:
        answer["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(answer), flush=True)
"""


class Program:
    """A server program, and the records of its processes."""

    def __init__(self, directory: Path) -> None:
        self._script, self._notes = directory / "program.py", directory / "notes"
        self._script.write_text(PROGRAM)

    def server(self, gate: Path | None = None, **fields: Any) -> dict[str, Any]:
        """Return the server's settings; its program answers once the file `gate` exists."""
        command = [sys.executable, "-S", str(self._script), str(self._notes), *([str(gate)] if gate else [])]
        return {"command": command, **fields}

    def pids(self, event: str) -> list[int]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == event]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@asynccontextmanager
async def tools(server: dict[str, Any], **table: Any) -> AsyncIterator[MCPTool]:
    tool = tool_of({"servers": {"lab": server}, "require_approval": "never", **table})
    try:
        yield tool
    finally:
        await tool.aclose()


def function(name: str) -> HostedFunction:
    return HostedFunction(name, "mcp_call", namespace="lab", fields={"server_label": "lab", "name": name})


async def respond(tool: MCPTool, *names: str, owner: str = "", **fields: Any) -> list[Outcome]:
    """Make a response that lists the tools and makes some calls."""
    async with tool.open(declaration(owner, server_label="lab", **fields)) as session:
        assert await session.functions([], Response())
        return [await call(session, function(name)) for name in names]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_program_is_started_and_listed_once_for_several_responses(program: Program) -> None:
    async with tools(program.server()) as tool:
        for _ in range(3):
            (outcome,) = await respond(tool, "pid")
            assert outcome.status == "completed"
    assert [len(program.pids(event)) for event in ("start", "list", "pid")] == [1, 1, 3]
    assert not runs(program.pids("start")[0])


async def test_http_server_is_asked_for_its_tools_once_for_several_responses(lab: MCPLab) -> None:
    async with tools({"url": lab.url}) as tool:
        for _ in range(3):
            await respond(tool)
        requests = len(lab.headers)
        await respond(tool)
        assert (lab.lists, len(lab.headers)) == (1, requests)


async def test_concurrent_responses_start_one_program(program: Program) -> None:
    async with tools(program.server()) as tool:
        await asyncio.gather(*(respond(tool, "pid") for _ in range(4)))
    assert len(program.pids("start")) == 1
    assert len(program.pids("pid")) == 4


async def test_concurrent_responses_fail_together_if_the_server_does_not_answer(
    program: Program, tmp_path: Path
) -> None:
    async with tools(program.server(tmp_path / "never", open_timeout=1)) as tool:

        async def fail() -> Outcome:
            async with tool.open(declaration(server_label="lab")) as session:
                return await call(session, function("pid"))

        outcomes = await asyncio.gather(*(fail() for _ in range(4)))
        assert [(outcome.status, outcome.begun) for outcome in outcomes] == [("failed", False)] * 4
    assert len(program.pids("start")) <= 1  # on a busy machine, none in time


async def test_response_that_is_cancelled_while_a_session_opens_leaves_it_to_others(
    program: Program, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with tools(program.server(gate)) as tool:
        first, second = asyncio.create_task(respond(tool, "pid")), asyncio.create_task(respond(tool, "pid"))
        await until(lambda: len(program.pids("start")) == 1)
        first.cancel()
        await asyncio.wait({first})
        gate.touch()
        assert (await second)[0].status == "completed"
    assert first.cancelled() and len(program.pids("start")) == 1


async def test_session_that_no_response_waits_for_is_not_opened(program: Program, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with tools(program.server(gate)) as tool:
        responses = [asyncio.create_task(respond(tool, "pid")) for _ in range(2)]
        await until(lambda: len(program.pids("start")) == 1)
        for response in responses:
            response.cancel()
        await asyncio.wait(responses)
        await until(lambda: not runs(program.pids("start")[0]))
        gate.touch()
        assert (await respond(tool, "pid"))[0].status == "completed"
    assert len(program.pids("start")) == 2


@pytest.mark.parametrize(("shared", "started"), [(False, 2), (True, 1)], ids=["own", "shared"])
async def test_owners_share_a_session_only_if_the_operator_allows_it(
    program: Program, shared: bool, started: int
) -> None:
    async with tools(program.server(shared=shared)) as tool:
        await respond(tool, owner="ada")
        await respond(tool, owner="bob")
        await respond(tool, owner="ada")
    assert len(program.pids("start")) == started


async def test_callers_tokens_have_sessions_of_their_own(lab: MCPLab) -> None:
    async with tools({"url": lab.url, "shared": True}) as tool:
        for token in ("ada-token", "bob-token", "ada-token"):
            await respond(tool, "echo", authorization=token)
            assert lab.headers[-1]["authorization"] == f"Bearer {token}"
    assert lab.lists == 2


async def test_servers_that_callers_name_by_url_have_a_session_for_each_response(lab: MCPLab) -> None:
    tool = tool_of({"allow_urls": ["http://127.0.0.1:*/*"], "allow_private": True, "require_approval": "never"})
    for _ in range(2):
        async with tool.open(declaration(server_label="lab", server_url=lab.url)) as session:
            assert await session.functions([], Response())
    await tool.aclose()
    assert lab.lists == 2


async def test_program_that_died_between_responses_is_replaced(program: Program) -> None:
    async with tools(program.server()) as tool:
        await respond(tool, "pid")
        os.kill(program.pids("start")[0], signal.SIGKILL)
        (outcome,) = await respond(tool, "pid")
    first, second = program.pids("start")
    assert (outcome.output, program.pids("pid")) == (str(second), [first, second])


async def test_program_that_dies_during_a_call_is_replaced_and_the_call_is_not_repeated(program: Program) -> None:
    async with tools(program.server()) as tool:
        died, after = await respond(tool, "die", "pid")
        assert (died.status, after.status) == ("failed", "completed")
        await respond(tool, "pid")
    assert [len(program.pids(event)) for event in ("start", "die", "pid")] == [2, 1, 2]


async def test_session_that_an_http_server_has_dropped_is_replaced(lab: MCPLab) -> None:
    async with tools({"url": lab.sse_url}) as tool:
        await respond(tool)
        (pooled,) = tool._pool._reusable.values()
        await pooled.close()  # type: ignore[misc]
        (outcome,) = await respond(tool, "echo")
    assert (outcome.status, len(lab.calls)) == ("completed", 1)


async def test_list_that_the_server_reports_as_changed_is_read_again(program: Program) -> None:
    async with tools(program.server()) as tool:
        await respond(tool, "change")
        await respond(tool)
        await respond(tool)
    assert len(program.pids("list")) == 2


async def test_response_cannot_change_the_list_of_others(program: Program) -> None:
    async with tools(program.server()) as tool:
        async with tool.open(declaration(server_label="lab")) as session:
            functions = await session.functions([], Response())
            for offered in functions:
                assert isinstance(offered.parameters, dict)
                offered.parameters["title"] = "changed"
        async with tool.open(declaration(server_label="lab")) as session:
            parameters = [offered.parameters for offered in await session.functions([], Response())]
        assert parameters == [{"type": "object"}] * len(functions) and functions


async def test_session_that_is_idle_for_too_long_is_closed(program: Program) -> None:
    async with tools(program.server(), session_idle=0.05) as tool:
        await respond(tool)
        await until(lambda: not runs(program.pids("start")[0]))
        await respond(tool)
    assert len(program.pids("start")) == 2


async def test_session_without_an_idle_time_is_closed_with_its_response(program: Program) -> None:
    async with tools(program.server(), session_idle=0) as tool:
        await respond(tool)
        await until(lambda: not runs(program.pids("start")[0]))
        await respond(tool)
    assert len(program.pids("start")) == 2


async def test_session_that_is_too_old_is_replaced(program: Program) -> None:
    async with tools(program.server(), session_age=1e-9) as tool:
        await respond(tool)
        await respond(tool)
        await until(lambda: not runs(program.pids("start")[0]))
    assert len(program.pids("start")) == 2


async def test_sessions_beyond_the_limit_are_closed_the_least_recently_used_first(program: Program) -> None:
    async with tools(program.server(), max_sessions=2) as tool:
        for owner in ("ada", "bob", "ada", "eve"):
            await respond(tool, owner=owner)
        ada, bob, eve = program.pids("start")
        await until(lambda: not runs(bob))
        assert (runs(ada), runs(eve)) == (True, True)


async def test_session_beyond_the_limit_is_closed_after_its_response(program: Program) -> None:
    async with tools(program.server(), max_sessions=1) as tool:
        async with tool.open(declaration("ada", server_label="lab")) as session:
            assert await session.functions([], Response())
            await respond(tool, owner="bob")
            ada, bob = program.pids("start")
            await until(lambda: not runs(bob))
            assert (await call(session, function("pid"))).output == str(ada)


async def test_closing_the_tool_ends_sessions_in_use(program: Program) -> None:
    async with tools(program.server()) as tool:
        async with tool.open(declaration(server_label="lab")) as session:
            assert await session.functions([], Response())
            await tool.aclose()
            assert not runs(program.pids("start")[0])
