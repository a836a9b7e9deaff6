"""Frameworks: text, function calls, structured output, several turns, and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import asking_for_the_weather, calling, saying, thinking
from tests.clients.clients import FRAMEWORKS, Driver, playing
from tests.support.upstream import CLOSE, Upstream, call, chunk, sse, status

ADA = {"name": "Ada Lovelace", "born": 1815}
SUNNY = "Sunny in both."
TOO_LONG = "The context has 8192 tokens at most."
ODD = "The prompt is odd."
ON_FIRE = "The GPU is on fire."


@pytest.fixture
def client(name: str, server: str, tmp_path: Path) -> Driver:
    return Driver(FRAMEWORKS[name], server, tmp_path)


def roles_and_texts(upstream: Upstream) -> list[tuple[str, str]]:
    """Roles and texts in the last request, without system roles."""
    messages = upstream.requests[-1].json["messages"]
    return [(one["role"], words(one["content"])) for one in messages if one["role"] not in ("system", "developer")]


def words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


@pytest.mark.parametrize(("name", "scenario"), playing("text", clients=FRAMEWORKS))
async def test_framework_shows_a_text_and_its_usage(client: Driver, scenario: str, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    shown = await client.shows(scenario)
    assert (shown["text"], shown.get("usage", [5, 3])) == ("Hello.", [5, 3])
    assert "Say hello." in roles_and_texts(upstream)[-1][1]


@pytest.mark.parametrize(("name", "scenario"), playing("stream", clients=FRAMEWORKS))
async def test_framework_shows_a_text_in_pieces(client: Driver, scenario: str, upstream: Upstream) -> None:
    upstream.say(saying("Hel", "lo", "."))
    shown = await client.shows(scenario)
    assert (shown["text"], "".join(shown["pieces"]), len(shown["pieces"]) > 1) == ("Hello.", "Hello.", True)


@pytest.mark.parametrize(("name", "scenario"), playing("tools", "tools_streamed", clients=FRAMEWORKS))
async def test_framework_calls_two_functions_at_once(
    name: str, client: Driver, scenario: str, upstream: Upstream
) -> None:
    function = "Lab-weather" if name == "semantic-kernel" else "weather"
    upstream.say(asking_for_the_weather(name=function))
    upstream.say(saying(SUNNY))
    assert (await client.shows(scenario))["text"] == SUNNY
    messages = upstream.requests[-1].json["messages"]
    (calls,) = (message["tool_calls"] for message in messages if message["role"] == "assistant")
    called = [json.loads(call["function"]["arguments"])["place"] for call in calls]
    assert sorted(called) == ["Oslo", "Paris"]  # Haystack sorts streamed calls by their ids
    results = [words(message["content"]) for message in messages if message["role"] == "tool"]
    if name == "google-adk":  # it sends objects
        results = [json.loads(result)["result"] for result in results]
    assert results == [f"Sunny in {place}." for place in called]


@pytest.mark.parametrize(("name", "scenario"), playing("turns", clients=FRAMEWORKS))
async def test_framework_continues_a_conversation(client: Driver, scenario: str, upstream: Upstream) -> None:
    upstream.say(saying("Nice to meet you."))
    upstream.say(saying("Your name is Ada."))
    assert (await client.shows(scenario))["text"] == "Your name is Ada."
    assert roles_and_texts(upstream) == [
        ("user", "My name is Ada."),
        ("assistant", "Nice to meet you."),
        ("user", "What is my name?"),
    ]


@pytest.mark.parametrize(("name", "scenario"), playing("thinking", clients=FRAMEWORKS))
async def test_framework_shows_thoughts(client: Driver, scenario: str, upstream: Upstream) -> None:
    upstream.say(thinking("Six times seven.", "42", "."))
    assert await client.shows(scenario) == {"text": "42.", "reasoning": "Six times seven."}


@pytest.mark.parametrize(("name", "scenario"), playing("structured", clients=FRAMEWORKS))
async def test_framework_gets_an_answer_in_a_schema(client: Driver, scenario: str, upstream: Upstream) -> None:
    upstream.always(saying('{"name": "Ada Love', 'lace", "born": 1815}'))
    assert await client.shows(scenario) == ADA


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_framework_shows_a_refusal_in_the_words_of_the_backend(
    name: str, client: Driver, upstream: Upstream
) -> None:
    upstream.always(status(400, {"error": {"message": ODD, "code": "invalid_value"}}))
    has_stream, has_text = (one not in FRAMEWORKS[name].without for one in ("stream", "text"))
    failed = await client.fails("stream" if has_stream else "text" if has_text else "structured_by_a_function")
    assert ODD in failed["message"]
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(("name", "scenario"), playing("stream", clients=FRAMEWORKS))
async def test_framework_takes_no_stream_that_breaks_off_for_an_answer(
    client: Driver, scenario: str, upstream: Upstream
) -> None:
    # After the first chunk: an earlier failure is an HTTP error.
    upstream.always(sse(chunk("Hel"), 0.3, {"error": {"message": ON_FIRE, "type": "server_error"}}, CLOSE))
    assert ON_FIRE in (await client.fails(scenario))["message"]
    assert len(upstream.requests) == 1


# Frameworks without text streaming.


@pytest.mark.parametrize(
    ("name", "scenario", "begun"),
    [
        ("google-adk", "text", [chunk("Hel")]),
        ("inspect", "text", [chunk("Hel")]),
        (
            "instructor",
            "structured_by_a_function_streamed",
            [call(id="call_1", name="PartialPerson"), call(arguments='{"name": "Ada Lovelace", "born": 1815}')],
        ),
    ],
)
async def test_framework_takes_no_answer_that_breaks_off_for_a_whole_one(
    client: Driver, scenario: str, upstream: Upstream, begun: list[Any]
) -> None:
    upstream.always(sse(*begun, 0.3, {"error": {"message": ON_FIRE, "type": "server_error"}}, CLOSE))
    assert ON_FIRE in (await client.fails(scenario))["message"]
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("name", ["dspy"])
async def test_dspy_keeps_how_an_answer_ended(client: Driver, upstream: Upstream) -> None:
    """Its answer is the partial text: only its history shows the truncation."""
    upstream.always(sse(chunk("Hel"), 0.3, {"error": {"message": ON_FIRE, "type": "server_error"}}, CLOSE))
    shown = await client.shows("ended")
    assert (shown["text"], shown["status"], ON_FIRE in shown["reason"]) == ("Hel", "failed", True)


# Features of single frameworks.


@pytest.mark.parametrize("name", ["dspy"])
async def test_dspy_reads_its_own_format_and_calls_of_functions(client: Driver, upstream: Upstream) -> None:
    upstream.say(saying("[[ ## name ## ]]\nAda Lovelace\n\n[[ ## born ## ]]\n18", "15\n\n[[ ## completed ## ]]"))
    assert await client.shows("predicted") == ADA
    upstream.say(asking_for_the_weather())
    assert await client.shows("called") == {"text": "Sunny in Paris. Sunny in Oslo."}


@pytest.mark.parametrize("name", ["instructor"])
@pytest.mark.parametrize(
    ("scenario", "function"),
    [("structured_by_a_function", "Person"), ("structured_by_a_function_streamed", "PartialPerson")],
)
async def test_instructor_gets_an_answer_by_the_call_of_a_function(
    client: Driver, scenario: str, function: str, upstream: Upstream
) -> None:
    upstream.say(calling(function, '{"name": "Ada Love', 'lace", "born": 1815}'))
    assert await client.shows(scenario) == ADA
    request = upstream.requests[-1].json
    assert request["tool_choice"] == {"type": "function", "function": {"name": function}}


@pytest.mark.parametrize(
    ("name", "shown"), [("inspect", TOO_LONG), ("strands", "Unable to trim conversation context!")]
)
async def test_framework_knows_a_prompt_that_is_too_long(
    name: str, client: Driver, upstream: Upstream, shown: str
) -> None:
    upstream.always(status(400, {"error": {"message": TOO_LONG, "code": "context_length_exceeded"}}))
    if name == "inspect":
        assert await client.shows("text") == {"text": shown, "stop": "model_length"}
    else:
        assert (await client.fails("text"))["message"] == shown
