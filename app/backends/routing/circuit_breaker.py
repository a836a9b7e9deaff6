"""
Stops requests to a failing server.

After a pause, or a passed health check, a single trial request is allowed; its answer closes the circuit.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.errors import BackendError


class Circuit:
    """`limit` consecutive failures open the circuit for `pause` seconds."""

    def __init__(self, limit: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self._failures = 0  # consecutive
        self.open = False  # whether only a trial request is allowed
        self._until = 0.0  # while open: clock time from which a trial is allowed
        self._trial: object | None = None

    @property
    def ready(self) -> bool:
        """Whether a request is allowed now."""
        return not self.open or (self._trial is None and self._clock() >= self._until)

    @property
    def wait(self) -> float:
        """Seconds until a trial request is allowed."""
        return max(0.0, self._until - self._clock()) if self.open else 0.0

    def sent(self, request: object) -> None:
        """While the circuit is open, the first request is the trial."""
        if self.open and self._trial is None:
            self._trial = request

    def answered(self) -> None:
        """The answer has begun, but may still fail."""
        if self.open:
            self._failures = self._limit - 1  # one more failure opens the circuit again
        self.open, self._trial = False, None

    def succeeded(self) -> None:
        """The answer is complete, or the request caused an error."""
        self._failures, self.open, self._trial = 0, False, None

    def failed(self) -> None:
        """The answer is missing or interrupted."""
        self._failures += 1
        if self._failures >= self._limit:
            self.open, self._until = True, self._clock() + self._pause

    def released(self, request: object) -> None:
        """After a failed trial, allow another."""
        if self._trial is request:
            self._trial = None

    def checked(self) -> None:
        """A health check has passed: allow a trial."""
        if self.open:
            self._until = self._clock()


def is_server_failure(error: BackendError) -> bool:
    """Whether the server caused the error."""
    return error.status >= 500 and error.type != "model_error"


def may_fail_over(error: BackendError) -> bool:
    """Whether another server may succeed."""
    return is_server_failure(error) or error.status == 429
