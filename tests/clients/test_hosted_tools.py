"""Hosted tools in clients: a real MCP server, and a scripted model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import calling, saying
from tests.clients.clients import CLIENTS, Driver
from tests.support.mcp_lab import MCPLab
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

ADDING = json.dumps({"a": 1, "b": 2})
SHOWN = {"text": "It is 3.", "results": ["3"]}

# Who can be given an MCP server at all, and who can be asked for an approval.
OPENAI = ["openai-python", "openai-python-2", "openai-node", "openai-node-6"]
AGENTS = ["agents-python", "agents-node"]
LANGCHAIN = ["langchain", "langchain-v1"]
AI_SDK = ["ai-sdk-openai", "ai-sdk-6-openai"]
ASKED = [*OPENAI, *AGENTS, *LANGCHAIN, *AI_SDK]
ALL = [*ASKED, "pydantic-ai"]
STREAMING = [*OPENAI, *AGENTS, *LANGCHAIN]


@pytest.fixture
async def lab() -> AsyncIterator[MCPLab]:
    async with MCPLab().serve() as lab:
        yield lab


@pytest.fixture
async def client(name: str, upstream: Upstream, lab: MCPLab, tmp_path: Path) -> AsyncIterator[Driver]:
    tools: dict[str, Any] = {"mcp": {"servers": {"lab": {"url": lab.url, "require_approval": "never"}}}}
    async with antiphon(backend_url=upstream.url, tools=tools) as url:
        yield Driver(CLIENTS[name], f"{url}/v1", tmp_path)


def adds(upstream: Upstream) -> None:
    upstream.say(calling("lab__add", ADDING))
    upstream.say(saying("It is ", "3."))


def tool_outputs(upstream: Upstream) -> list[str]:
    return [message["content"] for message in upstream.requests[-1].json["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("scenario", ["hosted", "hosted_streamed"])
@pytest.mark.parametrize("name", ALL)
async def test_hosted_call_is_read_by_clients(client: Driver, upstream: Upstream, lab: MCPLab, scenario: str) -> None:
    adds(upstream)
    assert await client.shows(scenario) == SHOWN
    assert lab.calls == [("add", {"a": 1, "b": 2})] and tool_outputs(upstream) == ["3"]


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        *((name, "hosted_approved") for name in ASKED),
        *((name, "hosted_approved_streamed") for name in STREAMING),
        *((name, "hosted_approved_replayed") for name in OPENAI),  # the AI SDK sends the decision back alone
    ],
)
async def test_hosted_call_that_is_approved_is_run(
    client: Driver, upstream: Upstream, lab: MCPLab, scenario: str
) -> None:
    adds(upstream)
    assert await client.shows(scenario) == SHOWN
    assert lab.calls == [("add", {"a": 1, "b": 2})] and tool_outputs(upstream) == ["3"]


@pytest.mark.parametrize("name", ASKED)
async def test_hosted_call_that_is_denied_is_not_run(client: Driver, upstream: Upstream, lab: MCPLab) -> None:
    upstream.say(calling("lab__add", ADDING))
    upstream.say(saying("I did not add."))
    assert (await client.shows("hosted_rejected"))["text"] == "I did not add."
    assert lab.calls == [] and "did not approve" in tool_outputs(upstream)[0]


@pytest.mark.parametrize("name", ASKED)
async def test_hosted_call_in_the_turn_before_is_continued_on_the_server(
    client: Driver, upstream: Upstream, lab: MCPLab
) -> None:
    adds(upstream)
    upstream.say(saying("It is still 3."))
    assert (await client.shows("hosted_turns"))["text"] == "It is still 3."
    assert tool_outputs(upstream) == ["3"]
    assert lab.lists == 1  # the session with the server is kept, and with it the list


# Without storage, the AI SDK warns and drops such calls, and pydantic-ai never sends them back.
@pytest.mark.parametrize("name", [*OPENAI, *AGENTS, *LANGCHAIN])
async def test_hosted_call_in_the_turn_before_is_continued_by_replay(
    client: Driver, upstream: Upstream, lab: MCPLab
) -> None:
    adds(upstream)
    upstream.say(saying("It is still 3."))
    assert (await client.shows("hosted_replayed"))["text"] == "It is still 3."
    assert lab.calls == [("add", {"a": 1, "b": 2})] and tool_outputs(upstream) == ["3"]
