"""Background responses and compaction."""

from __future__ import annotations

import asyncio
import time

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import INVALID, NO_FAILURE, REFUSED, require_laws, require_schema, require_status
from openresponses_verify.rows import Inconclusive, Unsupported, check_row, require
from openresponses_verify.samples import LIMIT, assistant_message, output_text, response_id, user_message
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok, says_unsupported

_GUIDE = "OpenAI guide, Background mode"
_API = "OpenAI API reference, "
_COMPACT = "Open Responses specification, Context Compaction"
_ENDED = ("completed", "incomplete", "failed", "cancelled")


async def _begun(server: VerifiedServer) -> HTTPExchange:
    return await server.respond(input="Say hello.", background=True, store=True, max_output_tokens=LIMIT)


async def _background_response(server: VerifiedServer) -> HTTPExchange:
    """Return a background response; raises `Unsupported` if it ran in the foreground, `Inconclusive` without status."""
    exchange = assume_ok(await server.memoized(_begun), "background")
    samples.echoed_field(exchange, "status")
    if exchange.response.get("background") is not True and exchange.response.get("status") in _ENDED:
        raise Unsupported("background is ignored: the first answer is the finished response.", exchange)
    return exchange


async def _ended(server: VerifiedServer) -> HTTPExchange:
    identifier = response_id(await _background_response(server))
    until = time.monotonic() + server.timeout
    pause = 0.05
    while True:
        exchange = await server.get(f"/responses/{identifier}")
        if not exchange.ok or exchange.object.get("status") in _ENDED or time.monotonic() > until:
            return exchange
        await asyncio.sleep(pause)
        pause = min(1.0, pause * 1.5)


@check_row("background.create", "A background response is created at once", _GUIDE)
async def _create(server: VerifiedServer) -> None:
    """`background: true` returns at once: the status is `queued` or `in_progress`."""
    exchange = require_ok(await server.memoized(_begun), "background")
    await _background_response(server)
    status = exchange.response.get("status")
    require(status in ("queued", "in_progress", *_ENDED), f"The status is {status!r}.", exchange)
    require(exchange.response.get("background") is True, "The response does not have background: true.", exchange)


@check_row("background.poll", "A background response can be polled until it ends", _GUIDE)
async def _poll(server: VerifiedServer) -> None:
    """Clients poll with GET until the status is no longer `queued` or `in_progress`."""
    await _background_response(server)
    exchange = await server.memoized(_ended)
    require(exchange.ok, f"The answer is {exchange.outcome()}", exchange)
    status = exchange.object.get("status")
    require(status in ("completed", "incomplete"), f"The final status is {status!r}.", exchange)
    require(exchange.output, "The final response has no output.", exchange)


async def _streamed(server: VerifiedServer) -> HTTPExchange:
    return await server.stream(input="Say hello.", background=True, store=True, max_output_tokens=LIMIT)


@check_row("background.stream", "A background response can be streamed", _GUIDE)
async def _stream(server: VerifiedServer) -> None:
    """`background` and `stream` can be combined. The stream follows the stream laws."""
    await _background_response(server)
    exchange = require_ok(await server.memoized(_streamed), "background", "stream")
    require(exchange.events, "The stream has no events.", exchange)
    require_laws(exchange, exchange.events)


async def _resumed(server: VerifiedServer) -> HTTPExchange:
    assume_ok(await server.memoized(_streamed), "background", "stream")
    identifier = response_id(await server.memoized(_streamed))
    return await server.get(f"/responses/{identifier}?stream=true&starting_after=1")


@check_row("background.resume", "A stream can be resumed", f"{_API}Get a model response, starting_after")
async def _resume(server: VerifiedServer) -> None:
    """Streaming resumes after the sequence number `starting_after`."""
    await _background_response(server)
    exchange = require_ok(await server.memoized(_resumed), "stream", "starting_after")
    if exchange.content_type != "text/event-stream":
        raise Unsupported("The answer is not an event stream.", exchange)
    require(exchange.events, "The stream has no events.", exchange)
    first = exchange.events[0].get("sequence_number")
    require(first == 2, f"The first event after 1 has the sequence_number {first!r}.", exchange, exchange.events[0])


@check_row(
    "background.resume-same", "A resumed stream has the same events", f"{_API}Get a model response, starting_after"
)
async def _same(server: VerifiedServer) -> None:
    """A resumed stream repeats the original events after `starting_after`."""
    await _background_response(server)
    before = [event for event in assume_ok(await server.memoized(_streamed)).events if event.get("type") != "keepalive"]
    exchange = assume_ok(await server.memoized(_resumed), "stream", "starting_after")
    after = [event for event in exchange.events if event.get("type") != "keepalive"]
    if exchange.content_type != "text/event-stream" or not after:
        raise Unsupported("The answer is not an event stream.", exchange)
    numbered = {event.get("sequence_number"): event for event in before}
    for event in after:
        same = numbered.get(event.get("sequence_number")) == event
        require(same, "An event differs from the original event with the same sequence_number.", exchange, event)
    require(
        after[-1] == before[-1],
        "The last event of the resumed stream is not the original last event.",
        exchange,
        after[-1],
    )


async def _cancelled(server: VerifiedServer) -> HTTPExchange:
    begun = await server.respond(input=samples.COUNT, background=True, store=True, max_output_tokens=4 * LIMIT)
    return await server.send("POST", f"/responses/{response_id(begun)}/cancel")


@check_row("background.cancel", "A background response can be cancelled", f"{_API}Cancel a response")
async def _cancel(server: VerifiedServer) -> None:
    """`POST /responses/{id}/cancel` cancels a background response and returns it."""
    await _background_response(server)
    exchange = require_ok(await server.memoized(_cancelled))
    status = exchange.object.get("status")
    if status in ("completed", "incomplete"):
        raise Inconclusive("The response had ended before it could be cancelled.", exchange)
    require(status == "cancelled", f"The status is {status!r}.", exchange)


@check_row("background.cancel-again", "Cancelling twice is idempotent", _GUIDE)
async def _again(server: VerifiedServer) -> None:
    """A second cancellation returns the response."""
    await _background_response(server)
    first = assume_ok(await server.memoized(_cancelled))
    exchange = await server.send("POST", f"/responses/{response_id(first)}/cancel")
    require(exchange.ok, f"The second cancellation is answered with {exchange.outcome()}", exchange)
    same = exchange.object.get("status") == first.object.get("status")
    require(same, f"The status changed to {exchange.object.get('status')!r}.", exchange)


@check_row("background.cancel-foreground", "A foreground response cannot be cancelled", f"{_API}Cancel a response")
async def _foreground(server: VerifiedServer) -> None:
    """Only responses created with `background: true` can be cancelled."""
    await _background_response(server)
    assume_ok(await server.memoized(_cancelled))
    identifier = response_id(await server.memoized(samples.stored))
    require_status(await server.send("POST", f"/responses/{identifier}/cancel"), REFUSED)


@check_row("background.not-stored", "A background response must be stored", _GUIDE)
async def _not_stored(server: VerifiedServer) -> None:
    """Background mode requires `store: true`. Stateless requests are rejected."""
    await _background_response(server)
    require_status(await server.respond(background=True, store=False, max_output_tokens=16), INVALID)


async def _compact(server: VerifiedServer) -> HTTPExchange:
    turns = [user_message(samples.WORDS), assistant_message("I shall.")]
    return await server.send("POST", "/responses/compact", {"model": server.model, "input": turns})


@check_row("compaction.create", "A conversation can be compacted", _COMPACT)
async def _compaction(server: VerifiedServer) -> None:
    """`POST /responses/compact` returns a `response.compaction` object."""
    exchange = require_ok(await server.memoized(_compact))
    found = exchange.object.get("object")
    require(found == "response.compaction", f"The object is {found!r}.", exchange)
    types = [item.get("type") for item in exchange.output]
    require("compaction" in types, f"The output has items of the types {types}.", exchange)


@check_row("compaction.schema", "A compaction fits the schema", "Open Responses schema, CompactResource")
async def _schema(server: VerifiedServer) -> None:
    """A CompactResource has an id, output, `created_at` and usage."""
    exchange = assume_ok(await server.memoized(_compact))
    require_schema("CompactResource", exchange.object, exchange, but=lambda issue: issue.path == ("object",))


@check_row("compaction.opaque", "A compaction is opaque", "Open Responses schema, CompactionBody.encrypted_content")
async def _opaque(server: VerifiedServer) -> None:
    """`encrypted_content` is encrypted."""
    exchange = assume_ok(await server.memoized(_compact))
    for item in exchange.output:
        if item.get("type") == "compaction":
            content = str(item.get("encrypted_content"))
            require(
                "alpha bravo" not in content,
                "encrypted_content contains the words of the conversation in plain text.",
                exchange,
                item,
            )


@check_row("compaction.replay", "The output replaces the conversation", _COMPACT)
async def _replay(server: VerifiedServer) -> None:
    """The compacted output replaces the conversation in the next request."""
    compacted = assume_ok(await server.memoized(_compact))
    exchange = await server.respond(input=[*compacted.output, user_message("Say hello.")], max_output_tokens=LIMIT)
    require(exchange.ok, f"The answer is {exchange.outcome()}", exchange)


@check_row(
    "compaction.missing-model",
    "A compaction without a model is refused",
    "Open Responses schema, CompactResponseMethodPublicBody",
)
async def _no_model(server: VerifiedServer) -> None:
    """`model` is required."""
    assume_ok(await server.memoized(_compact))
    require_status(await server.send("POST", "/responses/compact", {"input": "Hi."}), INVALID)


@check_row(
    "compaction.previous",
    "A stored conversation can be compacted",
    f"{_COMPACT}; openai-agents, OpenAIResponsesCompactionSession",
)
async def _previous(server: VerifiedServer) -> None:
    """The endpoint accepts `previous_response_id` without `input`."""
    assume_ok(await server.memoized(_compact))
    body = {"model": server.model, "previous_response_id": response_id(await server.memoized(samples.stored))}
    exchange = require_ok(await server.send("POST", "/responses/compact", body), "previous_response_id")
    require(exchange.output, "The output is empty.", exchange)


@check_row(
    "compaction.trigger",
    "A trigger produces one compaction item",
    "Codex CLI 0.169, compaction with the built-in provider",
)
async def _trigger(server: VerifiedServer) -> None:
    """Input that ends with `{type: 'compaction_trigger'}` is answered with exactly one `compaction` item."""
    turns: list[dict[str, object]] = [user_message(samples.WORDS), {"type": "compaction_trigger"}]
    exchange = await server.respond(input=turns, max_output_tokens=LIMIT)
    if not exchange.ok and (exchange.status in (400, 422) or says_unsupported(exchange)):
        raise Unsupported(exchange.outcome(), exchange)
    types = [item.get("type") for item in assume_ok(exchange).output]
    if "compaction" not in types and output_text(exchange):
        raise Unsupported("The trigger is ignored: the output is a message.", exchange)
    require(types == ["compaction"], f"The output has items of the types {types}.", exchange)


@check_row("compaction.tampered", "A modified compaction causes no 5xx", _COMPACT)
async def _tampered(server: VerifiedServer) -> None:
    """Modified `encrypted_content` is a client error."""
    compacted = assume_ok(await server.memoized(_compact))
    item = next((item for item in compacted.output if item.get("type") == "compaction"), {})
    content = str(item.get("encrypted_content") or "")
    if len(content) < 20:
        raise Inconclusive("The compaction has no encrypted_content.", compacted)
    middle = len(content) // 2
    changed = f"{content[:middle]}{'A' if content[middle] != 'A' else 'B'}{content[middle + 1 :]}"
    turns = [{**item, "encrypted_content": changed}, user_message("Say hello.")]
    require_status(await server.respond(input=turns, max_output_tokens=16), NO_FAILURE)


@check_row("compaction.input-tokens", "Input can be counted", f"{_API}Get input token counts")
async def _input_tokens(server: VerifiedServer) -> None:
    """`POST /responses/input_tokens` returns `{object: 'response.input_tokens', input_tokens}`."""
    body = {"model": server.model, "input": samples.WORDS}
    exchange = require_ok(await server.send("POST", "/responses/input_tokens", body))
    found = exchange.object.get("input_tokens")
    require(isinstance(found, int) and found > 5, f"input_tokens is {found!r}.", exchange, exchange.object)
    kind = exchange.object.get("object")
    require(kind == "response.input_tokens", f"The object is {kind!r}.", exchange, exchange.object)
