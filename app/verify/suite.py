"""
The scenarios of the official compliance suite, under its names: what it asks for is asked for, and what it looks at is
looked at. That is less than the other checks look at, and all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.verify import samples
from app.verify.checks import websocket
from app.verify.exchange import HTTPExchange
from app.verify.rows import Broken, CheckFunction, Unclear, check_row, need
from app.verify.samples import user_message
from app.verify.schema import event_schemas, schema_issues
from app.verify.server import VerifiedServer, answered, given

_SOURCE = "Open Responses compliance suite, "
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


def _whole(exchange: HTTPExchange) -> None:
    """Hold a response, and the events of its stream, against the schema."""
    for issue in schema_issues("ResponseResource", exchange.response):
        if issue.kind != "unknown" and issue.path != ("text", "format", "schema"):
            raise Broken(f"{issue.where} {issue.message}.", exchange)
    for event in exchange.events:
        name = event_schemas().get(str(event.get("type")))
        for issue in schema_issues(name, event) if name else ():
            if issue.kind != "unknown" and issue.path[:1] != ("response",):
                raise Broken(f"{event['type']}: {issue.where} {issue.message}.", exchange, event)


def _completed(exchange: HTTPExchange) -> None:
    if exchange.response.get("status") == "incomplete":
        raise Unclear("The model did not end its answer.", exchange)
    status = exchange.response.get("status")
    need(status == "completed", f"The status is {status!r}.", exchange)
    need(exchange.output, "The response has no output items.", exchange)


def _scenario(
    name: str, law: str, fields: dict[str, Any], *optional: str, then: Callable[[HTTPExchange], None] = _completed
) -> None:
    async def run(server: VerifiedServer) -> None:
        body = {"model": server.model, **fields}
        exchange = answered(await server.send("POST", "/responses", body), *optional)
        _whole(exchange)
        then(exchange)

    check_row(f"suite.{name}", name, law, f"{_SOURCE}{name}")(run)


def _calls(exchange: HTTPExchange) -> None:
    if not samples.called(exchange):
        raise Unclear("The model did not call the tool, which it may.", exchange)


def _calls_in_events(exchange: HTTPExchange) -> None:
    _calls(exchange)
    types = [event.get("type") for event in exchange.events]
    for name in ("delta", "done"):
        event_type = f"response.function_call_arguments.{name}"
        need(event_type in types, f"There is no {event_type}.", exchange)


_scenario(
    "basic-response",
    "A user message is answered by a completed ResponseResource.",
    {"input": [user_message("Say hello in exactly 3 words.")]},
)
_scenario(
    "assistant-phase",
    "Messages of the assistant may be labelled with a phase.",
    {
        "input": [
            user_message("What is 2+2?"),
            {"type": "message", "role": "assistant", "content": "I add them up.", "phase": "commentary"},
            {"type": "message", "role": "assistant", "content": "4", "phase": "final_answer"},
            user_message("Say hello."),
        ]
    },
)
_scenario(
    "streaming-response",
    "A streamed answer has events of the schema, and ends with a completed ResponseResource.",
    {"input": [user_message("Count from 1 to 5.")], "stream": True},
)
_scenario(
    "system-prompt",
    "A system message is taken.",
    {
        "input": [
            {"type": "message", "role": "system", "content": "You are a pirate. Always respond in pirate speak."},
            user_message("Say hello."),
        ]
    },
)
_scenario(
    "tool-calling",
    "A function is declared, and called by the model.",
    {"input": [user_message("What's the weather like in San Francisco?")], "tools": [_WEATHER]},
    "tools",
    then=_calls,
)
_scenario(
    "tool-calling-streaming",
    "A call is streamed with its item and its arguments.",
    {"input": [user_message("What's the weather like in San Francisco?")], "tools": [_WEATHER], "stream": True},
    "tools",
    then=_calls_in_events,
)
_scenario(
    "image-input",
    "An image in a user message is taken.",
    {
        "input": [
            user_message(
                [
                    {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."},
                    {"type": "input_image", "image_url": samples.PIXEL},
                ]
            )
        ]
    },
    *("image", "images", "input_image", "image_url", "vision", "mmproj", "multimodal", "modality"),
)
_scenario(
    "multi-turn",
    "A conversation is sent as history.",
    {
        "input": [
            user_message("My name is Alice."),
            {"type": "message", "role": "assistant", "content": "Hello Alice! Nice to meet you."},
            user_message("What is my name?"),
        ]
    },
)


@check_row(
    "suite.response-output-phase-schema",
    "response-output-phase-schema",
    "The phase of a message in the output is one of the schema's.",
    f"{_SOURCE}response-output-phase-schema",
)
async def _phase(server: VerifiedServer) -> None:
    exchange = given(await server.once(samples.text))
    for item in exchange.output:
        phase = item.get("phase", "final_answer")
        need(phase in ("commentary", "final_answer", None), f"The phase is {phase!r}.", exchange, item)


@check_row(
    "suite.compact-response",
    "compact-response",
    "A conversation is compacted, with a `prompt_cache_key`.",
    f"{_SOURCE}compact-response",
)
async def _compact(server: VerifiedServer) -> None:
    body = {"model": server.model, "input": [user_message("Remember: blue.")], "prompt_cache_key": "verify"}
    exchange = answered(await server.send("POST", "/responses/compact", body), "prompt_cache_key")
    for issue in schema_issues("CompactResource", exchange.object):
        if issue.kind != "unknown":
            raise Broken(f"{issue.where} {issue.message}.", exchange)


@check_row(
    "suite.compact-missing-model",
    "compact-missing-model",
    "A compaction without a model is refused with 400 or 422.",
    f"{_SOURCE}compact-missing-model",
)
async def _compact_no_model(server: VerifiedServer) -> None:
    exchange = await server.send("POST", "/responses/compact", {"input": "Hi."})
    if exchange.status not in (400, 422):
        answered(exchange)
    need(exchange.status in (400, 422), f"The answer is {exchange.outcome()}", exchange)


def _same_as(name: str, law: str, run: CheckFunction) -> None:
    check_row(f"suite.{name}", name, law, f"{_SOURCE}{name}")(run)


_same_as("websocket-response", "A turn on a WebSocket is answered.", websocket.answers_a_turn)
_same_as("websocket-sequential-responses", "Two turns on one connection are answered.", websocket.answers_two_turns)
_same_as(
    "websocket-continuation",
    "A turn with `store: false` is continued on its connection.",
    websocket.continues_a_turn,
)
_same_as(
    "websocket-reconnect-store-false-recovery",
    "On another connection it is `previous_response_not_found`, after which a new turn is answered.",
    websocket.forgets_with_its_connection,
)
_same_as(
    "websocket-previous-response-not-found",
    "An unknown previous response is `previous_response_not_found`.",
    websocket.refuses_an_unknown_response,
)
_same_as(
    "websocket-failed-continuation-evicts-cache",
    "A failed continuation evicts what it continued.",
    websocket.evicts_after_a_failure,
)
_same_as(
    "websocket-compact-new-chain",
    "A compacted conversation begins a new chain.",
    websocket.begins_with_a_compaction,
)
