"""How the events of a response leave: as server-sent events, WebSocket frames or a log, or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from app.core.stream.event_batch import DeltaEvents, EventBatch


class EventWriter(Protocol):
    """
    Takes the events of a response as they are made.

    `send` never waits. While it is `full`, the backend's answer is not read, except for what has arrived already.
    """

    @property
    def full(self) -> bool:
        """Whether events are waiting for the client."""
        ...

    def send(self, events: EventBatch) -> EventWriter:
        """Take the next events; return the writer of those after them, usually this one."""
        ...

    async def ready(self) -> None:
        """Wait until it is not full."""
        ...


class NoDelivery:
    """For responses whose events nobody wants, only their end."""

    full = False

    def send(self, events: EventBatch) -> NoDelivery:
        """Drop the events."""
        return self

    async def ready(self) -> None:
        """Return."""


_MOST_UNSENT = 1024 * 1024  # characters of delta events
_FRAME = 200  # characters of a delta event besides its text


def _weight(run: DeltaEvents) -> int:
    """Return about how many characters delta events have when they are encoded."""
    return sum(map(len, run[2])) + _FRAME * len(run[2])


class Outbox:
    """
    A delivery whose events a task takes when it has time, batch by batch; what came meanwhile is one batch.

    It is full while more than `_MOST_UNSENT` characters of deltas wait.
    """

    def __init__(self) -> None:
        self.full = False
        self._batches: deque[EventBatch] = deque()
        self._size = 0  # characters of delta events
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()

    def send(self, events: EventBatch) -> Outbox:
        if self._batches:
            self._batches[-1].extend(events)
        else:
            self._batches.append(events)
        self._size += sum(_weight(entry) for entry in events.entries if isinstance(entry, tuple))
        self.full = self._size > _MOST_UNSENT
        self._has_news.set()
        return self

    async def ready(self) -> None:
        while self.full:
            self._has_room.clear()
            await self._has_room.wait()

    def close(self) -> None:
        """Wake the task that waits for events: there are no more."""
        self._has_news.set()

    def __bool__(self) -> bool:
        return bool(self._batches)

    async def wait(self) -> None:
        """Wait until there are events, or `close` is called."""
        if not self._batches:
            await self._has_news.wait()
            self._has_news.clear()

    def take(self) -> EventBatch:
        """Return the next batch."""
        events = self._batches.popleft()
        if not self._batches:
            self._size, self.full = 0, False
            self._has_room.set()
        return events
