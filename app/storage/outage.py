from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.errors import APIError, StoreBusy, StoreUnavailable

logger = logging.getLogger(__name__)

_BUSY_INTERVAL = 10.0  # seconds between warnings


class Outage:
    """
    A store's outage, logged at its start and end.

    API callers only see that the store is unavailable. The log contains the reason; so does a note on the exception,
    which `antiphon check` prints.
    """

    def __init__(
        self,
        store: str,
        error: Callable[[], APIError] = StoreUnavailable,
        busy: Callable[[], APIError] = StoreBusy,
    ) -> None:
        """
        `store` is the name in logs, without secrets. `busy` creates the error for calls without a free connection.
        """
        self._store, self._error, self._busy = store, error, busy
        self._reason: str | None = None
        self._warned_at = -_BUSY_INTERVAL

    @property
    def lasts(self) -> bool:
        return self._reason is not None

    def begins(self, reason: str) -> APIError:
        """Return the error to raise; `reason` must not contain secrets or records."""
        if self._reason is None:
            logger.warning("store unavailable", extra={"store": self._store, "reason": reason})
        self._reason = reason
        error = self._error()
        error.add_note(f"{self._store}: {reason}")
        return error

    def busy(self, reason: str) -> APIError:
        """A call without a free connection is not an outage by itself."""
        if self._reason is not None:
            return self.begins(self._reason)
        if (now := time.monotonic()) - self._warned_at >= _BUSY_INTERVAL:
            self._warned_at = now
            logger.warning("store busy", extra={"store": self._store, "reason": reason})
        error = self._busy()
        error.add_note(f"{self._store}: {reason}")
        return error

    def ends(self) -> None:
        if self._reason is not None:
            logger.info("store recovered", extra={"store": self._store})
            self._reason = None
