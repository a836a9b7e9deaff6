"""Shared expectations, which raise `Failed` if violated, and checks with a single request."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.laws import STREAM_LAWS
from openresponses_verify.rows import CHECKS, Check, Failed, Inconclusive, need
from openresponses_verify.samples import input_tokens, spoken_in
from openresponses_verify.schema import SchemaIssue, schema_issues
from openresponses_verify.server import VerifiedServer

INVALID = (400, 422)  # malformed request
REFUSED = range(400, 500)  # client errors
NOT_FOUND = (404,)
NO_FAILURE = range(200, 500)  # success or a client error


def need_status(exchange: HTTPExchange, statuses: Container[int], what: str = "The request") -> None:
    """Require a complete answer with one of these statuses."""
    need(exchange.status in statuses and not exchange.error, f"{what} is answered with {exchange.outcome()}", exchange)


def need_unknown_previous(exchange: HTTPExchange) -> None:
    found = exchange.refusal.get("code")
    detail = f"The code is {found!r}: {exchange.outcome()}"
    need(found == "previous_response_not_found", detail, exchange, exchange.frames[-1:] or None)


def need_turn(exchange: HTTPExchange, what: str = "The turn") -> None:
    """Require a response to a WebSocket turn."""
    need(exchange.response, f"{what} is answered with {exchange.outcome()}", exchange, exchange.frames[-1:])


def need_laws(exchange: HTTPExchange, events: Iterable[dict[str, object]]) -> None:
    kept = list(events)
    for law in STREAM_LAWS:
        for breach in law.breaches(kept):
            raise Failed(f"{law.title}: {breach.message}", exchange)


def need_schema(
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


def need_longer(exchange: HTTPExchange, short: HTTPExchange, least: int, what: str) -> None:
    """Require at least `least` more input tokens than the short request, because of `what`."""
    found, alone = input_tokens(exchange), input_tokens(short)
    need(found >= alone + least, f"The input has {found} tokens, and {alone} without {what}.", exchange)


def need_order(rising: HTTPExchange, falling: HTTPExchange, texts: list[str]) -> None:
    """Require messages with these texts in `rising`, and the reverse in `falling`."""
    if not all(isinstance(identifier, str) for identifier in (*rising.listed_ids, *falling.listed_ids)):
        raise Inconclusive("The items of the list have no ids.", rising)
    found = [spoken_in(item) for item in rising.listed]
    need(rising.ok and len(found) == len(texts), f"The list has {len(found)} of {len(texts)} items.", rising)
    same = rising.listed_ids == falling.listed_ids
    need(not same, "The query `order=asc` is ignored: the list is the same without it.", rising)
    need((found[0], found[-1]) == (texts[0], texts[-1]), "With `order=asc`, the first item is not first.", rising)
    back = falling.listed_ids == rising.listed_ids[::-1]
    need(back, "Without `order`, the list is not the reverse of `order=asc`.", falling)


def request_row(row_id: str, title: str, law: str, source: str, statuses: Container[int], **fields: object) -> None:
    """Register a check with a single request and its valid statuses."""

    async def run(server: VerifiedServer) -> None:
        need_status(await server.respond(**{"max_output_tokens": 16, **fields}), statuses)

    CHECKS.append(Check(row_id, title, law, source, run))
