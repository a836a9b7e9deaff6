"""Shared expectations, which raise `Failed` if violated, and checks with a single request."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.laws import STREAM_LAWS
from openresponses_verify.rows import CHECKS, Check, Failed, Inconclusive, require
from openresponses_verify.samples import input_tokens, message_text
from openresponses_verify.schema import SchemaIssue, schema_issues
from openresponses_verify.server import VerifiedServer

INVALID = (400, 422)  # malformed request
REFUSED = range(400, 500)  # client errors
NOT_FOUND = (404,)
NO_FAILURE = range(200, 500)  # success or a client error


def require_status(exchange: HTTPExchange, statuses: Container[int], subject: str = "The request") -> None:
    """Require a complete answer with one of these statuses."""
    require(
        exchange.status in statuses and not exchange.error, f"{subject} is answered with {exchange.outcome()}", exchange
    )


def require_unknown_previous(exchange: HTTPExchange) -> None:
    found = exchange.refusal.get("code")
    detail = f"The code is {found!r}: {exchange.outcome()}"
    require(found == "previous_response_not_found", detail, exchange, exchange.frames[-1:] or None)


def require_turn(exchange: HTTPExchange, subject: str = "The turn") -> None:
    """Require a response to a WebSocket turn."""
    require(exchange.response, f"{subject} is answered with {exchange.outcome()}", exchange, exchange.frames[-1:])


def require_laws(exchange: HTTPExchange, events: Iterable[dict[str, object]]) -> None:
    event_list = list(events)
    for law in STREAM_LAWS:
        for breach in law.breaches(event_list):
            raise Failed(f"{law.title}: {breach.message}", exchange)


def require_schema(
    name: str,
    value: object,
    exchange: HTTPExchange,
    shown: object = None,
    but: Callable[[SchemaIssue], bool] = lambda issue: False,
    prefix: str = "",
) -> None:
    """Require a valid value, except for unknown union types and issues matched by `but`."""
    for issue in schema_issues(name, value):
        if issue.kind != "unknown" and not but(issue):
            raise Failed(f"{prefix}{issue.where} {issue.message}.", exchange, shown)


def require_more_input_tokens(exchange: HTTPExchange, short: HTTPExchange, least: int, subject: str) -> None:
    """Require at least `least` more input tokens than the short request, because of `subject`."""
    found, alone = input_tokens(exchange), input_tokens(short)
    require(found >= alone + least, f"The input has {found} tokens, and {alone} without {subject}.", exchange)


def require_order(rising: HTTPExchange, falling: HTTPExchange, texts: list[str]) -> None:
    """Require messages with these texts in `rising`, and the reverse in `falling`."""
    if not all(isinstance(identifier, str) for identifier in (*rising.listed_ids, *falling.listed_ids)):
        raise Inconclusive("The items of the list have no ids.", rising)
    found = [message_text(item) for item in rising.listed]
    require(rising.ok and len(found) == len(texts), f"The list has {len(found)} of {len(texts)} items.", rising)
    same = rising.listed_ids == falling.listed_ids
    require(not same, "The query `order=asc` is ignored: the list is the same without it.", rising)
    require((found[0], found[-1]) == (texts[0], texts[-1]), "With `order=asc`, the first item is not first.", rising)
    back = falling.listed_ids == rising.listed_ids[::-1]
    require(back, "Without `order`, the list is not the reverse of `order=asc`.", falling)


def request_row(row_id: str, title: str, law: str, source: str, statuses: Container[int], **fields: object) -> None:
    """Register a check with a single request and its valid statuses."""

    async def run(server: VerifiedServer) -> None:
        require_status(await server.respond(**{"max_output_tokens": 16, **fields}), statuses)

    CHECKS.append(Check(row_id, title, law, source, run))
