"""Codex's error messages, and its retries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.answers import saying
from tests.clients.codex.program import Codex, agent_messages, troubles
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, DONE, Upstream, chunk, finish, sse, status, usage

TOO_LONG = {
    "error": {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"}
}
UNKNOWN = {"error": {"message": "The model 'm' does not exist.", "code": "model_not_found"}}
SLOW = {"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}
BROKEN = {"error": {"message": "The GPU is on fire.", "type": "server_error"}}

# Codex's default retries take minutes.
HASTY = ("model_providers.lab.request_max_retries=1", "model_providers.lab.stream_max_retries=1")


@pytest_asyncio.fixture
async def server(upstream: Upstream) -> AsyncIterator[str]:
    """An Antiphon with keys and without backend retries."""
    async with antiphon(backend_url=upstream.url, backend_retries=0, api_keys=["lab"]) as url:
        yield f"{url}/v1"


async def test_codex_at_a_429_waits(codex: Codex, upstream: Upstream) -> None:
    upstream.say(status(429, SLOW, {"Retry-After": "1"}))
    upstream.say(saying("Hello."))
    assert agent_messages(await codex.exec("Say hello.")) == ["Hello."]
    assert len(upstream.requests) == 2


async def test_codex_at_a_429_without_retry_after_waits(codex: Codex, upstream: Upstream) -> None:
    upstream.say(status(429, SLOW))
    upstream.say(saying("Hello."))
    assert agent_messages(await codex.exec("Say hello.")) == ["Hello."]
    assert len(upstream.requests) == 2


async def test_codex_at_a_429_within_a_session_waits(codex: Codex, upstream: Upstream) -> None:
    slow = {"error": {"message": "Rate limit reached. Please try again in 1.5s.", "code": "rate_limit_exceeded"}}
    upstream.say(sse(chunk("Hel"), 0.3, slow, CLOSE))
    upstream.say(saying("Hello."))
    ended = await codex.exec("Say hello.")
    assert agent_messages(ended)[-1] == "Hello."
    assert any("Rate limit reached." in trouble for trouble in troubles(ended))
    assert len(upstream.requests) == 2


async def test_codex_at_insufficient_quota_does_not_retry(codex: Codex, upstream: Upstream) -> None:
    error = {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
    upstream.always(status(429, {"error": error}))
    ended = await codex.exec("Say hello.")
    assert ended.code == 1
    assert "Quota exceeded" in troubles(ended)[-1]
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [status(400, TOO_LONG), sse(chunk("Hel"), 0.3, TOO_LONG, CLOSE)],
    ids=["at once", "in the middle"],
)
async def test_codex_at_a_full_context_window_reports_it(codex: Codex, upstream: Upstream, answer: list[Any]) -> None:
    upstream.say(answer)
    ended = await codex.exec("Say hello.")
    assert ended.code == 1
    assert "ran out of room in the model's context window" in troubles(ended)[-1]
    assert len(upstream.requests) == 1


async def test_codex_at_an_incomplete_answer_reports_it(codex: Codex, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), finish("length"), usage(), DONE))
    ended = await codex.exec("Say hello.")
    assert ended.code == 1
    assert "max_output_tokens" in troubles(ended)[-1]
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("code", "words", "tries"), [(500, "The GPU is on fire.", 4), (503, "Selected model is at capacity.", 2)]
)
async def test_codex_at_a_backend_that_does_not_recover_gives_up(
    codex: Codex, upstream: Upstream, code: int, words: str, tries: int
) -> None:
    upstream.always(status(code, BROKEN))
    ended = await codex.exec("Say hello.", *HASTY)
    assert ended.code == 1
    assert words in troubles(ended)[-1]
    assert len(upstream.requests) == tries


@pytest.mark.parametrize(
    ("key", "words"), [("lab", "The model 'm' does not exist."), ("other", "Incorrect API key provided.")]
)
async def test_codex_at_a_refusal_shows_its_message(codex: Codex, upstream: Upstream, key: str, words: str) -> None:
    upstream.always(status(404, UNKNOWN))
    ended = await codex.exec("Say hello.", *HASTY, key=key)
    assert ended.code == 1
    assert words in troubles(ended)[-1]


async def test_codex_at_a_stream_that_breaks_off_retries(codex: Codex, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), 0.3, BROKEN, CLOSE))
    upstream.say(saying("Hello."))
    ended = await codex.exec("Say hello.")
    assert agent_messages(ended)[-1] == "Hello."
    assert any("The GPU is on fire." in trouble for trouble in troubles(ended))
    assert len(upstream.requests) == 2
