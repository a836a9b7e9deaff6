"""Routers before real sockets, and short ways to ask them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from app.backends.routing.router import Router
from app.backends.server.client import ModelServer
from app.core.request.model_request import ModelRequest
from app.errors import BackendError
from app.settings import BackendSettings
from tests.support.build import texts_of
from tests.support.exchanges import asking, reads
from tests.support.ports import free_port
from tests.support.upstream import DONE as END
from tests.support.upstream import Upstream, chunk, finish, sse, status

Build = Callable[..., Router]
HELLO = sse(chunk("Hel"), chunk("lo"), finish(), END)
DOWN = status(500, {"error": {"message": "Oh no."}})


def settings(**backends: Any) -> dict[str, BackendSettings]:
    """The settings of some backends by name; they ask once, unless they say otherwise."""
    return {name: BackendSettings(**{"retries": 0, **options}) for name, options in backends.items()}


@pytest_asyncio.fixture
async def build() -> AsyncIterator[Build]:
    """Build a router from backend settings."""
    built = []

    def one(**backends: Any) -> Router:
        built.append(Router(settings(**backends), ModelServer.from_settings))
        return built[-1]

    yield one
    for router in built:
        await router.aclose()


@pytest_asyncio.fixture
async def three() -> AsyncIterator[list[Upstream]]:
    """Three servers that answer hello."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Upstream()) for _ in range(3)]
        for server in servers:
            server.always(HELLO)
        yield servers


def nobody() -> str:
    """A URL where nobody listens."""
    return f"http://127.0.0.1:{free_port()}/v1"


def model_request(model: str = "m", conversation: str = "", *, body_model: str = "", **fields: Any) -> ModelRequest:
    """A model request in a conversation; the user's text is the conversation's name."""
    messages = [{"role": "user", "content": conversation or "Hi"}]
    body = {"model": body_model or model, "messages": messages, "stream": True}
    return asking(body, conversation=lambda: conversation, model=model, **fields)


async def ask(router: Router, model: str = "m", conversation: str = "", **fields: Any) -> str:
    """Return the model's whole text."""
    async with router.open(model_request(model, conversation, **fields)) as answer:
        return "".join([text async for deltas in reads(answer) for text in texts_of(deltas)])


async def refusal(router: Router, model: str = "m", **fields: Any) -> BackendError:
    """Return the error instead of an answer."""
    with pytest.raises(BackendError) as caught:
        await ask(router, model, **fields)
    return caught.value
