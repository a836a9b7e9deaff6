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
        self._trial: object | None = None  # the request that is the trial, if one is in flight

    @property
    def open(self) -> bool:
        """Whether the server gets no requests, except for a trial."""
        return self._until is not None

    @property
    def ready(self) -> bool:
        """Whether a request may be sent now."""
        return self._until is None or (self._trial is None and self._clock() >= self._until)

    @property
    def wait(self) -> float:
        """The seconds until a trial request is allowed; 0 if it is."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def sent(self, request: object) -> None:
        """Record that a request is sent: while the circuit is open, the first one is the trial."""
        if self.open and self._trial is None:
            self._trial = request

    def answered(self) -> None:
        """Record that the server has begun an answer, which may still fail."""
        if self.open:
            self._failures = self._limit - 1  # one more failure opens the circuit again
        self._until, self._trial = None, None

    def succeeded(self) -> None:
        """Record a complete answer, or a refusal that is the request's fault."""
        self._failures, self._until, self._trial = 0, None, None

    def failed(self) -> None:
        """Record that there was no answer, or that it broke off."""
        self._failures += 1
        if self._failures >= self._limit:
            self._until = self._clock() + self._pause

    def left(self, request: object) -> None:
        """Record that a request has ended, however: another trial is allowed if it was the trial."""
        if self._trial is request:
            self._trial = None

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
