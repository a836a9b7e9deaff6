"""`code_interpreter` as an MCP server: a real server with the official SDK and a tool to run code."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.routing import Mount

from app.main import create_app
from app.settings import SettingsError
from app.tools.mcp.code import code_call
from app.tools.mcp.server import MCPFailure
from tests.responses.test_tool_loop import made
from tests.support import laws
from tests.support.mcp_lab import PIXEL
from tests.support.scripted import Scripted
from tests.support.serving import antiphon, serving, settings

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = "code_interpreter_call.outputs"


class Runner:
    """An MCP server that runs expressions, with variables per session."""

    def __init__(self) -> None:
        self.sessions: dict[str, dict[str, Any]] = {}
        self.url = ""
        self.server = MCPServer("runner")
        self.server.add_tool(self.version)
        self.server.add_tool(self.run_python)

    def version(self) -> str:
        """Tell the version."""
        return "3"

    def run_python(self, code: str, session_id: str) -> list[Any]:
        """Run code."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(code, self.sessions.setdefault(session_id, {}))
            except Exception as error:
                raise ToolError(f"{type(error).__name__}: {error}") from None
        pictures = [ImageContent(type="image", data=PIXEL, mime_type="image/png")] if "plot" in code else []
        return [TextContent(type="text", text=printed.getvalue()), *pictures]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Runner]:
        inner = self.server.streamable_http_app()

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            async with inner.router.lifespan_context(inner):
                yield

        async with serving(Starlette(routes=[Mount("/", app=inner)], lifespan=lifespan)) as url:
            self.url = f"{url}/mcp"
            yield self


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with Runner().serve() as runner:
        yield runner


def tables(url: str, **more: Any) -> dict[str, Any]:
    return {
        "mcp": {"servers": {"sandbox": {"url": url, "require_approval": "never"}}},
        "code_interpreter": {"provider": "mcp:sandbox", **more},
    }


@asynccontextmanager
async def client(url: str, *scripts: Any, key: str = "ada", **more: Any) -> AsyncIterator[tuple[AsyncOpenAI, Scripted]]:
    backend = Scripted(*scripts)
    async with antiphon(backend, tools=tables(url, **more)) as server:
        async with AsyncOpenAI(base_url=f"{server}/v1", api_key=key, max_retries=0) as made:
            yield made, backend


def runs(code: str) -> list[Any]:
    return made(("code_interpreter", {"code": code}))


async def respond(client: AsyncOpenAI, **options: Any) -> Any:
    wanted = {"model": "m", "input": "Go.", "tools": [AUTO], "include": [OUTPUTS], **options}
    return await client.responses.create(**wanted)


DONE = made(text="Done.")


async def test_code_is_run_by_the_server_and_keeps_its_state_in_a_conversation(runner: Runner) -> None:
    async with client(runner.url, runs("x = 6"), runs("print(x * 7)"), DONE, runs("print(x)"), DONE) as (ada, backend):
        first = await respond(ada)
        assert [item.type for item in first.output] == ["code_interpreter_call", "code_interpreter_call", "message"]
        call = first.output[1]
        assert (call.status, call.code, call.outputs[0].logs) == ("completed", "print(x * 7)", "42\n")
        assert call.container_id.startswith("cntr_")
        second = await respond(ada, previous_response_id=first.id)
    assert second.output[0].outputs[0].logs == "6\n"
    assert second.output[0].container_id == call.container_id
    assert len(runner.sessions) == 1 and call.container_id not in runner.sessions
    assert backend.received[-1]["messages"][-1]["content"] == "6\n"


async def test_container_id_of_another_owner_is_not_found(runner: Runner) -> None:
    named = {"type": "code_interpreter", "container": "cntr_mine"}
    backend = Scripted(runs("x = 1"), DONE, runs("print(x)"), DONE, runs("print(x)"), DONE)
    async with antiphon(backend, tools=tables(runner.url), api_keys="ada,bob") as url:
        async with (
            AsyncOpenAI(base_url=f"{url}/v1", api_key="ada") as ada,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="bob") as bob,
        ):
            await respond(ada, tools=[named])
            mine = await respond(ada, tools=[named])
            theirs = await respond(bob, tools=[named])
    assert mine.output[0].outputs[0].logs == "1\n"
    assert theirs.output[0].status == "failed" and "NameError" in theirs.output[0].outputs[0].logs


async def test_code_images_and_events_are_those_of_a_container(runner: Runner) -> None:
    async with client(runner.url, runs("print('plot')"), DONE) as (ada, _):
        stream = await respond(ada, stream=True)
        events = [event.to_dict() async for event in stream]
    laws.check(events)
    types = [event["type"] for event in events]
    assert "response.code_interpreter_call.interpreting" in types
    item = events[-1]["response"]["output"][0]
    assert [output["type"] for output in item["outputs"]] == ["logs", "image"]
    assert item["outputs"][1]["url"] == f"data:image/png;base64,{PIXEL}"


async def test_code_that_fails_and_an_unavailable_server_are_reported_to_the_model(runner: Runner) -> None:
    async with client(runner.url, runs("1 / 0"), DONE) as (ada, backend):
        response = await respond(ada)
        assert response.output[0].status == "failed" and response.status == "completed"
        assert "ZeroDivisionError" in backend.received[-1]["messages"][-1]["content"]
    async with client("http://127.0.0.1:9/mcp", runs("1"), DONE) as (ada, backend):
        response = await respond(ada)
        assert response.output[0].status == "failed"
        assert "cannot be reached" in backend.received[-1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("container", "param"),
    [
        (None, "tools[0].container"),
        ("mine", "tools[0].container"),
        ({"type": "auto", "file_ids": ["file-1"]}, "tools[0].container.file_ids"),
        ({"type": "auto", "network_policy": {"type": "disabled"}}, "tools[0].container.network_policy"),
    ],
)
async def test_code_options_that_the_server_lacks_are_refused(runner: Runner, container: Any, param: str) -> None:
    async with client(runner.url, DONE) as (ada, backend):
        with pytest.raises(openai.BadRequestError) as refusal:
            await respond(ada, tools=[{"type": "code_interpreter", "container": container}])
    assert refusal.value.param == param and backend.received == []


async def test_code_by_a_server_that_is_not_the_callers_is_left_out(runner: Runner) -> None:
    tools = tables(runner.url)
    tools["mcp"]["servers"]["sandbox"]["keys"] = ["bob"]
    backend = Scripted(DONE)
    async with antiphon(backend, tools=tools, api_keys="ada,bob") as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="ada") as ada:
            response = await ada.responses.with_raw_response.create(model="m", input="Go.", tools=[AUTO])  # type: ignore[list-item]
    assert "code_interpreter" in response.headers["x-antiphon-warning"]
    assert "tools" not in backend.received[0]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({"code_interpreter": {"provider": "mcp:lab"}}, "MCP server 'lab' not found"),
        (tables("http://127.0.0.1:9/mcp", disk="1MiB"), "disk: unknown key"),
    ],
)
def test_code_table_that_is_invalid_is_refused(tools: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        create_app(settings(tools=tools), backend=Scripted(DONE))


def test_code_tool_is_found_by_its_arguments() -> None:
    def tool(name: str, *arguments: str) -> dict[str, Any]:
        return {"name": name, "inputSchema": {"type": "object", "properties": {one: {} for one in arguments}}}

    tools = [tool("version"), tool("run", "code"), tool("run_in", "script", "container_id")]
    assert code_call(tools, code="1", session_id="s") == ("run", {"code": "1"})
    assert code_call(tools, "run_in", "1", "s") == ("run_in", {"script": "1", "container_id": "s"})
    for name in ("version", "gone"):
        with pytest.raises(MCPFailure, match=name):
            code_call(tools, name)
    with pytest.raises(MCPFailure, match="argument for code"):
        code_call([tool("version")])
