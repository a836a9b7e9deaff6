"""Run long computations in a thread, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from app.core.size import Size
from app.process import return_free_memory

T = TypeVar("T")
P = ParamSpec("P")

# One thread: concurrent large requests use no more CPU than one, and the event loop gets its share.
_thread = ThreadPoolExecutor(1, "antiphon-large-requests")


async def off_loop(size: Size, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function: in a thread if what it works on is large, else directly."""
    if not size.large:
        return function(*args, **kwargs)

    def computed() -> T:
        return_free_memory()  # of the steps before, for what this one takes
        return function(*args, **kwargs)

    return await asyncio.get_running_loop().run_in_executor(_thread, computed)
