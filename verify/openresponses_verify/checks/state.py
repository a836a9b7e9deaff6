"""Stored responses: retrieve, continue, fork, list and delete."""

from __future__ import annotations

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import (
    NOT_FOUND,
    REFUSED,
    request_row,
    require_more_input_tokens,
    require_order,
    require_status,
    require_unknown_previous,
)
from openresponses_verify.rows import Failed, Inconclusive, Unsupported, check_row, require
from openresponses_verify.samples import NO_RESPONSE, SHORT, assistant_message, input_tokens, response_id, user_message
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok, says_unsupported

_PREVIOUS = "Open Responses specification, previous_response_id"
_API = "OpenAI API reference, "
_CREATE = f"{_API}Create a model response, "


async def _get_stored(server: VerifiedServer) -> HTTPExchange:
    return await server.get(f"/responses/{response_id(await server.memoized(samples.stored))}")


async def _continued(server: VerifiedServer) -> HTTPExchange:
    first = response_id(await server.memoized(samples.stored))
    return await server.respond(input=SHORT, previous_response_id=first, store=True, max_output_tokens=samples.LIMIT)


async def _continued_again(server: VerifiedServer) -> HTTPExchange:
    assume_ok(await server.memoized(_continued), "previous_response_id")
    first = response_id(await server.memoized(samples.stored))
    return await server.respond(input=SHORT, previous_response_id=first, max_output_tokens=samples.LIMIT)


async def _third(server: VerifiedServer) -> HTTPExchange:
    second = response_id(assume_ok(await server.memoized(_continued), "previous_response_id"))
    return await server.respond(input=SHORT, previous_response_id=second, max_output_tokens=samples.LIMIT)


async def needs_storage(server: VerifiedServer) -> None:
    """Raise `Unsupported` unless stored responses can be retrieved or continued."""
    exchange = await server.memoized(_get_stored)
    continued = await server.memoized(_continued)
    if not exchange.ok and says_unsupported(continued, "previous_response_id", "store"):
        raise Unsupported(f"Responses are not stored: {continued.outcome()}", continued)


@check_row("state.retrieve", "A stored response can be retrieved", f"{_CREATE}store; {_API}Get a model response")
async def _retrieve(server: VerifiedServer) -> None:
    """`store: true` stores the response for later retrieval."""
    exchange = require_ok(await server.memoized(_get_stored))
    created = (await server.memoized(samples.stored)).response
    for name in ("id", "status", "output", "usage", "model", "instructions"):
        same = exchange.object.get(name) == created.get(name)
        require(same, f"{name} differs from the created response.", exchange, exchange.object.get(name))


@check_row("state.retrieve-metadata", "A stored response keeps its metadata", f"{_CREATE}metadata")
async def _metadata(server: VerifiedServer) -> None:
    """`metadata` is stored with the response."""
    exchange = assume_ok(await server.memoized(_get_stored))
    found = exchange.object.get("metadata")
    require(found == {"purpose": "verify"}, f"The metadata is {found!r}.", exchange)


@check_row("state.retrieve-streamed", "A streamed response can be retrieved at once", f"{_API}Get a model response")
async def _retrieve_streamed(server: VerifiedServer) -> None:
    """The response is stored before `response.completed` is sent, so clients can retrieve it immediately."""
    assume_ok(await server.memoized(_get_stored))
    streamed = assume_ok(await server.memoized(samples.stored_stream), "stream")
    if streamed.response.get("status") in ("in_progress", "queued"):
        raise Inconclusive("The stream has no terminal event.", streamed)
    exchange = await server.get(f"/responses/{response_id(streamed)}")
    require(exchange.ok, f"Retrieving the streamed response is answered with {exchange.outcome()}", exchange)
    different = [
        name for name in ("id", "status", "output") if exchange.object.get(name) != streamed.response.get(name)
    ]
    require(not different, f"{different} differ from the last event of the stream.", exchange)


@check_row("state.unknown", "An unknown response is a 404", "Open Responses specification, Error Types")
async def _unknown(server: VerifiedServer) -> None:
    """`not_found`: the response does not exist."""
    assume_ok(await server.memoized(_get_stored))
    require_status(await server.get(f"/responses/{NO_RESPONSE}"), NOT_FOUND)


@check_row("state.previous-response", "previous_response_id adds the earlier turn", _PREVIOUS)
async def _previous(server: VerifiedServer) -> None:
    """With `previous_response_id`, the server MUST load the earlier response's input and output into the context."""
    exchange = require_ok(await server.memoized(_continued), "previous_response_id", "store")
    require_more_input_tokens(
        exchange, assume_ok(await server.memoized(samples.alone)), 15, "the earlier turn of many words"
    )


@check_row(
    "state.previous-echo",
    "The response has previous_response_id",
    "Open Responses schema, ResponseResource.previous_response_id",
)
async def _previous_echo(server: VerifiedServer) -> None:
    """`previous_response_id` is the previous response's id."""
    exchange = assume_ok(await server.memoized(_continued), "previous_response_id", "store")
    first = response_id(await server.memoized(samples.stored))
    found = exchange.response.get("previous_response_id")
    require(found == first, f"previous_response_id is {found!r}, and should be {first!r}.", exchange)


request_row(
    "state.previous-unknown",
    "An unknown previous response is refused",
    "An unknown `previous_response_id` is an error. Otherwise the model would silently lose the earlier turns.",
    f"{_PREVIOUS}; {_CREATE}previous_response_id",
    REFUSED,
    input=SHORT,
    previous_response_id=NO_RESPONSE,
)


@check_row(
    "state.previous-code",
    "The error code is previous_response_not_found",
    "Open Responses specification, WebSocket; Codex; openai-agents",
)
async def _previous_code(server: VerifiedServer) -> None:
    """The error code is `previous_response_not_found`. Clients then resend all turns."""
    assume_ok(await server.memoized(_continued), "previous_response_id", "store")
    exchange = await server.respond(input=SHORT, previous_response_id=NO_RESPONSE, max_output_tokens=samples.LIMIT)
    require_unknown_previous(exchange)


@check_row("state.chain", "A chain includes its first turn", _PREVIOUS)
async def _chain(server: VerifiedServer) -> None:
    """The context is `previous_response.input` + `previous_response.output` + `input`, recursively."""
    second = input_tokens(assume_ok(await server.memoized(_continued), "previous_response_id", "store"))
    if second < input_tokens(assume_ok(await server.memoized(samples.alone))) + 15:
        raise Inconclusive("The second turn lacks the first: see state.previous-response.")
    exchange = require_ok(await server.memoized(_third), "previous_response_id")
    third = input_tokens(exchange)
    require(third > second, f"The third turn has {third} input tokens, the second {second}.", exchange)


@check_row("state.fork", "Forks are independent", _PREVIOUS)
async def _fork(server: VerifiedServer) -> None:
    """Two continuations are independent: each sees only the turns before the fork."""
    one = input_tokens(assume_ok(await server.memoized(_continued), "previous_response_id", "store"))
    exchange = assume_ok(await server.memoized(_continued_again), "previous_response_id", "store")
    other = input_tokens(exchange)
    require(one == other, f"The first branch has {one} input tokens, the identical second branch {other}.", exchange)


@check_row("state.instructions", "Instructions are not inherited", f"{_CREATE}instructions")
async def _instructions(server: VerifiedServer) -> None:
    """`instructions` apply to one response and are not inherited."""
    exchange = assume_ok(await server.memoized(_continued), "previous_response_id", "store")
    found = exchange.response.get("instructions")
    require(found is None, f"The instructions are {found!r}, but none were sent.", exchange)
    words = "Answer in the style of a very long and ornate letter of the eighteenth century, with every courtesy."
    first = await server.respond(input=SHORT, store=True, max_output_tokens=16, instructions=words * 4)
    plain = await server.respond(input=SHORT, store=True, max_output_tokens=16)
    tokens = []
    for turn in (first, plain):
        follow = await server.respond(
            input=SHORT, previous_response_id=response_id(turn), max_output_tokens=16, store=False
        )
        tokens.append(input_tokens(assume_ok(follow)))
    require(tokens[0] < tokens[1] + 60, "The instructions of the previous response reach the model.", follow)


@check_row("state.store-false", "An unstored response cannot be retrieved", f"{_CREATE}store")
async def _store_false(server: VerifiedServer) -> None:
    """With `store: false`, the response is not stored."""
    assume_ok(await server.memoized(_get_stored))
    exchange = await server.get(f"/responses/{response_id(await server.memoized(samples.text))}")
    require_status(exchange, NOT_FOUND, "A response with store: false")


@check_row("state.store-false-previous", "An unstored response cannot be continued", f"{_CREATE}previous_response_id")
async def _store_false_previous(server: VerifiedServer) -> None:
    """A response with `store: false` cannot be continued over HTTP."""
    assume_ok(await server.memoized(_continued), "previous_response_id", "store")
    identifier = response_id(await server.memoized(samples.text))
    require_status(await server.respond(input=SHORT, previous_response_id=identifier, max_output_tokens=16), REFUSED)


async def _input_items(server: VerifiedServer) -> HTTPExchange:
    return await server.get(f"/responses/{response_id(await server.memoized(samples.stored))}/input_items")


@check_row("state.input-items", "The input of a response can be listed", f"{_API}List input items")
async def _list(server: VerifiedServer) -> None:
    """`GET /responses/{id}/input_items` lists the response's input items."""
    exchange = require_ok(await server.memoized(_input_items))
    require(exchange.object.get("object") == "list", "The `object` is not 'list'.", exchange, exchange.object)
    require(len(exchange.listed) == 1, "The list does not have exactly one message.", exchange, exchange.object)
    item = exchange.listed[0]
    text = "".join(str(part.get("text")) for part in item.get("content") or [] if isinstance(part, dict))
    require(text == samples.WORDS, "The listed message differs from the request's message.", exchange, item)
    require(isinstance(item.get("id"), str) and item["id"], "The message has no id.", exchange, item)


@check_row("state.input-items-list", "The list has pagination fields", f"{_API}List input items")
async def _list_ends(server: VerifiedServer) -> None:
    """Lists have `first_id`, `last_id` and `has_more`."""
    exchange = assume_ok(await server.memoized(_input_items))
    missing = [name for name in ("data", "first_id", "has_more", "last_id") if name not in exchange.object]
    require(not missing, f"The list has no {missing}.", exchange, exchange.object)


async def _three(server: VerifiedServer) -> HTTPExchange:
    turns = [user_message("one"), assistant_message("two"), user_message("three")]
    return await server.respond(input=turns, store=True, max_output_tokens=samples.LIMIT)


@check_row("state.input-items-order", "Input items can be ordered and paged", f"{_API}List input items")
async def _list_order(server: VerifiedServer) -> None:
    """`order`, `limit` and `after` select the listed items. The default order is `desc`."""
    assume_ok(await server.memoized(_input_items))
    path = f"/responses/{response_id(await server.memoized(_three))}/input_items"
    rising = await server.get(f"{path}?order=asc")
    require_order(rising, await server.get(path), ["one", "two", "three"])
    ids = rising.listed_ids
    page = await server.get(f"{path}?order=asc&limit=1&after={ids[0]}")
    found = page.listed_ids
    require(found == ids[1:2], "With `limit=1&after=`, the page after the first item is not the second item.", page)
    require(page.object.get("has_more") is True, "has_more is not true although a third item follows.", page)


async def _deleted(server: VerifiedServer) -> HTTPExchange:
    stored = await server.respond(input=SHORT, store=True, max_output_tokens=16)
    return await server.delete(f"/responses/{response_id(stored)}")


def _path(exchange: HTTPExchange) -> str:
    return f"/responses/{exchange.url.rpartition('/')[2]}"


@check_row("state.delete", "A response can be deleted", f"{_API}Delete a model response")
async def _delete(server: VerifiedServer) -> None:
    """`DELETE /responses/{id}` returns `{id, object: 'response', deleted: true}`."""
    exchange = require_ok(await server.memoized(_deleted))
    found = exchange.object
    require(found.get("deleted") is True, "deleted is not true.", exchange, found)
    require(
        found.get("id") == exchange.url.rpartition("/")[2], "The id differs from the requested one.", exchange, found
    )
    require(str(found.get("object")).startswith("response"), f"The object is {found.get('object')!r}.", exchange, found)


@check_row("state.deleted-retrieve", "A deleted response is gone", f"{_API}Delete a model response")
async def _deleted_get(server: VerifiedServer) -> None:
    """A deleted response cannot be retrieved."""
    path = _path(assume_ok(await server.memoized(_deleted)))
    require_status(await server.get(path), NOT_FOUND, "A deleted response")


@check_row("state.deleted-previous", "A deleted response cannot be continued", f"{_API}Delete a model response")
async def _deleted_previous(server: VerifiedServer) -> None:
    """A deleted response is unknown as `previous_response_id`."""
    identifier = assume_ok(await server.memoized(_deleted)).url.rpartition("/")[2]
    require_status(await server.respond(input=SHORT, previous_response_id=identifier, max_output_tokens=16), REFUSED)


@check_row("state.deleted-again", "Deleting twice is a 404", "Open Responses specification, Error Types, not_found")
async def _deleted_twice(server: VerifiedServer) -> None:
    """A deleted response is not found."""
    require_status(
        await server.delete(_path(assume_ok(await server.memoized(_deleted)))), NOT_FOUND, "The second DELETE"
    )


@check_row(
    "state.item-reference",
    "Items can be referenced by id",
    "Open Responses schema, ItemReferenceParam; @ai-sdk/openai",
)
async def _reference(server: VerifiedServer) -> None:
    """`item_reference` refers to an earlier item by id. The AI SDK sends references for all earlier answers."""
    await needs_storage(server)
    stored = assume_ok(await server.memoized(samples.stored))
    ids = [item["id"] for item in stored.output if item.get("type") == "message" and item.get("id")]
    if not ids:
        raise Inconclusive("The stored response has no message.", stored)
    turns = [user_message(samples.WORDS), {"type": "item_reference", "id": ids[0]}, user_message(SHORT)]
    require_ok(await server.respond(input=turns, max_output_tokens=samples.LIMIT), "item_reference", "input")


@check_row(
    "state.item-reference-unknown",
    "A reference to an unknown item is refused",
    "Open Responses schema, ItemReferenceParam",
)
async def _reference_unknown(server: VerifiedServer) -> None:
    """An `item_reference` to a missing item is an error. Otherwise the model would lack the item."""
    await needs_storage(server)
    turns = [{"type": "item_reference", "id": "msg_0000000000000000000000000000000000"}, user_message(SHORT)]
    require_status(await server.respond(input=turns, max_output_tokens=16), REFUSED)


@check_row("state.remembers", "Earlier turns reach the model", _PREVIOUS)
async def _remembers(server: VerifiedServer) -> None:
    """`previous_response_id` continues the conversation after the previous response."""
    await needs_storage(server)
    for _ in range(3):
        first = await server.respond(input="My name is Alice.", store=True, max_output_tokens=samples.LIMIT)
        exchange = await server.respond(
            input="What is my name?", previous_response_id=response_id(first), max_output_tokens=samples.LIMIT
        )
        if "alice" in samples.output_text(assume_ok(exchange, "previous_response_id")).lower():
            return
    raise Inconclusive("The model did not repeat the name in 3 attempts.", exchange)


@check_row(
    "state.failed-turn",
    "A refused turn does not change the chain",
    f"{_PREVIOUS}; Open Responses specification, Errors",
)
async def _failed_turn(server: VerifiedServer) -> None:
    """After a rejected request, the previous response can still be continued."""
    second = response_id(assume_ok(await server.memoized(_continued), "previous_response_id", "store"))
    refused = await server.respond(
        input=[{"type": "message", "role": "nobody", "content": "x"}], previous_response_id=second, store=True
    )
    if refused.ok:
        raise Inconclusive("The server accepts a message of an unknown role.", refused)
    exchange = await server.respond(input=SHORT, previous_response_id=second, max_output_tokens=16)
    if not exchange.ok:
        raise Failed(f"After a refused turn, continuing the chain is answered with {exchange.outcome()}", exchange)
