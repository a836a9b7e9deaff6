"""The official compliance suite's 17 scenarios, with its names, requests and assertions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import INVALID, require_schema, require_status, require_turn, require_unknown_previous
from openresponses_verify.rows import CHECKS, Check, CheckFunction, Inconclusive, check_row, require
from openresponses_verify.samples import assistant_message, call_output, message, response_id, user_message
from openresponses_verify.schema import FORMAT_SCHEMA, event_schemas
from openresponses_verify.server import SocketTurns, VerifiedServer, assume_ok, require_ok

_SUITE = "Open Responses compliance suite"
_WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}},
        "required": ["location"],
    },
}
_ASK_WEATHER = {"input": [user_message("What's the weather like in San Francisco?")], "tools": [_WEATHER]}
_NONE = "resp_openresponses_missing_0"


def _fits(exchange: HTTPExchange) -> HTTPExchange:
    """Return an exchange if valid by the schema; raises `Failed` otherwise."""
    for event in exchange.events:
        refusal = event.get("type") == "error" and exchange.frames
        name = "WebSocketErrorEvent" if refusal else event_schemas().get(str(event.get("type")))
        if name:
            require_schema(
                name, event, exchange, event, lambda issue: issue.path[:1] == ("response",), f"{event['type']}: "
            )
    if exchange.response:
        require_schema("ResponseResource", exchange.response, exchange, but=lambda issue: issue.path == FORMAT_SCHEMA)
    return exchange


def _completed(exchange: HTTPExchange) -> None:
    status = exchange.response.get("status")
    if status == "incomplete":
        raise Inconclusive("The model did not finish its answer.", exchange)
    require(status == "completed", f"The status is {status!r}.", exchange)


def _completed_with_output(exchange: HTTPExchange) -> None:
    require(exchange.output, "The response has no output items.", exchange)
    _completed(exchange)


def _calls(exchange: HTTPExchange) -> None:
    if not samples.called(exchange):
        raise Inconclusive("The model did not call the tool, which is optional.", exchange)


def _suite_row(name: str) -> Callable[[CheckFunction], CheckFunction]:
    return check_row(f"suite.{name}", name, f"{_SUITE}, {name}")


async def _ask(server: VerifiedServer, fields: dict[str, Any], *optional: str) -> HTTPExchange:
    body = {"model": server.model, "stream": False, **fields}
    return _fits(require_ok(await server.send("POST", "/responses", body), *optional))


def _scenario(
    name: str,
    law: str,
    fields: dict[str, Any],
    *optional: str,
    then: Callable[[HTTPExchange], None] = _completed_with_output,
) -> None:
    async def run(server: VerifiedServer) -> None:
        then(await _ask(server, fields, *optional))

    CHECKS.append(Check(f"suite.{name}", name, law, f"{_SUITE}, {name}", run))


_scenario(
    "basic-response",
    "A user message is answered with a completed ResponseResource.",
    {"input": [user_message("Say hello in exactly 3 words.")]},
)
_scenario(
    "assistant-phase",
    "Assistant messages may have a `phase`.",
    {
        "input": [
            assistant_message("I should answer with the saved number.", phase="commentary"),
            assistant_message("The number is four.", phase="final_answer"),
            user_message("Repeat only the number."),
        ]
    },
)


@_suite_row("response-output-phase-schema")
async def _phase(server: VerifiedServer) -> None:
    """`phase` of an output message is `commentary` or `final_answer`. The suite itself only validates an example."""
    exchange = assume_ok(await server.memoized(samples.text))
    for item in exchange.output:
        phase = item.get("phase", "final_answer")
        require(phase in ("commentary", "final_answer"), f"The phase is {phase!r}.", exchange, item)


_scenario(
    "streaming-response",
    "A stream has valid events, and ends with a completed ResponseResource.",
    {"input": [user_message("Count from 1 to 5.")], "stream": True},
    then=_completed,
)
_scenario(
    "system-prompt",
    "A system message is accepted.",
    {
        "input": [
            message("system", "You are a pirate. Always respond in pirate speak."),
            user_message("Say hello."),
        ]
    },
)
_scenario("tool-calling", "The model calls a declared function.", _ASK_WEATHER, "tools", then=_calls)
_scenario(
    "image-input",
    "An image in a user message is accepted.",
    {
        "input": [
            user_message(
                [
                    {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."},
                    {"type": "input_image", "image_url": samples.HEART},
                ]
            )
        ]
    },
    *samples.IMAGE_WORDS,
)
_scenario(
    "multi-turn",
    "The input may contain earlier turns.",
    {
        "input": [
            user_message("My name is Alice."),
            assistant_message("Hello Alice! Nice to meet you. How can I help you today?"),
            user_message("What is my name?"),
        ]
    },
)


@_suite_row("compact-response")
async def _compact(server: VerifiedServer) -> None:
    """A conversation with a `prompt_cache_key` is compacted."""
    conversation = [
        user_message("We agreed to launch on Tuesday and notify support first."),
        assistant_message("Understood. The launch is Tuesday, with support notified beforehand."),
    ]
    body = {"model": server.model, "prompt_cache_key": "openresponses-compact-test", "input": conversation}
    exchange = require_ok(await server.send("POST", "/responses/compact", body), "prompt_cache_key")
    require_schema("CompactResource", exchange.object, exchange)
    types = [item.get("type") for item in exchange.output]
    require("compaction" in types, f"The output has items of the types {types}.", exchange)


@_suite_row("compact-missing-model")
async def _compact_no_model(server: VerifiedServer) -> None:
    """A compaction without a model is rejected with 400 or 422."""
    body = {"input": [user_message("Compact this conversation.")]}
    exchange = await server.send("POST", "/responses/compact", body)
    if exchange.status not in INVALID:
        require_ok(exchange)
    require_status(exchange, INVALID)


async def _turn(socket: SocketTurns, server: VerifiedServer, **fields: object) -> HTTPExchange:
    return _fits(await socket.frames({"type": "response.create", "model": server.model, **fields}))


async def _turn_completed(socket: SocketTurns, server: VerifiedServer, **fields: object) -> HTTPExchange:
    exchange = await _turn(socket, server, **fields)
    require_turn(exchange)
    _completed(exchange)
    return exchange


@_suite_row("websocket-response")
async def _websocket(server: VerifiedServer) -> None:
    """A WebSocket turn is answered."""
    async with server.websocket() as socket:
        await _turn_completed(socket, server, input=[user_message("Count from 1 to 3.")])


@_suite_row("websocket-sequential-responses")
async def _sequential(server: VerifiedServer) -> None:
    """Two turns on a connection are answered."""
    async with server.websocket() as socket:
        for word in ("first", "second"):
            await _turn_completed(socket, server, store=False, input=f"Reply with exactly: {word}")


@_suite_row("websocket-continuation")
async def _continuation(server: VerifiedServer) -> None:
    """A turn with `store: false` can be continued on its connection."""
    async with server.websocket() as socket:
        word = "Remember the code word: cobalt. Reply with OK."
        first = await _turn_completed(socket, server, store=False, input=word)
        question = "What is the code word? Reply with only the code word."
        await _turn_completed(socket, server, store=False, previous_response_id=response_id(first), input=question)


@_suite_row("websocket-reconnect-store-false-recovery")
async def _reconnect(server: VerifiedServer) -> None:
    """Another connection answers `previous_response_not_found`, then accepts a new turn."""
    async with server.websocket() as socket:
        word = "Remember the code word: copper. Reply with OK."
        first = response_id(await _turn_completed(socket, server, store=False, input=word))
    async with server.websocket() as socket:
        again = "Try to continue after reconnect. Reply with exactly: reconnected"
        require_unknown_previous(await _turn(socket, server, store=False, previous_response_id=first, input=again))
        anew = "The previous store:false chain could not continue after reconnect. Start a new response and reply with "
        turn = await _turn(socket, server, store=False, input=[user_message(f"{anew}exactly: recovered")])
        require_turn(turn, "The new turn")


@_suite_row("websocket-previous-response-not-found")
async def _unknown(server: VerifiedServer) -> None:
    """An unknown previous response is answered with `previous_response_not_found`."""
    async with server.websocket() as socket:
        question = "This should fail because the previous response is missing."
        require_unknown_previous(await _turn(socket, server, store=False, previous_response_id=_NONE, input=question))


@_suite_row("websocket-failed-continuation-evicts-cache")
async def _evicts(server: VerifiedServer) -> None:
    """A failed continuation evicts the previous response."""
    output = call_output("call_openresponses_missing", "No matching tool call exists in the previous response.")
    async with server.websocket() as socket:
        word = "Remember the code word: ember. Reply with OK."
        first = response_id(await _turn_completed(socket, server, store=False, input=word))
        failed = await _turn(socket, server, store=False, previous_response_id=first, input=[output])
        refused = failed.refusal or failed.response.get("status") == "failed"
        require(refused, f"An output that answers no call is answered with {failed.outcome()}", failed)
        again = "Try to continue after the failed turn. Reply with exactly: stale"
        require_unknown_previous(await _turn(socket, server, store=False, previous_response_id=first, input=again))


@_suite_row("websocket-compact-new-chain")
async def _new_chain(server: VerifiedServer) -> None:
    """A compacted conversation starts a new chain."""
    conversation = [
        user_message([{"type": "input_text", "text": "Remember the compaction code word: slate."}]),
        assistant_message([{"type": "output_text", "text": "OK."}]),
        user_message([{"type": "input_text", "text": "Compress this conversation for later continuation."}]),
    ]
    body = {"model": server.model, "input": conversation}
    compacted = require_ok(await server.send("POST", "/responses/compact", body))
    require(compacted.output, "The compaction has no output.", compacted)
    turns = [*compacted.output, user_message("Continue from here. Reply with exactly: compacted")]
    async with server.websocket() as socket:
        await _turn_completed(socket, server, store=False, input=turns, tools=[])
