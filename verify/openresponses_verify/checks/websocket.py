"""WebSocket turns, connection-local memory and errors."""

from __future__ import annotations

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import (
    require_laws,
    require_more_input_tokens,
    require_schema,
    require_turn,
    require_unknown_previous,
)
from openresponses_verify.laws.law import TERMINAL_STATUS
from openresponses_verify.rows import Unsupported, check_row, require
from openresponses_verify.samples import LIMIT, NO_RESPONSE, SHORT, call_output, response_id, user_message
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok, says_unsupported

_SPEC = "Open Responses specification, WebSocket Transport"
_SCHEMA = "Open Responses schema, WebSocketErrorEvent"
_CODEX = "Codex CLI 0.169, WebSocket"


async def _turn(server: VerifiedServer) -> HTTPExchange:
    async with server.websocket() as socket:
        return await socket.turn(input=[user_message("Say hello.")], max_output_tokens=LIMIT)


async def _call(server: VerifiedServer) -> HTTPExchange:
    async with server.websocket() as socket:
        return await socket.turn(
            input=samples.ASK_WEATHER,
            tools=[samples.WEATHER_TOOL],
            tool_choice="required",
            max_output_tokens=LIMIT,
        )


@check_row("websocket.turn", "A turn on a WebSocket", _SPEC)
async def _answers(server: VerifiedServer) -> None:
    """Servers MAY accept WebSocket connections at `/v1/responses`. Clients start each turn with `response.create`."""
    exchange = require_ok(await server.memoized(_turn))
    require_turn(exchange)
    status = exchange.response.get("status")
    require(status in ("completed", "incomplete"), f"The response is {status!r}.", exchange)


def _unread(frame: dict[str, object]) -> bool:
    return str(frame.get("type")).startswith("(not a JSON object)")


@check_row("websocket.events", "Frames follow the stream laws", _SPEC)
async def _events(server: VerifiedServer) -> None:
    """WebSocket events MUST be the same objects as in HTTP streams."""
    for exchange in (assume_ok(await server.memoized(_turn)), assume_ok(await server.memoized(_call))):
        if not exchange.response:
            continue
        require_laws(exchange, (frame for frame in exchange.frames if not _unread(frame)))


@check_row("websocket.json", "Every frame is an event", _SPEC)
async def _json(server: VerifiedServer) -> None:
    """Each message is one JSON event, without `data:` and `[DONE]`."""
    exchange = assume_ok(await server.memoized(_turn))
    for frame in exchange.frames:
        require(not _unread(frame) and frame.get("type"), "A frame is not an event.", exchange, frame)


@check_row("websocket.sequential", "Turns are answered in order", _SPEC)
async def _answers_two(server: VerifiedServer) -> None:
    """Several `response.create` messages on one connection are answered in order."""
    assume_ok(await server.memoized(_turn))
    async with server.websocket() as socket:
        first = await socket.turn(max_output_tokens=LIMIT)
        second = await socket.turn(max_output_tokens=LIMIT)
    require(first.response and second.ok and second.response, f"The second turn: {second.outcome()}", second)
    different = first.response.get("id") != second.response.get("id")
    require(different, "Both turns have the same response id.", second)
    start = second.frames[0].get("sequence_number")
    require(start == 0, f"The second turn begins with the sequence_number {start!r}.", second, second.frames[0])


@check_row("websocket.one-at-a-time", "Concurrent turns do not interleave", _SPEC)
async def _queue(server: VerifiedServer) -> None:
    """A connection MUST process at most one response at a time."""
    assume_ok(await server.memoized(_turn))
    message = {"type": "response.create", **server.body(max_output_tokens=LIMIT)}
    async with server.websocket() as socket:
        exchange = await socket.frames(message, message, turns=2)
    require(
        exchange.frames and not exchange.error, f"Two concurrent turns are answered with {exchange.outcome()}", exchange
    )
    open_id = None
    for frame in exchange.frames:
        response = frame.get("response")
        if isinstance(response, dict):
            mixed = open_id not in (None, response.get("id"))
            require(not mixed, "Events of two responses are mixed.", exchange, frame.get("type"))
            open_id = None if str(frame.get("type")) in TERMINAL_STATUS else response.get("id")


async def _continuation(server: VerifiedServer) -> HTTPExchange:
    async with server.websocket() as socket:
        first = await socket.turn(input=[user_message(samples.WORDS)], max_output_tokens=LIMIT)
        return await socket.turn(input=SHORT, previous_response_id=response_id(first), max_output_tokens=LIMIT)


@check_row("websocket.continuation", "A connection remembers unstored responses", f"{_SPEC}; {_CODEX}")
async def _continues(server: VerifiedServer) -> None:
    """Servers SHOULD keep the latest unstored response in connection-local memory."""
    assume_ok(await server.memoized(_turn))
    exchange = await server.memoized(_continuation)
    require_turn(exchange, "A turn with previous_response_id and store: false")
    require_more_input_tokens(exchange, assume_ok(await server.memoized(samples.alone)), 15, "the earlier turn")


@check_row("websocket.reconnect", "Another connection does not remember unstored responses", _SPEC)
async def _reconnects(server: VerifiedServer) -> None:
    """An unstored response is lost with its connection: `previous_response_not_found`."""
    first = assume_ok(await server.memoized(_turn))
    async with server.websocket() as socket:
        exchange = await socket.turn(input=SHORT, previous_response_id=response_id(first), max_output_tokens=LIMIT)
        again = await socket.turn(max_output_tokens=LIMIT)
    require_unknown_previous(exchange)
    require_turn(again, "The turn after it")


async def _unknown(server: VerifiedServer) -> HTTPExchange:
    async with server.websocket() as socket:
        return await socket.turn(input=SHORT, previous_response_id=NO_RESPONSE, max_output_tokens=16)


@check_row("websocket.previous-unknown", "An unknown previous response is an error", f"{_SPEC}; {_CODEX}")
async def _refuses_unknown(server: VerifiedServer) -> None:
    """An unknown `previous_response_id` is answered with `previous_response_not_found`."""
    assume_ok(await server.memoized(_turn))
    exchange = await server.memoized(_unknown)
    require_unknown_previous(exchange)


@check_row("websocket.error", "An error is an envelope with a status", f"{_SPEC}; {_SCHEMA}")
async def _error(server: VerifiedServer) -> None:
    """Errors MUST be JSON `error` envelopes with a `status` and an `error.code`."""
    assume_ok(await server.memoized(_turn))
    exchange = await server.memoized(_unknown)
    frame = exchange.frames[-1] if exchange.frames else {}
    require_schema("WebSocketErrorEvent", frame, exchange, frame)


@check_row("websocket.evicts", "A failed turn evicts the previous response", _SPEC)
async def _evicts(server: VerifiedServer) -> None:
    """
    If a continuation fails with a 4xx or 5xx error, the server MUST evict `previous_response_id` from the connection.
    """
    continued = assume_ok(await server.memoized(_turn)) and await server.memoized(_continuation)
    if not continued.response:
        raise Unsupported("The connection does not remember responses: see websocket.continuation.", continued)
    result = call_output("call_of_nobody", "x")
    async with server.websocket() as socket:
        first = await socket.turn(input=[user_message("Hi.")], max_output_tokens=LIMIT)
        first_id = response_id(first)
        failed = await socket.turn(input=[result], previous_response_id=first_id, max_output_tokens=16)
        if failed.response:
            raise Unsupported("The server accepts an output without a call.", failed)
        exchange = await socket.turn(input=SHORT, previous_response_id=first_id, max_output_tokens=16)
    require_unknown_previous(exchange)


@check_row("websocket.malformed", "A message that is not JSON is an error", _SPEC)
async def _malformed(server: VerifiedServer) -> None:
    """A malformed message is answered with an error, and the connection stays open."""
    assume_ok(await server.memoized(_turn))
    async with server.websocket() as socket:
        exchange = await socket.frames('{"type": "response.cre')
        again = await socket.turn(max_output_tokens=LIMIT)
    refused = bool(exchange.frames) and exchange.frames[-1].get("type") == "error"
    require(refused, f"The message is answered with {exchange.outcome()}", exchange, exchange.frames[-1:])
    require_turn(again, "The turn after it")


@check_row("websocket.generate", "generate: false warms up a turn", f"OpenAI guide, WebSocket mode; {_CODEX}")
async def _generate(server: VerifiedServer) -> None:
    """`generate: false` produces no output; its input becomes context for the next turn."""
    assume_ok(await server.memoized(_turn))
    async with server.websocket() as socket:
        first = await socket.turn(input=[user_message(samples.WORDS)], generate=False)
        if not first.response and says_unsupported(first, "generate"):
            raise Unsupported(first.outcome(), first)
        if first.output:
            raise Unsupported("generate: false is ignored: the turn has output.", first)
        exchange = await socket.turn(input=SHORT, previous_response_id=response_id(first), max_output_tokens=LIMIT)
    require_turn(exchange, "The next turn")


@check_row(
    "websocket.compacted",
    "A compacted conversation starts a new chain",
    "Open Responses compliance suite, websocket-compact-new-chain",
)
async def _compacted(server: VerifiedServer) -> None:
    """Output from `/responses/compact` is valid input for a turn without `previous_response_id`."""
    assume_ok(await server.memoized(_turn))
    body = {"model": server.model, "input": [user_message(samples.WORDS)]}
    compacted = assume_ok(await server.send("POST", "/responses/compact", body))
    async with server.websocket() as socket:
        exchange = await socket.turn(input=[*compacted.output, user_message(SHORT)], max_output_tokens=LIMIT)
    require_turn(exchange)
