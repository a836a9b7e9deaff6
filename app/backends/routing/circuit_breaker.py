"""
Whether a server is worth asking: a circuit breaker.

It opens after some failures in a row. After a pause, or once the server answers a check, one request is let through; if
that is answered, others follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.errors import BackendError


class Circuit:
    """
    What is known of the health of one server.

    `most` is how many failures in a row open it, `pause` for how many seconds; `clock` is in seconds, too.
    """

    def __init__(self, most: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._pause = pause
        self._clock = clock
        self._failures = 0  # in a row
        self._until: float | None = None  # open; from then on, one may try
        self._trying = False

    @property
    def open(self) -> bool:
        """Whether the server is left alone, but for one request that tries it."""
        return self._until is not None

    @property
    def ready(self) -> bool:
        """Whether a request may be sent now."""
        return self._until is None or (not self._trying and self._clock() >= self._until)

    @property
    def wait(self) -> float:
        """Seconds until one may try."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    def asked(self) -> None:
        """A request is sent."""
        self._trying = self.open

    def answered(self) -> None:
        """The server has answered, even if that is a refusal; how the answer will end is not known yet."""
        if self.open:
            self._failures = self._most - 1  # one more, and it is left alone again
        self._until, self._trying = None, False

    def succeeded(self) -> None:
        """An answer has come to its end."""
        self._failures, self._until, self._trying = 0, None, False

    def failed(self) -> None:
        """There was no answer, or it broke off."""
        self._failures += 1
        if self._failures >= self._most:
            self._until = self._clock() + self._pause
        self._trying = False

    def given_up(self) -> None:
        """Whoever asked has gone before there was an answer."""
        self._trying = False

    def checked(self) -> None:
        """The server has answered a check: a request may try it."""
        if self._until is not None:
            self._until = self._clock()


def is_ill(error: BackendError) -> bool:
    """Tell if an error says something of its server's health, and not of the request or the model."""
    return error.status >= 500 and error.type != "model_error"


def is_for_another(error: BackendError) -> bool:
    """Tell if another server may answer where this one did not."""
    return is_ill(error) or error.status == 429
