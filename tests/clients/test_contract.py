"""
The contract for client libraries: text, function calls, structured output, several turns and reasoning, with and
without streaming.

Each driver plays these scenarios, and prints its user's view.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import PLACES, asking_for_the_weather, saying, thinking
from tests.clients.clients import CLIENTS, Driver, playing
from tests.support.upstream import Upstream

ADA = {"name": "Ada Lovelace", "born": 1815}
SUNNY = "Sunny in both."
THOUGHT = "Six times seven."


@pytest.fixture
def client(name: str, server: str, tmp_path: Path) -> Driver:
    return Driver(CLIENTS[name], server, tmp_path)


def sent_messages(upstream: Upstream) -> list[dict[str, Any]]:
    """The messages in the last request, without system messages."""
    messages = upstream.requests[-1].json["messages"]
    return [message for message in messages if message["role"] not in ("system", "developer")]


def roles_and_texts(upstream: Upstream) -> list[tuple[str, Any]]:
    """Roles and texts in the last request."""
    return [(message["role"], words(message["content"])) for message in sent_messages(upstream)]


def words(content: Any) -> Any:
    return content if isinstance(content, str | None) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("name", CLIENTS)
async def test_client_text_is_read(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    shown = await client.shows("text")
    assert (shown["text"], shown["usage"]) == ("Hello.", [5, 3])
    assert roles_and_texts(upstream) == [("user", "Say hello.")]


@pytest.mark.parametrize("name", CLIENTS)
async def test_client_text_in_pieces_is_read(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    assert await client.shows("stream") == {"pieces": ["Hel", "lo", "."], "text": "Hello.", "usage": [5, 3]}


@pytest.mark.parametrize(("name", "scenario"), playing("tools", "tools_streamed"))
async def test_client_two_calls_at_once_are_read(client: Driver, upstream: Upstream, scenario: str) -> None:
    upstream.say(asking_for_the_weather())
    upstream.say(saying(SUNNY))
    assert (await client.shows(scenario))["text"] == SUNNY
    user, calls, *results = sent_messages(upstream)
    assert words(user["content"]) == "How is the weather in Paris and in Oslo?"
    assert [call["function"]["name"] for call in calls["tool_calls"]] == ["weather", "weather"]
    assert [json.loads(call["function"]["arguments"]) for call in calls["tool_calls"]] == [
        {"place": place} for place in PLACES
    ]
    assert [(result["tool_call_id"], words(result["content"])) for result in results] == [
        (call["id"], f"Sunny in {place}.") for place, call in zip(PLACES, calls["tool_calls"], strict=True)
    ]


@pytest.mark.parametrize(("name", "scenario"), playing("structured", "structured_streamed"))
async def test_client_answer_with_a_schema_is_read(client: Driver, upstream: Upstream, scenario: str) -> None:
    upstream.say(saying('{"name": "Ada Love', 'lace", "born": 1815}'))
    assert await client.shows(scenario) == ADA
    format = upstream.requests[-1].json["response_format"]
    assert format["type"] == "json_schema"
    assert format["json_schema"]["schema"]["required"] == ["name", "born"]


@pytest.mark.parametrize(("name", "scenario"), playing("turns", "turns_replayed"))
async def test_client_second_turn_is_answered(client: Driver, upstream: Upstream, scenario: str) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("Your name is Ada."))
    assert (await client.shows(scenario))["text"] == "Your name is Ada."
    assert roles_and_texts(upstream) == [
        ("user", "My name is Ada."),
        ("assistant", "Nice to meet you."),
        ("user", "What is my name?"),
    ]


@pytest.mark.parametrize(("name", "scenario"), playing("thinking", "thinking_streamed"))
async def test_client_reasoning_is_shown(client: Driver, upstream: Upstream, scenario: str) -> None:
    upstream.say(thinking(THOUGHT, "42", "."))
    assert await client.shows(scenario) == {"text": "42.", "reasoning": THOUGHT}
