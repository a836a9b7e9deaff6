"""
Model servers that answer by rules, one for each API: what Antiphon is verified in front of.

To add an API, write an application that speaks it, and a row of `MODEL_SERVERS`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from tests.conformance import upstream
from tests.support.serving import serving
from tests.support.sockets import listening


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


# By the names of `app.backends.apis.APIS`: each serves one, and gives its base URL.
MODEL_SERVERS: dict[str, Callable[[], AbstractAsyncContextManager[str]]] = {"chat": chat, "responses": responses}
