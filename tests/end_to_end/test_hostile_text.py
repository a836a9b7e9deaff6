"""No untrusted text takes longer to scan than other texts of its length."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from app.api.request_body import load_json
from app.backends.apis.filters import TextToolCallFilter
from app.backends.demo.schema_values import value_for
from app.backends.server.errors import scrubbed
from app.backends.server.errors.classification import classify
from app.core.dialects import dialect_of, needs_strings
from app.core.history.truncation import fitting_share
from app.core.http import retry_after
from app.core.redaction import Redactor
from app.core.request.grammar import lark_regex, pattern
from app.core.types.deltas import TextDelta
from app.errors import InvalidRequest
from tests.support.machine import slowness

LENGTH = 60_000  # characters: about the maximum of a request's head
TRIES = 5  # as the machine may become slower or faster between two measurements
TIMES = 10
LEAST = 0.003  # seconds on an ordinary machine; faster is fast enough


def full(text: str, end: str = "") -> str:
    """A text over and over, up to the length, with an end."""
    return (text * (LENGTH // len(text)))[: LENGTH - len(end)] + end


def matched(text: str) -> Any:
    """A value for a field with a pattern that backtracks on a near match."""
    return value_for({"type": "object", "properties": {"query": {"type": "string", "pattern": r"(a|a)*$"}}}, text)


def agent(text: str) -> Any:
    """Recognise a client by its user agent."""
    return dialect_of({"user-agent": text}), needs_strings({"user-agent": text})


def in_pieces(text: str) -> Any:
    """Scan a text in small pieces."""
    finder = TextToolCallFilter({})
    return [finder.feed([TextDelta([text[at : at + 4]])]) for at in range(0, len(text), 4)], finder.end()


ROWS: dict[str, tuple[Callable[[str], Any], str]] = {
    "logs: heads of web tokens": (Redactor(), full("eyJ-")),
    "logs: bearers of nothing": (Redactor(), full("Bearer ", " ")),
    "logs: the word and spaces": (Redactor(), "api_key" + full(" ")),
    "logs: the word and quotation marks": (Redactor(), "api_key" + full('"')),
    "logs: URLs": (Redactor(), full("://a:")),
    "logs: URLs with long passwords": (Redactor(), "://a:" + full("b:")),
    "logs: keys that are too short": (Redactor(), full("sk-a ")),
    "grammar: blank lines": (lark_regex, full("\n")),
    "grammar: blank lines, and then no alternative": (lark_regex, "start: /a/" + full("\n ", "b")),
    "grammar: a string without an end": (lark_regex, '"' + full("\\a")),
    "grammar: a long number": (lambda text: pattern("lark", f'start: "a" ~ {text}'), full("9")),
    "grammar: a regular expression": (lambda text: pattern("regex", text), full("(a|b)")),
    "truncation: a long number": (fitting_share, "limit " + full("9")),
    "truncation: limits without numbers": (fitting_share, full("limit ")),
    "dialects: the name of a client over and over": (agent, full("codex")),
    "dialects: the name of a client and no version": (agent, full("codex0")),
    "dialects: the beginning of a name": (agent, full("ai")),
    "dialects: a name without its end": (agent, full("ai-sdk")),
    "body: backslashes": (lambda text: load_json(text, "body"), full("\\")),
    "body: halves of characters": (lambda text: load_json(text, "body"), full("\\ud83d")),
    "body: escapes": (lambda text: load_json(text, "body"), full("\\n")),
    "body: escapes, and half a character": (lambda text: load_json(text, "body"), '{"a": "' + full("\\n", '\\ud83d"}')),
    "body: escapes, and no end": (lambda text: load_json(text, "body"), '{"a": "' + full("\\n")),
    "demo: a number in place of a sum": (lambda text: value_for({"properties": {"expr": {}}}, text), full("1")),
    "demo: calls of print": (lambda text: value_for({"properties": {"code": {}}}, text), full("print(")),
    "demo: quoted code": (lambda text: value_for({"properties": {"code": {}}}, text), full("```a")),
    "demo: a sum as code": (lambda text: value_for({"properties": {"code": {}}}, text), full("1+")),
    "demo: names": (lambda text: value_for({"properties": {"name": {}}}, text), full("Aa A, ")),
    "errors: blank lines": (scrubbed, full("\n")),
    "errors: heads of web tokens": (scrubbed, full("eyJ-")),
    "errors: what a 404 may consist of": (lambda text: classify(404, message=text), full("not_found", "!x")),
    "retry-after: the words and no number": (lambda text: retry_after({}, text), full("retry in 9")),
    "retry-after: a long number": (lambda text: retry_after({}, text), "retry in " + full("9")),
    "retry-after: a header's name over and over": (lambda text: retry_after({}, text), '"' + full("ratelimit-")),
    "call marks: one that is never closed": (in_pieces, "<tool_call>" + full("word ")),
    "demo: a pattern of the caller's": (matched, full("a", "!")),
}


def took(function: Callable[[str], Any], text: str) -> float:
    """The minimum of three runs, in CPU seconds of this thread; errors about the text are allowed."""
    times = []
    for _ in range(3):
        began = time.thread_time()
        with suppress(ValueError, InvalidRequest):
            function(text)
        times.append(time.thread_time() - began)
    return min(times)


@pytest.mark.parametrize("row", ROWS)
def test_hostile_text_takes_no_longer_than_a_plain_one(row: str) -> None:
    function, hostile = ROWS[row]

    def takes_long() -> bool:
        return took(function, hostile) > TIMES * max(LEAST * slowness(), took(function, full("word ")))

    assert not all(takes_long() for _ in range(TRIES))
