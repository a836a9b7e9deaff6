"""Event writers for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from app.core.stream.event_batch import EventBatch
from app.core.types.request import Event


class RecordingWriter:
    """Records sent batches and calls a function for each."""

    paused = False

    def __init__(self, on_batch: Callable[[EventBatch], object] = lambda batch: None) -> None:
        self.batches: list[EventBatch] = []
        self._on_batch = on_batch

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events()]

    def send(self, events: EventBatch) -> RecordingWriter:
        self.batches.append(events)
        self._on_batch(events)
        return self

    async def drain(self) -> None:
        pass


class SlowWriter:
    """
    Pauses after each batch until it is requested, like a slow client's writer.

    `batches(generate)` runs `generate` in a task and yields its batches. Unrequested batches stay `waiting` after the
    iterator is closed.
    """

    def __init__(self) -> None:
        self.waiting: list[EventBatch] = []
        self._sent, self._resumed = asyncio.Event(), asyncio.Event()
        self.paused = False

    def send(self, events: EventBatch) -> SlowWriter:
        self.waiting.append(events)
        self.paused = True
        self._sent.set()
        return self

    async def drain(self) -> None:
        while self.paused:
            self._resumed.clear()
            await self._resumed.wait()

    async def batches(self, generate: Callable[[SlowWriter], object]) -> AsyncGenerator[EventBatch, None]:
        generating = asyncio.ensure_future(generate(self))  # type: ignore[call-overload]
        generating.add_done_callback(lambda _: self._sent.set())
        try:
            while self.waiting or not generating.done():
                await self._sent.wait()
                self._sent.clear()
                while self.waiting:
                    batch = self.waiting.pop(0)
                    self.paused = bool(self.waiting)
                    yield batch
                    self._resumed.set()
            await generating
        finally:
            generating.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await generating
