"""Logs outages of a store, once each."""

from __future__ import annotations

import logging

from app.errors import StoreUnavailable

logger = logging.getLogger(__name__)


class Outage:
    """
    What the log hears of a store in trouble: one line when it begins, one when it is over.

    Callers of the API learn only that the store is unavailable. The reason is for the operator: it is in the
    log, and a note on the exception (`antiphon check` prints it).
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._reason: str | None = None

    @property
    def lasts(self) -> bool:
        """Whether the last operation of the store failed."""
        return self._reason is not None

    def begins(self, reason: str) -> StoreUnavailable:
        """Return what to raise; `reason` must hold no secret and no record."""
        if self._reason is None:
            logger.warning("%s is unavailable: %s", self._store, reason)
        self._reason = reason
        error = StoreUnavailable()
        error.add_note(f"{self._store}: {reason}")
        return error

    def ends(self) -> None:
        """The store has answered."""
        if self._reason is not None:
            logger.info("%s is available again", self._store)
            self._reason = None
