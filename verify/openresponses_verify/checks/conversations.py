"""Conversations, which responses read and extend."""

from __future__ import annotations

from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.expect import NOT_FOUND, REFUSED, require_more_input_tokens, require_order, require_status
from openresponses_verify.rows import Inconclusive, check_row, require
from openresponses_verify.samples import SHORT, object_id, response_id, user_message
from openresponses_verify.server import VerifiedServer, assume_ok, require_ok

_API = "OpenAI API reference, Conversations, "
_CREATE = "OpenAI API reference, Create a model response, conversation"
_SPEC = "Open Responses specification, Stateful Conversations"
_NONE = "conv_00000000000000000000000000000000000000000000000000"


async def _created(server: VerifiedServer) -> HTTPExchange:
    body = {"items": [user_message(samples.WORDS)], "metadata": {"purpose": "verify"}}
    return await server.send("POST", "/conversations", body)


async def _id(server: VerifiedServer) -> str:
    return object_id(await server.memoized(_created))


async def _used(server: VerifiedServer) -> HTTPExchange:
    made = await server.send("POST", "/conversations", {"items": [user_message(samples.WORDS)]})
    return await server.respond(input=SHORT, conversation=object_id(made), store=True, max_output_tokens=samples.LIMIT)


@check_row("conversations.create", "A conversation can be created", f"{_API}Create")
async def _create(server: VerifiedServer) -> None:
    """`POST /conversations` returns a `conversation` with id, metadata and `created_at`."""
    exchange = require_ok(await server.memoized(_created))
    found = exchange.object
    require(found.get("object") == "conversation", f"The object is {found.get('object')!r}.", exchange, found)
    require(isinstance(found.get("id"), str) and found["id"], "The id is missing.", exchange, found)
    require(isinstance(found.get("created_at"), int), "created_at is not an integer.", exchange, found)
    require(found.get("metadata") == {"purpose": "verify"}, "The metadata differs from the request.", exchange, found)


@check_row("conversations.retrieve", "A conversation can be retrieved", f"{_API}Retrieve")
async def _retrieve(server: VerifiedServer) -> None:
    """`GET /conversations/{id}` returns the conversation."""
    exchange = require_ok(await server.get(f"/conversations/{await _id(server)}"))
    require(
        exchange.object.get("id") == await _id(server),
        "The id differs from the requested one.",
        exchange,
        exchange.object,
    )


@check_row("conversations.update", "The metadata can be changed", f"{_API}Update")
async def _update(server: VerifiedServer) -> None:
    """`POST /conversations/{id}` updates the metadata."""
    path = f"/conversations/{await _id(server)}"
    require_ok(await server.send("POST", path, {"metadata": {"purpose": "changed"}}), "metadata")
    exchange = await server.get(path)
    require(exchange.object.get("metadata") == {"purpose": "changed"}, "The metadata has not changed.", exchange)


@check_row("conversations.items", "Items can be listed", f"{_API}List items")
async def _items(server: VerifiedServer) -> None:
    """`GET /conversations/{id}/items` lists the items."""
    exchange = require_ok(await server.get(f"/conversations/{await _id(server)}/items"))
    roles = {item.get("role") for item in exchange.listed}
    require(roles == {"user"}, "The list does not have the message.", exchange, exchange.object)


async def _extended(server: VerifiedServer) -> HTTPExchange:
    made = object_id(await server.send("POST", "/conversations", {}))
    items = [user_message("one"), user_message("two")]
    return await server.send("POST", f"/conversations/{made}/items", {"items": items})


def _conversation(exchange: HTTPExchange) -> str:
    return f"/conversations/{exchange.url.split('/conversations/')[1].partition('/')[0]}"


@check_row("conversations.items-create", "Items can be added", f"{_API}Create items")
async def _add(server: VerifiedServer) -> None:
    """`POST /conversations/{id}/items` adds items, and returns them as a list."""
    exchange = require_ok(await server.memoized(_extended))
    require(len(exchange.listed) == 2, "The list does not have both items.", exchange, exchange.object)


@check_row("conversations.items-order", "Items can be ordered", f"{_API}List items")
async def _order(server: VerifiedServer) -> None:
    """`order` is `asc` or, by default, `desc`."""
    path = f"{_conversation(assume_ok(await server.memoized(_extended)))}/items"
    require_order(await server.get(f"{path}?order=asc"), await server.get(path), ["one", "two"])


@check_row("conversations.item", "An item can be retrieved and deleted", f"{_API}Retrieve an item, Delete an item")
async def _item(server: VerifiedServer) -> None:
    """`GET /conversations/{id}/items/{item_id}` returns an item; `DELETE` deletes it and returns the conversation."""
    made = object_id(await server.send("POST", "/conversations", {"items": [user_message("one")]}))
    path = f"/conversations/{made}/items"
    items = assume_ok(await server.get(path))
    identifier = next(iter(items.listed_ids), None)
    if not isinstance(identifier, str):
        raise Inconclusive("The list has no item with an id: see conversations.items.", items)
    exchange = require_ok(await server.get(f"{path}/{identifier}"))
    require(
        exchange.object.get("id") == identifier, "The item has another id than requested.", exchange, exchange.object
    )
    require_ok(await server.delete(f"{path}/{identifier}"))
    require_status(await server.get(f"{path}/{identifier}"), NOT_FOUND, "The deleted item")


@check_row("conversations.response", "A response has its conversation", _SPEC)
async def _response(server: VerifiedServer) -> None:
    """`response.conversation` MUST identify the response's conversation."""
    await _id(server)
    exchange = require_ok(await server.memoized(_used), "conversation")
    found: Any = exchange.response.get("conversation")
    sent = exchange.body.get("conversation") if isinstance(exchange.body, dict) else None
    named = found.get("id") if isinstance(found, dict) else found
    require(named == sent, f"The conversation is {found!r}, and should be {sent!r}.", exchange)


@check_row("conversations.context", "The conversation reaches the model", _CREATE)
async def _context(server: VerifiedServer) -> None:
    """The conversation's items are prepended to the input."""
    await _id(server)
    exchange = assume_ok(await server.memoized(_used), "conversation")
    require_more_input_tokens(exchange, assume_ok(await server.memoized(samples.alone)), 15, "the conversation")


@check_row("conversations.append", "A response extends the conversation", _CREATE)
async def _append(server: VerifiedServer) -> None:
    """The response's input and output items are added to the conversation when it completes."""
    await _id(server)
    used = assume_ok(await server.memoized(_used), "conversation")
    sent = used.body.get("conversation") if isinstance(used.body, dict) else ""
    exchange = assume_ok(await server.get(f"/conversations/{sent}/items?order=asc"))
    types = [(item.get("type"), item.get("role")) for item in exchange.listed]
    require(types.count(("message", "user")) == 2, "The input of the response was not added.", exchange, types)
    require(len(types) == 2 + len(used.output), "The output of the response was not added.", exchange, types)


@check_row(
    "conversations.with-previous",
    "previous_response_id and conversation are exclusive",
    "OpenAI API reference, Create a model response, previous_response_id",
)
async def _with_previous(server: VerifiedServer) -> None:
    """`previous_response_id` and `conversation` are mutually exclusive."""
    used = assume_ok(await server.memoized(_used), "conversation")
    exchange = await server.respond(
        conversation=object_id(await server.send("POST", "/conversations", {})),
        previous_response_id=response_id(used),
        max_output_tokens=16,
    )
    require_status(exchange, (400,))


@check_row("conversations.unknown", "An unknown conversation is refused", "Open Responses specification, Error Types")
async def _unknown(server: VerifiedServer) -> None:
    """`not_found`: an unknown conversation can be neither retrieved nor used."""
    await _id(server)
    require_status(await server.get(f"/conversations/{_NONE}"), REFUSED, "GET")
    exchange = await server.respond(input=SHORT, conversation=_NONE, max_output_tokens=16)
    require_status(exchange, REFUSED, "A response in it")


@check_row("conversations.delete", "A conversation can be deleted", f"{_API}Delete")
async def _delete(server: VerifiedServer) -> None:
    """`DELETE /conversations/{id}` returns `{id, object: 'conversation.deleted', deleted: true}`."""
    path = f"/conversations/{object_id(await server.send('POST', '/conversations', {}))}"
    exchange = require_ok(await server.delete(path))
    require(exchange.object.get("deleted") is True, "deleted is not true.", exchange, exchange.object)
    require_status(await server.get(path), NOT_FOUND, "The deleted conversation")
