"""Work that would hold the event loop up: it is done in a thread, so that others are answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

MANY = 1000  # items and tools, for which to make a prompt takes some ten milliseconds

# One thread: many large requests at once take no more of the machine than one, and the event loop has its turns.
_thread = ThreadPoolExecutor(1, "antiphon-large-requests")


async def off_loop(large: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function: at once where it has little to do, and in a thread where that is `large`."""
    if not large:
        return function(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_thread, lambda: function(*args, **kwargs))
