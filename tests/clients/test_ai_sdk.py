"""The AI SDK continues with item references, response ids, or the whole conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.answers import asking_for_the_weather, calling, saying
from tests.clients.clients import CLIENTS, Driver
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, usage

ALL = [name for name in CLIENTS if name.startswith("ai-sdk")]
OPENAI = [name for name in ALL if name.endswith("-openai")]


@pytest.fixture
def client(name: str, server: str, tmp_path: Path) -> Driver:
    return Driver(CLIENTS[name], server, tmp_path)


def roles(upstream: Upstream) -> list[str]:
    return [message["role"] for message in upstream.requests[-1].json["messages"]]


@pytest.mark.parametrize("name", OPENAI)
async def test_ai_sdk_reasoning_before_a_call_is_referenced(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_again") == {"text": "Sunny in both.", "reasoning": "Ask twice."}
    assert roles(upstream) == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("name", ["ai-sdk-open-responses"])
async def test_ai_sdk_reasoning_before_a_call_is_sent_back(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_again") == {"text": "Sunny in both.", "reasoning": "Ask twice."}
    assert upstream.requests[-1].json["messages"][1]["reasoning_content"] == "Ask twice."


@pytest.mark.parametrize("name", OPENAI)
async def test_ai_sdk_without_storage_gets_encrypted_reasoning(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_sealed") == {"text": "Sunny in both.", "sealed": True}
    assert roles(upstream) == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("name", OPENAI)
async def test_ai_sdk_turn_continues_a_named_response(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("Your name is Ada."))
    assert await client.shows("turns_named") == {"text": "Your name is Ada."}
    assert roles(upstream) == ["user", "assistant", "user"]


@pytest.mark.parametrize("name", ALL)
async def test_ai_sdk_turn_continues_a_response_with_tools(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather())
    upstream.say(saying("Sunny in both."))
    upstream.say(saying("I do not know."))
    assert await client.shows("turns_with_tools") == {"text": "I do not know."}
    assert roles(upstream) == ["user", "assistant", "tool", "tool", "assistant", "user"]
    messages = upstream.requests[-1].json["messages"]
    assert [message["content"] for message in messages[2:5]] == ["Sunny in Paris.", "Sunny in Oslo.", "Sunny in both."]


@pytest.mark.parametrize("name", ALL)
async def test_ai_sdk_makes_three_steps_in_one_call(client: Driver, upstream: Upstream) -> None:
    upstream.say(calling("weather", '{"place": "Paris"}'))
    upstream.say(calling("weather", '{"place": "Oslo"}', id="call_2"))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("tools") == {"text": "Sunny in both.", "steps": 3}
    assert roles(upstream) == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize("name", ALL)
async def test_ai_sdk_output_with_a_schema_is_an_object(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying('{"name": "Ada Love', 'lace", "born": 1815}'))
    assert await client.shows("structured_output") == {"name": "Ada Lovelace", "born": 1815}


@pytest.mark.parametrize("name", ALL)
async def test_ai_sdk_instructions_come_first(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Hello."))
    assert await client.shows("instructions") == {"text": "Hello."}
    assert upstream.requests[-1].json["messages"][0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("name", ALL)
async def test_ai_sdk_incomplete_answer_says_so(client: Driver, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), finish("length"), usage(), DONE))
    assert await client.shows("cut_off") == {"text": "Hel", "status": "length"}
