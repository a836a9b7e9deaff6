from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)


async def cancel(*tasks: asyncio.Future[Any]) -> list[Exception]:
    """Cancel tasks, wait for their end, and return their exceptions."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result for result in results if isinstance(result, Exception)]


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, wait for their end, and log their exceptions."""
    for error in await cancel(*filter(None, tasks)):
        logger.error("unexpected error", exc_info=error)


async def let_others_run() -> None:
    """Let due callbacks run, also of sockets and timers: `sleep(0)` would resume before these are checked."""
    await asyncio.sleep(0.001)


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` can lose a cancellation, before Python 3.12
            await event.wait()
