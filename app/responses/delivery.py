"""Delivers a response's events: as server-sent events, WebSocket frames, a log, or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from app.core.stream.event_batch import DeltaEvents, EventBatch


class EventWriter(Protocol):
    """
    Sends a response's events, with backpressure in asyncio's terms.

    `send` never waits. After it, a `paused` writer must be awaited with `drain`; meanwhile the backend is not read.
    """

    @property
    def paused(self) -> bool:
        """Whether events are waiting for the client."""
        ...

    def send(self, events: EventBatch) -> EventWriter:
        """Send events; return the writer for the next ones, usually this one."""
        ...

    async def drain(self) -> None:
        """Wait until the writer resumes."""
        ...


class NoDelivery:
    """Drops the events, if only the end of a response matters."""

    paused = False

    def send(self, events: EventBatch) -> NoDelivery:
        return self

    async def drain(self) -> None:
        """Return immediately."""


_MOST_UNSENT = 1024 * 1024  # characters of delta events
_FRAME = 200  # characters in a delta event besides its text


def _weight(run: DeltaEvents) -> int:
    """Estimate the characters of encoded delta events."""
    return sum(map(len, run[2])) + _FRAME * len(run[2])


class Outbox:
    """
    A buffer of events between a run and the task that sends them; unsent events are one batch.

    It is paused while it contains more than `_MOST_UNSENT` characters of deltas.
    """

    def __init__(self) -> None:
        self.paused = False
        self._batches: deque[EventBatch] = deque()
        self._size = 0  # characters of delta events
        self._arrived = asyncio.Event()
        self._resumed = asyncio.Event()

    def send(self, events: EventBatch) -> Outbox:
        if self._batches:
            self._batches[-1].extend(events)
        else:
            self._batches.append(events)
        self._size += sum(_weight(entry) for entry in events.entries if isinstance(entry, tuple))
        self.paused = self._size > _MOST_UNSENT
        self._arrived.set()
        return self

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
        """Wait for events or `close`."""
        if not self._batches:
            await self._arrived.wait()
            self._arrived.clear()

    def pop(self) -> EventBatch:
        """Return the next batch."""
        events = self._batches.popleft()
        if not self._batches:
            self._size, self.paused = 0, False
            self._resumed.set()
        return events
