"""Time that an event loop is held: by a callback, or by a thread with the GIL."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from tests.support.machine import slowness

HELD = 0.1  # seconds of an ordinary machine that others may have to wait
_EVERY = 0.002  # seconds; a thread that runs Python keeps the GIL for up to 5 ms by itself (sys.getswitchinterval)


class LoopHolds:
    """
    The `longest` time between two turns of a timer in the event loop, in seconds of this process's CPU.

    It is divided by how slow this machine is as the watch ends, compared with an ordinary one.

    Other requests, such as `GET /healthz`, wait for so long. The wall time would count other processes too.
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
