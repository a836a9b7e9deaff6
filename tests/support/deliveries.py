"""Where the events of a response go in tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from app.core.stream.event_batch import EventBatch
from app.core.types.request import Event


class Kept:
    """Keeps the batches that are sent, and calls a function for each."""

    paused = False

    def __init__(self, on_batch: Callable[[EventBatch], object] = lambda batch: None) -> None:
        self.batches: list[EventBatch] = []
        self._on_batch = on_batch

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    def send(self, events: EventBatch) -> Kept:
        self.batches.append(events)
        self._on_batch(events)
        return self

    async def drain(self) -> None:
        pass


class Taken:
    """
    Hands its batches out one by one, and is full in between, like a slow client.

    `batches(generate)` yields them while the delivering function `generate` runs in a task. Batches without a reader
    are still `waiting` when the iterator is closed.
    """

    def __init__(self) -> None:
        self.waiting: list[EventBatch] = []
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self.paused = False

    def send(self, events: EventBatch) -> Taken:
        self.waiting.append(events)
        self.paused = True
        self._news.set()
        return self

    async def drain(self) -> None:
        while self.paused:
            self._room.clear()
            await self._room.wait()

    async def batches(self, generate: Callable[[Taken], object]) -> AsyncGenerator[EventBatch, None]:
        making = asyncio.ensure_future(generate(self))  # type: ignore[call-overload]
        making.add_done_callback(lambda _: self._news.set())
        try:
            while self.waiting or not making.done():
                await self._news.wait()
                self._news.clear()
                while self.waiting:
                    batch = self.waiting.pop(0)
                    self.paused = bool(self.waiting)
                    yield batch
                    self._room.set()
            await making
        finally:
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await making
