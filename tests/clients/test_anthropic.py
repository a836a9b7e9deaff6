"""anthropic for Python, with passthrough to an Anthropic server or translation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.answers import asking_for_the_weather, saying
from tests.clients.clients import Client, Driver
from tests.support.message_events import (
    MessagesUpstream,
    counts,
    message,
    message_start,
    message_stream,
    text_block,
    tool_block,
)
from tests.support.messages_server import frame
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, Upstream, call, finish, sse, status

PYTHON = Client("anthropic_python/driver.py", "openai-3")
COUNTED = counts(10, 7, cached=100, written=5)
SHOWN = {"text": "Hello", "stop": "end_turn", "usage": [10, 7], "cache": [100, 5]}


@pytest_asyncio.fixture
async def up() -> AsyncIterator[MessagesUpstream]:
    async with MessagesUpstream() as upstream:
        yield upstream


@pytest.fixture(params=["lab"])
def key(request: pytest.FixtureRequest) -> str:
    """The caller's key; the server knows `lab`."""
    return str(request.param)


@pytest_asyncio.fixture
async def client(up: MessagesUpstream, key: str, tmp_path: Path) -> AsyncIterator[Driver]:
    options: dict[str, Any] = {"backend_overrides": {"transport.messages": True}, "backend_retries": 0}
    async with antiphon(backend_url=up.url, api_keys="lab", max_input_tokens=1000, **options) as url:
        yield Driver(PYTHON, f"{url}/v1", tmp_path, key)


@pytest.mark.parametrize("scenario", ["text", "bearer"])
async def test_message(client: Driver, up: MessagesUpstream, scenario: str) -> None:
    up.say(message("Hello", usage=COUNTED))
    assert await client.shows(scenario) == SHOWN
    assert not {"x-api-key", "authorization"} & set(up.requests[0].headers)  # the caller's key stays here


async def test_stream(client: Driver, up: MessagesUpstream) -> None:
    up.say(message_stream(*text_block(0, "Hel", "lo"), usage=COUNTED))
    assert await client.shows("stream") == {**SHOWN, "pieces": ["Hel", "lo"]}


async def test_calls_and_their_results(client: Driver, up: MessagesUpstream) -> None:
    calls = [*tool_block(0, "weather", {"place": "Paris"}), *tool_block(1, "weather", {"place": "Oslo"}, id="toolu_2")]
    up.say(message_stream(*calls, stop="tool_use"))
    up.say(message_stream(*text_block(0, "Sunny in both.")))
    assert (await client.shows("tools_streamed"))["text"] == "Sunny in both."
    *_, results = up.requests[-1].json["messages"]
    assert [result["content"] for result in results["content"]] == ["Sunny in Paris.", "Sunny in Oslo."]


async def test_count_of_tokens(client: Driver, up: MessagesUpstream) -> None:
    assert await client.shows("count") == {"tokens": 14}


async def test_models(client: Driver) -> None:
    assert await client.shows("models") == [{"id": "m", "name": "m", "year": 1970}]


@pytest.mark.parametrize(
    ("key", "answer", "kind", "words"),
    [
        ("other", message("Hello"), "AuthenticationError", "Incorrect API key provided."),
        (
            "lab",
            status(404, {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}}),
            "NotFoundError",
            "model: m",
        ),
        (
            "lab",
            status(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Full"}}),
            "ServiceUnavailableError",
            "Full",
        ),
    ],
    indirect=["key"],
)
async def test_refusal_is_the_exception_of_its_status(
    client: Driver, up: MessagesUpstream, answer: Any, kind: str, words: str
) -> None:
    up.say(answer)
    shown = await client.shows("refused")
    assert shown["kind"] == kind and words in shown["body"]["error"]["message"]
    assert kind == "NotFoundError" or shown["request_id"]


async def test_failure_that_may_pass_is_retried(client: Driver, up: MessagesUpstream) -> None:
    full = {"type": "error", "error": {"type": "overloaded_error", "message": "Full"}}
    up.say(status(529, full, {"Retry-After": "1"}))
    up.say(message("Hello", usage=COUNTED))
    assert await client.shows("retried") == SHOWN
    assert len(up.requests) == 2


@pytest.mark.parametrize("cut", ["cut", "error"])
async def test_stream_that_breaks_off_is_an_exception(client: Driver, up: MessagesUpstream, cut: str) -> None:
    error = frame({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    up.say(sse(message_start(), *text_block(0, "Hel")[:-1], *([CLOSE] if cut == "cut" else [error])))
    shown = await client.shows("broken")
    assert shown["pieces"] == ["Hel"] and "Error" in shown["kind"]
    assert shown["body"]["error"]["type"] == ("api_error" if cut == "cut" else "overloaded_error")


# With a Chat Completions backend. Scenarios for all clients are in `test_more_frameworks.py`.


@pytest.fixture
def translated(server: str, tmp_path: Path) -> Driver:
    return Driver(PYTHON, server, tmp_path)


@pytest.mark.parametrize("scenario", ["tool_runner", "tool_runner_streamed"])
async def test_tool_runner_runs_without_a_thread(translated: Driver, upstream: Upstream, scenario: str) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    shown = await translated.shows(scenario)
    assert (shown["text"], shown["stop"]) == ("Sunny in both.", "end_turn")
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert len(upstream.requests) == 2


async def test_tokens_are_estimated_for_a_backend_without_a_count(translated: Driver) -> None:
    assert (await translated.shows("count"))["tokens"] > 0


async def test_truncated_call_is_seen_as_one(translated: Driver, upstream: Upstream) -> None:
    upstream.say(sse(call(id="c", name="weather", arguments='{"place": "Par'), finish("length")))
    shown = await translated.shows("stream")
    assert shown["stop"] == "max_tokens"


async def test_stop_sequence_is_named(translated: Driver, upstream: Upstream) -> None:
    upstream.say(saying("One E", "ND two"))
    assert await translated.shows("stop_sequence") == {"text": "One ", "stop": ["stop_sequence", "END"]}
