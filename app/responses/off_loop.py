"""Run long computations in a thread, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from app.core.bounded_json import LARGE

T = TypeVar("T")
P = ParamSpec("P")

MANY = 1000  # items and tools; a prompt of so many takes about ten milliseconds to translate

# One thread: concurrent large requests use no more CPU than one, and the event loop gets its share.
_thread = ThreadPoolExecutor(1, "antiphon-large-requests")


async def off_loop(large: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function: in a thread if the work is `large`, else directly."""
    if not large:
        return function(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_thread, lambda: function(*args, **kwargs))


def are_large(records: Iterable[bytes]) -> bool:
    """Return whether stored records are too large to be decoded in the event loop."""
    return sum(map(len, records)) > LARGE
