"""OpenAI's libraries with Antiphon: all operations on responses, conversations and sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import asking_for_the_weather, saying, thinking
from tests.clients.clients import CLIENTS, Driver
from tests.support.upstream import DONE, HANG, Upstream, chunk, finish, sse, usage

OPENAI = ["openai-python", "openai-python-2", "openai-node", "openai-node-6"]


@pytest.fixture(params=OPENAI)
def client(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> Driver:
    return Driver(CLIENTS[request.param], server, tmp_path)


def contents(upstream: Upstream) -> list[Any]:
    return [message["content"] for message in upstream.requests[-1].json["messages"]]


async def test_openai_stored_response_is_retrieved_listed_and_deleted(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Hello."))
    shown = await client.shows("stored")
    assert shown == {"same": True, "text": "Hello.", "input": ["a", "b", "c"], "then": "NotFoundError"}


async def test_openai_background_stream_is_resumed(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    shown = await client.shows("background")
    assert shown == {"text": "Hello.", "whole": True, "first": 1, "rest": 3, "status": "completed"}


async def test_openai_background_response_is_cancelled(client: Driver, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), HANG))
    assert await client.shows("cancelled") == {"first": "queued", "then": "cancelled"}


async def test_openai_tokens_are_counted(client: Driver) -> None:
    assert 1 <= await client.shows("counted") <= 20


async def test_openai_conversation_that_is_compacted_goes_on(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("The user is Ada."))
    upstream.say(saying("Your name is Ada."))
    shown = await client.shows("compacted")
    assert shown == {"object": "response.compaction", "last": "compaction", "text": "Your name is Ada."}
    assert any("The user is Ada." in str(content) for content in contents(upstream))


async def test_openai_conversation_is_kept(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Your name is Ada."))
    assert await client.shows("conversation") == {
        "text": "Your name is Ada.",
        "items": ["My name is Ada.", "What is my name?", "Your name is Ada."],
        "topics": ["names", "Ada", "Ada"],
        "deleted": True,
    }
    assert contents(upstream) == ["My name is Ada.", "What is my name?"]


async def test_openai_websocket_turns_without_a_store_are_continued(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("Your name is Ada."))
    assert await client.shows("socket") == ["Nice to meet you.", "Your name is Ada."]
    assert contents(upstream) == ["My name is Ada.", "Nice to meet you.", "What is my name?"]


async def test_openai_models_are_listed_and_retrieved(client: Driver) -> None:
    assert await client.shows("models") == {"listed": ["m"], "found": "m"}


async def test_openai_reasoning_summary_is_streamed(client: Driver, upstream: Upstream) -> None:
    upstream.say(thinking("Six times", "42"))
    shown = await client.shows("thinking_summarized")
    assert shown == {"text": "42", "reasoning": "Six times", "pieces": ["Six", " ", "times"]}


async def test_openai_encrypted_reasoning_comes_back_with_the_results(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_sealed") == {"text": "Sunny in both.", "sealed": True}
    assert [message["role"] for message in upstream.requests[-1].json["messages"]] == [
        *("user", "assistant", "tool", "tool")
    ]


async def test_openai_typed_tool_arguments_are_parsed(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(name="Weather" if client.client.driver.endswith(".py") else "weather"))
    assert await client.shows("function_tool") == ["Paris", "Oslo"]


async def test_openai_incomplete_answer_is_incomplete(client: Driver, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), finish("length"), usage(), DONE))
    assert await client.shows("cut_off") == {"status": "incomplete", "reason": "max_output_tokens", "text": "Hel"}


@pytest.mark.parametrize(
    ("scenario", "shown"), [("asynchronous", {"text": "Hello."}), ("socket_asynchronous", "Hello.")]
)
@pytest.mark.parametrize("name", OPENAI[:2])
async def test_openai_async_client_works(
    name: str, scenario: str, shown: Any, server: str, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.say(saying("Hel", "lo."))
    assert await Driver(CLIENTS[name], server, tmp_path).shows(scenario) == shown


async def test_openai_tool_runner_calls_until_there_is_an_answer(
    server: str, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.say(asking_for_the_weather())
    upstream.say(saying("Sunny in both."))
    assert await Driver(CLIENTS["openai-node"], server, tmp_path).shows("runner") == {"text": "Sunny in both."}
