"""The time of shutdown: connections, background responses and batches share one grace period from its beginning."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

STATE_KEY = "stopping"  # in the state that uvicorn shares between the lifespan and the connections


class Shutdown:
    """Whether the server is stopping, and since when."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._requests = 0  # that are being answered
        self._answered = asyncio.Event()

    def request_begins(self) -> None:
        """Note that a request is being answered, until `request_ends`."""
        self._requests += 1

    def request_ends(self) -> None:
        """Note that a request has been answered, or cancelled."""
        self._requests -= 1
        self._answered.set()

    async def until_idle(self, seconds: float) -> None:
        """
        Wait until no request is being answered, or some seconds have passed.

        uvicorn does not wait for the requests that it cancels after the grace period, and these store their responses.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._requests:
                    self._answered.clear()
                    await self._answered.wait()

    def left(self, grace: float) -> float:
        """Return the seconds that are left of `grace`; all of them if the shutdown has not begun."""
        return grace if self._since is None else max(0.0, self._since + grace - time.monotonic())

    def has_begun(self) -> bool:
        """Return whether the server is stopping."""
        return self._since is not None

    def begin(self) -> None:
        """Record the time at which the shutdown begins; later calls have no effect."""
        self._since = time.monotonic() if self._since is None else self._since


def begin_shutdown(state: Mapping[str, Any]) -> None:
    """
    Begin the `Shutdown` of a shared state.

    uvicorn shuts down the connections before the lifespan, so they call this. Without connections, the grace period
    begins when the lifespan ends.
    """
    if stopping := state.get(STATE_KEY):
        stopping.begin()
