"""Time that an event loop is blocked: by a callback, or by a thread with the GIL."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from tests.support.machine import slowness

HELD = 0.1  # seconds that others may wait, on an ordinary machine
_EVERY = 0.002  # seconds; Python threads keep the GIL for up to 5 ms anyway (sys.getswitchinterval)


class LoopHolds:
    """
    The `longest` time between two event loop timer ticks, in this process's CPU seconds.

    It is divided by this machine's present slowness. Other requests, such as `GET /healthz`, wait for this time. Wall
    time would include other processes.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        """Measure until cancelled."""
        last = time.process_time()
        while True:
            await asyncio.sleep(_EVERY)
            now = time.process_time()
            self.longest = max(self.longest, now - last)
            last = now


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopHolds]:
    """Measure how long the running event loop is held within the context."""
    holds = LoopHolds()
    watch = asyncio.ensure_future(holds.watch())
    await asyncio.sleep(0)
    try:
        yield holds
        await asyncio.sleep(2 * _EVERY)  # measures the end too
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
    holds.longest /= slowness()
