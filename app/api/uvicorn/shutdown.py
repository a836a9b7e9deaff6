"""Shutdown time: connections, background responses and batches share a single grace period."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

STATE_KEY = "stopping"  # in the state that uvicorn shares between lifespan and connections


class Shutdown:
    def __init__(self) -> None:
        self._since: float | None = None
        self._requests = 0  # in progress
        self._idle: asyncio.Event | None = None  # awaited by `until_idle`

    def request_begins(self) -> None:
        self._requests += 1

    def request_ends(self) -> None:
        self._requests -= 1
        if self._idle and not self._requests:
            self._idle.set()

    async def until_idle(self, seconds: float) -> None:
        """
        Wait up to `seconds` until no request is in progress.

        uvicorn does not wait for requests cancelled after the grace period, which still store their responses.
        """
        self._idle = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._requests:
                    self._idle.clear()
                    await self._idle.wait()

    def left(self, grace: float) -> float:
        """Remaining seconds of `grace`."""
        return grace if self._since is None else max(0.0, self._since + grace - time.monotonic())

    def has_begun(self) -> bool:
        return self._since is not None

    def begin(self) -> None:
        self._since = time.monotonic() if self._since is None else self._since


def begin_shutdown(state: Mapping[str, Any]) -> None:
    """uvicorn shuts down connections before the lifespan, so connections call this."""
    if stopping := state.get(STATE_KEY):
        stopping.begin()
