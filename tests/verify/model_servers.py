"""
Rule-based model servers, one per API, as backends for verification.

To add an API, write an application that speaks it, and a row in `MODEL_SERVERS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from tests.conformance import upstream
from tests.support.serving import serving
from tests.support.sockets import listening
from tests.verify import gemini_server, messages_server


@contextlib.asynccontextmanager
async def chat() -> AsyncIterator[str]:
    """A Chat Completions server."""
    async with serving(upstream.app) as url:
        yield f"{url}/v1"


@contextlib.asynccontextmanager
async def responses() -> AsyncIterator[str]:
    """A Responses server: Antiphon itself, in front of the Chat Completions server."""
    async with chat() as url, listening(None, backend_url=url) as base:
        yield f"{base}/v1"


@contextlib.asynccontextmanager
async def messages() -> AsyncIterator[str]:
    """A Messages server."""
    async with serving(messages_server.app) as url:
        yield f"{url}/v1"


@contextlib.asynccontextmanager
async def gemini() -> AsyncIterator[str]:
    """A Gemini server."""
    async with serving(gemini_server.app) as url:
        yield f"{url}/v1"


class ModelServer(NamedTuple):
    """A server with one API: its context manager, which yields the base URL, and checks that it cannot pass."""

    serve: Callable[[], AbstractAsyncContextManager[str]]
    lacks: frozenset[str] = frozenset()


# By the names of `app.backends.apis.APIS`. Messages have no log probabilities, and no JSON without a schema, which the
# model is told to write. Gemini's calls are never truncated.
MODEL_SERVERS = {
    "chat": ModelServer(chat),
    "responses": ModelServer(responses),
    "messages": ModelServer(messages, frozenset({"items.logprobs", "structured.json-object"})),
    "gemini": ModelServer(gemini, frozenset({"limits.call-cut"})),
}
