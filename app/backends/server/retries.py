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
from app.runtime.outbound import causes, why_unreachable

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
        explain(error)
        raise


def explain(error: BackendError) -> None:
    """Add the operating system's message as a note, for operators; it never quotes the request."""
    found = [each for each in causes(error.__cause__) if isinstance(each, OSError | httpx.TransportError)]
    messages = [message for each in found if (message := str(each))]
    if messages and messages[-1] not in getattr(error, "__notes__", ()):
        error.add_note(messages[-1])


_MAX_RETRY_WAIT = 3.0  # seconds; a longer `Retry-After` is returned to the caller
_BACKOFF, _BACKOFF_LIMIT = 0.5, 8.0  # seconds


class Retries:
    def __init__(self, server: str, limit: int, attempts: Attempts) -> None:
        self._server = server
        self._limit = limit
        self._attempt = 0
        self._attempts = attempts

    async def wait(self, error: BackendError) -> bool:
        """Back off; return False if the request must not be sent again."""
        if not error.retryable or self._attempt >= self._limit:
            return False
        seconds = error.retry_after
        if seconds is None:
            seconds = min(_BACKOFF * 2**self._attempt, _BACKOFF_LIMIT) * random.uniform(0.75, 1)
        elif seconds > _MAX_RETRY_WAIT:
            return False
        self._attempt += 1
        self._attempts.retries += 1
        explain(error)
        extra = {"server": self._server, "reason": error.explanation, "delay": round(seconds, 1)}
        logger.info("backend request failed; retrying", extra=extra)
        await asyncio.sleep(seconds)
        return True
