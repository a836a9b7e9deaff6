"""Responses, items and events against the specification's JSON schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from openresponses_verify import samples
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.rows import Failed, check_row, require
from openresponses_verify.schema import FORMAT_SCHEMA, SchemaIssue, event_schemas, schema_issues
from openresponses_verify.server import VerifiedServer, assume_ok

_SLUG = re.compile(r"[a-z0-9_.-]+:[a-z0-9_.-]+")
_SCHEMA = "Open Responses schema (2026-04-24), "
_FIELDS = "Open Responses specification, Extending Open Responses"

# Item types in OpenAI's API, but not in the specification.
_OPENAI_ITEMS = frozenset(
    [
        *("custom_tool_call", "tool_search_call", "tool_search_output", "web_search_call", "file_search_call"),
        *("code_interpreter_call", "image_generation_call", "mcp_list_tools", "mcp_call", "mcp_approval_request"),
        *("local_shell_call", "shell_call", "shell_call_output", "apply_patch_call", "computer_call", "compaction"),
        *("apply_patch_call_output", "computer_call_output", "local_shell_call_output", "custom_tool_call_output"),
    ]
)
_OPENAI_EVENTS = re.compile(
    r"response\.(reasoning_text|custom_tool_call_input|mcp_|web_search_call|file_search_call|code_interpreter_call|"
    r"image_generation_call|shell_call|audio|compaction)|keepalive$|error$"
)
# OpenAI's names for events in the specification.
_ALIASES = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


async def _responses(server: VerifiedServer) -> list[HTTPExchange]:
    exchanges = [await server.memoized(sample) for sample in (*samples.RESPONSES, *samples.STREAMS)]
    if not any(exchange.ok for exchange in exchanges):
        assume_ok(exchanges[0])
    return [exchange for exchange in exchanges if exchange.ok]


def _embedded(exchange: HTTPExchange) -> Iterator[tuple[dict[str, Any], object]]:
    if exchange.object:
        yield exchange.object, None
        return
    for event in exchange.events:
        if isinstance(event.get("response"), dict):
            yield event["response"], f"in {event.get('type')}"


def _report(found: Iterable[tuple[SchemaIssue, HTTPExchange, object]]) -> None:
    different: dict[str, tuple[HTTPExchange, object]] = {}
    for issue, exchange, about in found:
        where = re.sub(r"\[\d+\]", "[]", issue.where) or "the value"
        different.setdefault(f"{where} {issue.message}", (exchange, about))
    if different:
        exchange, about = next(iter(different.values()))
        raise Failed("; ".join([*different][:12]) + ".", exchange, about)


def _of_responses(
    exchanges: list[HTTPExchange], chosen: Callable[[SchemaIssue], bool]
) -> Iterator[tuple[SchemaIssue, HTTPExchange, object]]:
    for exchange in exchanges:
        for response, about in _embedded(exchange):
            for issue in schema_issues("ResponseResource", response):
                if chosen(issue) and issue.path != FORMAT_SCHEMA:
                    yield issue, exchange, about


def _own(issue: SchemaIssue) -> bool:
    return issue.path[:1] not in (("output",), ("usage",))


@check_row("schema.response", "Responses have the schema's types", f"{_SCHEMA}ResponseResource")
async def _response(server: VerifiedServer) -> None:
    """Each field of a ResponseResource has the type in the schema."""
    _report(_of_responses(await _responses(server), lambda issue: _own(issue) and issue.kind == "wrong"))


@check_row("schema.required", "Responses have all required fields", f"{_SCHEMA}ResponseResource, required")
async def _required(server: VerifiedServer) -> None:
    """All required fields are present. Fields without a value are null."""
    _report(_of_responses(await _responses(server), lambda issue: _own(issue) and issue.kind == "missing"))


@check_row("schema.usage", "Usage has token counts and details", f"{_SCHEMA}Usage")
async def _usage(server: VerifiedServer) -> None:
    """Usage has `input_tokens`, `output_tokens`, `total_tokens`, and details for input and output."""
    _report(_of_responses(await _responses(server), lambda issue: issue.path[:1] == ("usage",)))


@check_row("schema.usage-total", "Usage adds up", f"{_SCHEMA}Usage.total_tokens")
async def _total(server: VerifiedServer) -> None:
    """`total_tokens` is the sum of input and output tokens."""
    for exchange in await _responses(server):
        counts: list[Any] = [exchange.usage.get(name) for name in ("input_tokens", "output_tokens")]
        if all(isinstance(count, int) for count in counts):
            adds_up = exchange.usage.get("total_tokens") == sum(counts)
            require(adds_up, "total_tokens is not the sum of input_tokens and output_tokens.", exchange, exchange.usage)


def _items(exchanges: list[HTTPExchange]) -> Iterator[tuple[dict[str, Any], HTTPExchange, object]]:
    for exchange in exchanges:
        for response, about in _embedded(exchange):
            output = response.get("output")
            for item in output if isinstance(output, list) else ():
                yield item, exchange, about
        for event in exchange.events:
            if isinstance(event.get("item"), dict):
                yield event["item"], exchange, event


def _of_items(
    exchanges: list[HTTPExchange], chosen: Callable[[SchemaIssue], bool]
) -> Iterator[tuple[SchemaIssue, HTTPExchange, object]]:
    for item, exchange, about in _items(exchanges):
        for issue in schema_issues("ItemField", item):
            if issue.kind != "unknown" and chosen(issue):
                yield issue, exchange, about


@check_row("schema.items", "Items have the schema's fields", f"{_SCHEMA}ItemField; Open Responses specification, Items")
async def _item_fields(server: VerifiedServer) -> None:
    """Items match the schema for their type."""
    _report(_of_items(await _responses(server), lambda issue: issue.path[:1] not in (("content",), ("summary",))))


@check_row(
    "schema.content",
    "Content parts have the schema's fields",
    f"{_SCHEMA}OutputTextContent; Open Responses specification, Content",
)
async def _content(server: VerifiedServer) -> None:
    """Content parts have the fields for their type: `output_text` has `annotations` and `logprobs`."""
    _report(_of_items(await _responses(server), lambda issue: issue.path[:1] in (("content",), ("summary",))))


@check_row("schema.item-types", "Item types are known or prefixed", f"{_FIELDS}, Extending Items")
async def _item_types(server: VerifiedServer) -> None:
    """Item types outside the specification MUST have the implementor's slug as a prefix."""
    for item, exchange, _ in _items(await _responses(server)):
        type_name = item.get("type") if isinstance(item, dict) else None
        unknown = any(issue.kind == "unknown" and not issue.path for issue in schema_issues("ItemField", item))
        known = not unknown or type_name in _OPENAI_ITEMS or bool(_SLUG.fullmatch(str(type_name)))
        require(known, f"An item has the type {type_name!r}.", exchange, item)


def _streams(exchanges: list[HTTPExchange]) -> Iterator[tuple[dict[str, Any], HTTPExchange]]:
    for exchange in exchanges:
        if exchange.content_type == "text/event-stream":
            for event in exchange.events:
                yield event, exchange


@check_row("schema.events", "Events have the schema's fields", f"{_SCHEMA}text/event-stream of POST /responses")
async def _events(server: VerifiedServer) -> None:
    """Events match the schema for their type."""
    found = []
    for event, exchange in _streams(await _responses(server)):
        type_name = _ALIASES.get(str(event.get("type")), str(event.get("type")))
        if type_name in event_schemas():
            issues = schema_issues(event_schemas()[type_name], {**event, "type": type_name})
            plain = (issue for issue in issues if issue.path[:1] not in (("response",), ("item",)))
            # Sequence numbers and indexes are checked by stream laws.
            found += [
                (issue._replace(path=(type_name, *issue.path)), exchange, event)
                for issue in plain
                if issue.kind != "unknown" and issue.path != ("sequence_number",)
            ]
    _report(found)


@check_row("schema.event-types", "Event types are known or prefixed", f"{_FIELDS}, Extending streaming events")
async def _event_types(server: VerifiedServer) -> None:
    """Event types outside the specification MUST have the implementor's slug as a prefix."""
    for event, exchange in _streams(await _responses(server)):
        type_name = str(event.get("type"))
        known = type_name in event_schemas() or bool(_OPENAI_EVENTS.match(type_name) or _SLUG.fullmatch(type_name))
        require(known, f"An event has the type {type_name!r}.", exchange, event)


@check_row("schema.object", "A response's `object` is `response`", f"{_SCHEMA}ResponseResource.object; openai-node")
async def _object(server: VerifiedServer) -> None:
    """`object` is always `response`. Otherwise openai-node does not derive `output_text`."""
    exchange = assume_ok(await server.memoized(samples.text))
    found = exchange.response.get("object")
    require(found == "response", f"The object is {found!r}.", exchange)


@check_row("schema.json", "Answers are JSON", "Open Responses specification, HTTP Response Bodies")
async def _json(server: VerifiedServer) -> None:
    """When not streaming, servers MUST return data only as `application/json`."""
    exchange = await server.memoized(samples.text)
    if not exchange.ok:
        assume_ok(exchange)
    require(exchange.content_type == "application/json", f"The content type is {exchange.content_type!r}.", exchange)
    require(isinstance(exchange.json, dict), "The body is not a JSON object.", exchange)


@check_row("schema.times", "Timestamps are in seconds and in order", f"{_SCHEMA}ResponseResource.created_at")
async def _times(server: VerifiedServer) -> None:
    """`created_at` and `completed_at` are Unix timestamps in seconds, in this order."""
    exchange = assume_ok(await server.memoized(samples.text))
    created, completed = exchange.response.get("created_at"), exchange.response.get("completed_at")
    if not isinstance(created, int | float) or not 1e9 < created < 1e11:
        raise Failed(f"created_at is {created!r}.", exchange)
    if exchange.response.get("status") == "completed" and isinstance(completed, int | float):
        require(int(completed) >= int(created), f"created_at is {created}, and completed_at {completed}.", exchange)
