"""WebSocket turns, connection-local memory and errors."""

from __future__ import annotations

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import need_laws, need_longer, need_schema, need_turn, need_unknown_previous
from openresponses_verify.laws.law import TERMINAL_STATUS
from openresponses_verify.rows import Unsupported, check_row, need
from openresponses_verify.samples import LIMIT, NO_RESPONSE, SHORT, call_output, response_id, user_message
from openresponses_verify.server import VerifiedServer, answered, given, says_unsupported

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
    exchange = answered(await server.once(_turn))
    need_turn(exchange)
    status = exchange.response.get("status")
    need(status in ("completed", "incomplete"), f"The response is {status!r}.", exchange)


def _unread(frame: dict[str, object]) -> bool:
    return str(frame.get("type")).startswith("(not a JSON object)")


@check_row("websocket.events", "Frames follow the stream laws", _SPEC)
async def _events(server: VerifiedServer) -> None:
    """WebSocket events MUST be the same objects as in HTTP streams."""
    for exchange in (given(await server.once(_turn)), given(await server.once(_call))):
        if not exchange.response:
            continue
        need_laws(exchange, (frame for frame in exchange.frames if not _unread(frame)))


@check_row("websocket.json", "Every frame is an event", _SPEC)
async def _json(server: VerifiedServer) -> None:
    """Each message is one JSON event, without `data:` and `[DONE]`."""
    exchange = given(await server.once(_turn))
    for frame in exchange.frames:
        need(not _unread(frame) and frame.get("type"), "A frame is not an event.", exchange, frame)


@check_row("websocket.sequential", "Turns are answered in order", _SPEC)
async def _answers_two(server: VerifiedServer) -> None:
    """Several `response.create` messages on one connection are answered in order."""
    given(await server.once(_turn))
    async with server.websocket() as socket:
        first = await socket.turn(max_output_tokens=LIMIT)
        second = await socket.turn(max_output_tokens=LIMIT)
    need(first.response and second.ok and second.response, f"The second turn: {second.outcome()}", second)
    different = first.response.get("id") != second.response.get("id")
    need(different, "Both turns have the same response id.", second)
    start = second.frames[0].get("sequence_number")
    need(start == 0, f"The second turn begins with the sequence_number {start!r}.", second, second.frames[0])


@check_row("websocket.one-at-a-time", "Concurrent turns do not interleave", _SPEC)
async def _queue(server: VerifiedServer) -> None:
    """A connection MUST process at most one response at a time."""
    given(await server.once(_turn))
    message = {"type": "response.create", **server.body(max_output_tokens=LIMIT)}
    async with server.websocket() as socket:
        exchange = await socket.frames(message, message, turns=2)
    need(
        exchange.frames and not exchange.error, f"Two concurrent turns are answered with {exchange.outcome()}", exchange
    )
    open_id = None
    for frame in exchange.frames:
        response = frame.get("response")
        if isinstance(response, dict):
            mixed = open_id not in (None, response.get("id"))
            need(not mixed, "Events of two responses are mixed.", exchange, frame.get("type"))
            open_id = None if str(frame.get("type")) in TERMINAL_STATUS else response.get("id")


async def _continuation(server: VerifiedServer) -> HTTPExchange:
    async with server.websocket() as socket:
        first = await socket.turn(input=[user_message(samples.WORDS)], max_output_tokens=LIMIT)
        return await socket.turn(input=SHORT, previous_response_id=response_id(first), max_output_tokens=LIMIT)


@check_row("websocket.continuation", "A connection remembers unstored responses", f"{_SPEC}; {_CODEX}")
async def _continues(server: VerifiedServer) -> None:
    """Servers SHOULD keep the latest unstored response in connection-local memory."""
    given(await server.once(_turn))
    exchange = await server.once(_continuation)
    need_turn(exchange, "A turn with previous_response_id and store: false")
    need_longer(exchange, given(await server.once(samples.alone)), 15, "the earlier turn")


@check_row("websocket.reconnect", "Another connection does not remember unstored responses", _SPEC)
async def _reconnects(server: VerifiedServer) -> None:
    """An unstored response is lost with its connection: `previous_response_not_found`."""
    first = given(await server.once(_turn))
    async with server.websocket() as socket:
        exchange = await socket.turn(input=SHORT, previous_response_id=response_id(first), max_output_tokens=LIMIT)
        again = await socket.turn(max_output_tokens=LIMIT)
    need_unknown_previous(exchange)
    need_turn(again, "The turn after it")


async def _unknown(server: VerifiedServer) -> HTTPExchange:
    async with server.websocket() as socket:
        return await socket.turn(input=SHORT, previous_response_id=NO_RESPONSE, max_output_tokens=16)


@check_row("websocket.previous-unknown", "An unknown previous response is an error", f"{_SPEC}; {_CODEX}")
async def _refuses_unknown(server: VerifiedServer) -> None:
    """An unknown `previous_response_id` is answered with `previous_response_not_found`."""
    given(await server.once(_turn))
    exchange = await server.once(_unknown)
    need_unknown_previous(exchange)


@check_row("websocket.error", "An error is an envelope with a status", f"{_SPEC}; {_SCHEMA}")
async def _error(server: VerifiedServer) -> None:
    """Errors MUST be JSON `error` envelopes with a `status` and an `error.code`."""
    given(await server.once(_turn))
    exchange = await server.once(_unknown)
    frame = exchange.frames[-1] if exchange.frames else {}
    need_schema("WebSocketErrorEvent", frame, exchange, frame)


@check_row("websocket.evicts", "A failed turn evicts the previous response", _SPEC)
async def _evicts(server: VerifiedServer) -> None:
    """
    If a continuation fails with a 4xx or 5xx error, the server MUST evict `previous_response_id` from the connection.
    """
    continued = given(await server.once(_turn)) and await server.once(_continuation)
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
    need_unknown_previous(exchange)


@check_row("websocket.malformed", "A message that is not JSON is an error", _SPEC)
async def _malformed(server: VerifiedServer) -> None:
    """A malformed message is answered with an error, and the connection stays open."""
    given(await server.once(_turn))
    async with server.websocket() as socket:
        exchange = await socket.frames('{"type": "response.cre')
        again = await socket.turn(max_output_tokens=LIMIT)
    refused = bool(exchange.frames) and exchange.frames[-1].get("type") == "error"
    need(refused, f"The message is answered with {exchange.outcome()}", exchange, exchange.frames[-1:])
    need_turn(again, "The turn after it")


@check_row("websocket.generate", "generate: false warms up a turn", f"OpenAI guide, WebSocket mode; {_CODEX}")
async def _generate(server: VerifiedServer) -> None:
    """`generate: false` produces no output; its input becomes context for the next turn."""
    given(await server.once(_turn))
    async with server.websocket() as socket:
        first = await socket.turn(input=[user_message(samples.WORDS)], generate=False)
        if not first.response and says_unsupported(first, "generate"):
            raise Unsupported(first.outcome(), first)
        if first.output:
            raise Unsupported("generate: false is ignored: the turn has output.", first)
        exchange = await socket.turn(input=SHORT, previous_response_id=response_id(first), max_output_tokens=LIMIT)
    need_turn(exchange, "The next turn")


@check_row(
    "websocket.compacted",
    "A compacted conversation starts a new chain",
    "Open Responses compliance suite, websocket-compact-new-chain",
)
async def _compacted(server: VerifiedServer) -> None:
    """Output from `/responses/compact` is valid input for a turn without `previous_response_id`."""
    given(await server.once(_turn))
    body = {"model": server.model, "input": [user_message(samples.WORDS)]}
    compacted = given(await server.send("POST", "/responses/compact", body))
    async with server.websocket() as socket:
        exchange = await socket.turn(input=[*compacted.output, user_message(SHORT)], max_output_tokens=LIMIT)
    need_turn(exchange)
