"""Ends tasks of asyncio."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel(*tasks: asyncio.Future[Any]) -> list[Exception]:
    """Cancel tasks and wait until they have ended; return the exceptions that they raised."""
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [result for result in results if isinstance(result, Exception)]
