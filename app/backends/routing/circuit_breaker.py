"""
A circuit breaker: it stops requests to a server that keeps failing.

It opens after a number of consecutive failures. After a pause, or once the server passes a health check, one trial
request is allowed; if the server answers it, the circuit closes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.errors import BackendError


class Circuit:
    """
    The circuit breaker of one server.

    `limit` is the number of consecutive failures that open it, `pause` the seconds for which it then stays open, and
    `clock` returns a time in seconds.
    """

    def __init__(self, limit: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self._failures = 0  # in a row
        self._until: float | None = None  # while open: when a trial request is allowed, in clock time
        self._trying = False  # whether a trial request is under way

    @property
    def open(self) -> bool:
        """Whether the server gets no requests, except for a trial."""
        return self._until is not None

    @property
    def ready(self) -> bool:
        """Whether a request may be sent now."""
        return self._until is None or (not self._trying and self._clock() >= self._until)

    @property
    def wait(self) -> float:
        """The seconds until a trial request is allowed; 0 if it is."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def sent(self) -> None:
        """Record that a request is sent."""
        self._trying = self.open

    def answered(self) -> None:
        """Record that the server has begun an answer, which may still fail."""
        if self.open:
            self._failures = self._limit - 1  # one more failure opens the circuit again
        self._until, self._trying = None, False

    def succeeded(self) -> None:
        """Record a complete answer, or a refusal that is the request's fault."""
        self._failures, self._until, self._trying = 0, None, False

    def failed(self) -> None:
        """Record that there was no answer, or that it broke off."""
        self._failures += 1
        if self._failures >= self._limit:
            self._until = self._clock() + self._pause
        self._trying = False

    def cancelled(self) -> None:
        """Record that a request was cancelled before the server answered."""
        self._trying = False

    def checked(self) -> None:
        """Record that the server passed a health check: a trial request is allowed now."""
        if self._until is not None:
            self._until = self._clock()


def is_server_failure(error: BackendError) -> bool:
    """Return whether an error is the server's fault, and not that of the request or the model."""
    return error.status >= 500 and error.type != "model_error"


def may_fail_over(error: BackendError) -> bool:
    """Return whether another server may succeed where this one failed."""
    return is_server_failure(error) or error.status == 429
