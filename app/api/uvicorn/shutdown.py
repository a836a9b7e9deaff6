"""When the server was told to stop: all that has begun by then has the same time to come to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

STATE_KEY = "stopping"  # in the state that the lifespan and the connections share


class Shutdown:
    """Whether the server is stopping, and since when."""

    def __init__(self) -> None:
        self._since: float | None = None

    def left(self, grace: float) -> float:
        """Return how much there is left of `grace` seconds; all of them, where nobody has said that it stops."""
        return grace if self._since is None else max(0.0, self._since + grace - time.monotonic())

    def begin(self) -> None:
        """Say that it stops; the first to say so counts."""
        self._since = time.monotonic() if self._since is None else self._since


def begin_shutdown(state: Mapping[str, Any]) -> None:
    """
    Say that the server stops, to whoever shares this state.

    Connections hear of it first. Where there is none, nothing has been waited for when the lifespan hears of it.
    """
    if stopping := state.get(STATE_KEY):
        stopping.begin()
