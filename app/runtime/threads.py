"""
Run the computations of large requests in a thread, to keep the event loop free.

`LARGE_REQUEST` is set where request bodies, stored records and cached conversations are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from app.core.bounded_json import LARGE, is_large
from app.runtime.process import return_free_memory

T = TypeVar("T")
P = ParamSpec("P")

LARGE_REQUEST: ContextVar[bool] = ContextVar("large_request", default=False)

# One thread: large requests never use more than one CPU.
_thread = ThreadPoolExecutor(1, "antiphon-large-requests")


async def run_in_thread_if_large(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    if LARGE_REQUEST.get():
        return await run_in_thread(function, *args, **kwargs)
    return function(*args, **kwargs)


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """For callers that check `LARGE_REQUEST` themselves."""

    def computed() -> T:
        return_free_memory()  # from earlier steps
        return function(*args, **kwargs)

    return await asyncio.get_running_loop().run_in_executor(_thread, computed)


def add_to_request(size: int) -> None:
    """Cached data above 1 MiB makes the current request large."""
    if size > LARGE:
        LARGE_REQUEST.set(True)


async def read_records(records: Collection[bytes], function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Large records make the current request large."""
    if is_large(*records):
        LARGE_REQUEST.set(True)
    return await run_in_thread_if_large(function, *args, **kwargs)
