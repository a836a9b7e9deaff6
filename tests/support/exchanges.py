"""ModelRequests with a given request body, and the deltas of their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from unittest.mock import ANY

from app.backends import OpenRequest
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.deltas import Delta
from app.core.types.request import CreateResponse


class Received:
    """Records an answer's lists of deltas."""

    paused = False
    over = False

    def __init__(self) -> None:
        self.begun = False
        self.taps: list[Any] = []
        self.lists: list[list[Delta]] = []
        self.news = asyncio.Event()

    def receive(self, deltas: Sequence[Delta]) -> bool:
        self.begun = True
        for tap in self.taps:
            tap(deltas)
        self.lists.append([*deltas])
        self.news.set()
        return True

    async def drain(self) -> None:
        pass


def asking(body: dict[str, Any], **fields: Any) -> ModelRequest:
    """Return a model request with this request, whatever the profile."""
    model = str(body.get("model", ""))
    request = CreateResponse(model=model or "m", input="Hi")
    encoded = EncodedRequest(body, {}, None, (), profile=ANY)
    return ModelRequest(request, request.items(), **{"model": model, "encoded": encoded, **fields})


async def reads(exchange: OpenRequest) -> AsyncIterator[list[Delta]]:
    """Yield the deltas of an entered exchange, one list per network read."""
    receiver = Received()
    receiving = asyncio.ensure_future(exchange.receive(receiver))
    receiving.add_done_callback(lambda _: receiver.news.set())
    try:
        while receiver.lists or not receiving.done():
            await receiver.news.wait()
            receiver.news.clear()
            while receiver.lists:
                yield receiver.lists.pop(0)
        await receiving
    finally:
        receiving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await receiving
