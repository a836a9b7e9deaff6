"""Antiphon's event loop: a slower loop would distort the floor and the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:  # Windows has none
        return None
    return new_event_loop


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Like `asyncio.run`."""
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)
