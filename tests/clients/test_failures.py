"""
Each client's error messages and retries.

docs/clients.md has the same tables.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.clients.answers import saying
from tests.clients.clients import CLIENTS, Driver
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, Upstream, chunk, sse, status


class Refusal(NamedTuple):
    """A backend error, and the expected status and text."""

    status_code: int
    error: dict[str, str]
    shown: int

    @property
    def words(self) -> str:
        return self.error["message"]

    def steps(self, **headers: str) -> list[Any]:
        return status(self.status_code, {"error": self.error}, headers)


def _refusal(status_code: int, code: str, message: str) -> Refusal:
    return Refusal(status_code, {"message": message, "type": "some_error", "code": code}, status_code)


REFUSALS = {
    "context": _refusal(400, "context_length_exceeded", "This model's maximum context length is 8192 tokens."),
    "model": _refusal(404, "model_not_found", "The model 'm' does not exist."),
    "rate": _refusal(429, "rate_limit_exceeded", "Slow down."),
    "broken": _refusal(500, "server_error", "The GPU is on fire.")._replace(shown=502),
}
BROKEN = {"error": {"message": "The GPU is on fire.", "type": "server_error"}}

# Clients with a single attempt by default.
IMPATIENT = {"litellm"}
# Version 1 of the AI SDK's `open-responses` has no place for words: it ends with the finish reason `error`.
SPEECHLESS = {"ai-sdk-6-open-responses"}


@pytest_asyncio.fixture
async def server(upstream: Upstream) -> AsyncIterator[str]:
    """An Antiphon with keys and without backend retries."""
    async with antiphon(backend_url=upstream.url, backend_retries=0, api_keys=["lab"]) as url:
        yield f"{url}/v1"


@pytest.fixture
def client(name: str, server: str, tmp_path: Path) -> Driver:
    return Driver(CLIENTS[name], server, tmp_path)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("failure", ["context", "model"])
async def test_client_shows_the_message_of_a_refusal(client: Driver, upstream: Upstream, failure: str) -> None:
    refusal = REFUSALS[failure]
    upstream.say(refusal.steps())
    failed = await client.fails("stream")
    assert refusal.words in failed["message"]
    assert failed["status"] == refusal.shown
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("name", CLIENTS)
async def test_client_with_an_unknown_key_gets_401(client: Driver, upstream: Upstream) -> None:
    failed = await client._replace(key="other").fails("text")
    assert "Incorrect API key provided." in failed["message"]
    assert failed["status"] == 401
    assert not upstream.requests


@pytest.mark.parametrize("name", [name for name in CLIENTS if name not in IMPATIENT])
@pytest.mark.parametrize("failure", ["rate", "broken"])
async def test_client_retries_a_failure_that_passes(client: Driver, upstream: Upstream, failure: str) -> None:
    upstream.say(REFUSALS[failure].steps(**({"Retry-After": "1"} if failure == "rate" else {})))
    upstream.say(saying("Hello."))
    assert (await client.shows("stream"))["text"] == "Hello."
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("name", sorted(IMPATIENT))
@pytest.mark.parametrize("failure", ["rate", "broken"])
async def test_client_that_does_not_retry_shows_the_failure(client: Driver, upstream: Upstream, failure: str) -> None:
    refusal = REFUSALS[failure]
    upstream.say(refusal.steps(**{"Retry-After": "1"}))
    failed = await client.fails("stream")
    assert (failed["status"], refusal.words in failed["message"]) == (refusal.shown, True)
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("name", CLIENTS)
async def test_client_does_not_take_a_broken_stream_for_an_answer(
    name: str, client: Driver, upstream: Upstream
) -> None:
    # After the first chunk: an earlier failure is an HTTP error.
    upstream.say(sse(chunk("Hel"), 0.3, BROKEN, CLOSE))
    failed = await client.fails("stream")
    assert ("finishReason: error" if name in SPEECHLESS else "The GPU is on fire.") in failed["message"]
    assert len(upstream.requests) == 1
