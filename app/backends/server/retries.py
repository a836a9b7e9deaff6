"""Explain failed connections to a backend, and wait before a retry."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from app.backends.server.errors.classification import failure
from app.core.request.model_request import Attempts
from app.errors import BackendError
from app.runtime.connect_errors import causes, why_unreachable

logger = logging.getLogger(__name__)


def unreachable(error: httpx.TransportError) -> BackendError:
    if isinstance(error, httpx.TimeoutException):
        unanswered = failure("timeout", "The backend does not accept connections.")
    elif isinstance(error, httpx.ConnectError):
        why = why_unreachable(error)
        unanswered = failure("failure", f"The backend cannot be reached{f': {why}' if why else ''}.")
    else:
        unanswered = failure("failure", "The backend closed the connection without an answer.")
    unanswered.retryable = True
    return unanswered


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except BackendError as error:
        explain(error, error.__cause__)
        raise


def explain(error: BackendError, cause: BaseException | None) -> None:
    """Add the operating system's message as a note, for operators; it never quotes the request."""
    messages = [str(each) for each in causes(cause) if isinstance(each, OSError | httpx.TransportError) and str(each)]
    if messages and messages[-1] not in getattr(error, "__notes__", ()):
        error.add_note(messages[-1])


_MAX_RETRY_WAIT = 3.0  # seconds; a longer `Retry-After` is returned to the caller
_BACKOFF, _BACKOFF_LIMIT = 0.5, 8.0  # seconds


class BackendRefusal(Exception):
    """A rejected request: the caller's `error`, and the HTTP status (0 without a response)."""

    def __init__(self, error: BackendError, *, status: int = 0) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status


class Retries:
    def __init__(self, server: str, limit: int, attempts: Attempts) -> None:
        self._server = server
        self._limit = limit
        self._attempt = 0
        self._attempts = attempts

    async def wait(self, error: BackendError, cause: BaseException | None = None) -> bool:
        """Back off; return False if the request must not be sent again."""
        seconds = self._delay(error) if error.retryable and self._attempt < self._limit else None
        if seconds is None:
            return False
        self._attempt += 1
        self._attempts.retries += 1
        explain(error, cause)
        extra = {"server": self._server, "reason": error.explanation, "delay": round(seconds, 1)}
        logger.info("backend request failed; retrying", extra=extra)
        await asyncio.sleep(seconds)
        return True

    def _delay(self, error: BackendError) -> float | None:
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= _MAX_RETRY_WAIT else None
        return float(min(_BACKOFF * 2**self._attempt, _BACKOFF_LIMIT) * random.uniform(0.75, 1))
