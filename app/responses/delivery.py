"""Delivery of a response's events: SSE, WebSocket frames, a log, or none."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from app.core.stream.event_batch import EventBatch


class EventWriter(Protocol):
    """
    Sends events, with backpressure in asyncio's terms.

    `send` never waits. While `paused`, callers await `drain`, and the backend is not read.
    """

    @property
    def paused(self) -> bool: ...

    def send(self, events: EventBatch) -> None: ...

    async def drain(self) -> None: ...


class _NoDelivery:
    paused = False

    def send(self, events: EventBatch) -> None:
        """Drop the events."""

    async def drain(self) -> None:
        """Return immediately."""


NO_DELIVERY = _NoDelivery()  # when only the response's end matters


_MOST_UNSENT = 1024 * 1024  # characters of deltas
_FRAME = 200  # characters per delta event, without its text


class Outbox:
    """
    A buffer between a run and the sending task; it combines unsent events, and pauses above `_MOST_UNSENT` characters
    of deltas.
    """

    def __init__(self) -> None:
        self.paused = False
        self._batches: deque[EventBatch] = deque()
        self._size = 0  # characters of delta events
        self._arrived = asyncio.Event()
        self._resumed = asyncio.Event()

    def send(self, events: EventBatch) -> None:
        if self._batches:
            self._batches[-1].add(events)
        else:
            self._batches.append(events)
        for entry in events:
            if isinstance(entry, tuple):
                self._size += sum(map(len, entry[2])) + _FRAME * len(entry[2])
        self.paused = self._size > _MOST_UNSENT
        self._arrived.set()

    async def drain(self) -> None:
        while self.paused:
            self._resumed.clear()
            await self._resumed.wait()

    def close(self) -> None:
        """Wake the waiting task: no more events follow."""
        self._arrived.set()

    def __bool__(self) -> bool:
        return bool(self._batches)

    async def wait(self) -> None:
        if not self._batches:
            await self._arrived.wait()
            self._arrived.clear()

    def pop(self) -> EventBatch:
        events = self._batches.popleft()
        if not self._batches:
            self._size, self.paused = 0, False
            self._resumed.set()
        return events
