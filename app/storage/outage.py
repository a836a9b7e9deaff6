"""Logs outages of a store, once each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.errors import APIError, StoreBusy, StoreUnavailable

logger = logging.getLogger(__name__)

_BUSY_INTERVAL = 10.0  # seconds between warnings that all connections are in use


class Outage:
    """
    The state of a store's outage, which is logged with one line at its start and one at its end.

    Callers of the API see only that the store is unavailable. The reason is for operators: it is in the log, and in a
    note on the exception, which `antiphon check` prints.
    """

    def __init__(
        self,
        store: str,
        error: Callable[[], APIError] = StoreUnavailable,
        busy: Callable[[], APIError] = StoreBusy,
    ) -> None:
        """
        `store` is its name for the log, without secrets.

        `error` creates the error that callers see, `busy` the one for calls that found no free connection.
        """
        self._store, self._error, self._busy = store, error, busy
        self._reason: str | None = None
        self._warned_at = -_BUSY_INTERVAL

    @property
    def lasts(self) -> bool:
        """Whether the last operation of the store failed."""
        return self._reason is not None

    def begins(self, reason: str) -> APIError:
        """Record a failure, and return the error to raise; `reason` must contain no secret and no record."""
        if self._reason is None:
            logger.warning("%s is unavailable: %s", self._store, reason)
        self._reason = reason
        error = self._error()
        error.add_note(f"{self._store}: {reason}")
        return error

    def busy(self, reason: str) -> APIError:
        """Return the error to raise for a call that found no free connection, which is not an outage by itself."""
        if self._reason is not None:
            return self.begins(self._reason)
        if (now := time.monotonic()) - self._warned_at >= _BUSY_INTERVAL:
            self._warned_at = now
            logger.warning("%s is busy: %s", self._store, reason)
        error = self._busy()
        error.add_note(f"{self._store}: {reason}")
        return error

    def ends(self) -> None:
        """Record a success."""
        if self._reason is not None:
            logger.info("%s is available again", self._store)
            self._reason = None
