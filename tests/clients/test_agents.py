"""Agents SDKs: handoffs between agents, and every kind of session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import asking_for_the_weather, calling, saying
from tests.clients.clients import CLIENTS, Driver
from tests.support.upstream import Upstream

AGENTS = ["agents-python", "agents-node"]
TURNS = ["My name is Ada.", "Nice to meet you.", "What is my name?"]


@pytest.fixture
def client(name: str, server: str, tmp_path: Path) -> Driver:
    return Driver(CLIENTS[name], server, tmp_path)


def contents(upstream: Upstream) -> list[Any]:
    return [message["content"] for message in upstream.requests[-1].json["messages"]]


@pytest.mark.parametrize("name", AGENTS)
async def test_agents_session_of_the_client_works(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("Your name is Ada."))
    assert await client.shows("turns_in_a_session") == {"text": "Your name is Ada."}
    assert contents(upstream) == TURNS


@pytest.mark.parametrize("name", AGENTS)
async def test_agents_session_of_the_server_works(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("Your name is Ada."))
    shown = await client.shows("turns_in_a_conversation")
    assert shown == {"text": "Your name is Ada.", "items": [*TURNS, "Your name is Ada."]}
    assert contents(upstream) == TURNS


@pytest.mark.parametrize("name", AGENTS)
async def test_agents_session_that_is_compacted_goes_on(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("The user is Ada."))
    upstream.say(saying("Your name is Ada."))
    upstream.say(saying("The user is still Ada."))
    # The SDK only compacts models with OpenAI-like names.
    shown = await client.shows("turns_compacted", model="gpt-oss-20b")
    assert shown == {"text": "Your name is Ada.", "kept": "compaction"}
    _, second, continued, *_ = (request.json["messages"] for request in upstream.requests)
    assert "Nice to meet you." in str(second)
    assert "The user is Ada." in str(continued) and "Nice to meet you." not in str(continued)


@pytest.mark.parametrize("name", ["agents-python", "langchain", "pydantic-ai"])
async def test_agents_conversation_that_the_server_compacts_goes_on(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you. " * 100))
    upstream.say(saying("The user is Ada."))
    upstream.say(saying("Your name is Ada."))
    shown = await client.shows("turns_managed")
    assert shown == {"text": "Your name is Ada.", "items": ["compaction", "message"]}
    assert "The user is Ada." in str(contents(upstream)) and "Nice to meet you." not in str(contents(upstream))


@pytest.mark.parametrize("name", AGENTS)
async def test_agents_handoff_works(client: Driver, upstream: Upstream) -> None:
    upstream.say(calling("transfer_to_expert", "{}"))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("handoff") == {"text": "Sunny in both.", "by": "expert"}
    system, *_, result = upstream.requests[-1].json["messages"]
    assert (system["role"], system["content"]) == ("system", "You know the weather.")
    assert result["role"] == "tool" and "expert" in result["content"]


@pytest.mark.parametrize("name", AGENTS)
async def test_agents_encrypted_reasoning_comes_back_with_the_results(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_sealed") == {"text": "Sunny in both.", "sealed": True}
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("name", "scenario"),
    [*((name, "turns_on_a_socket") for name in AGENTS), ("agents-python", "tools_continued")],
)
async def test_agents_over_websocket_sends_results_alone_or_everything(
    client: Driver, upstream: Upstream, scenario: str
) -> None:
    upstream.say(asking_for_the_weather())
    upstream.say(saying("Sunny in both."))
    assert await client.shows(scenario) == {"text": "Sunny in both."}
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
