"""Shared by response and file stores: database connections, object storage, URL options, outages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

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


def read_options(query: str, known: Mapping[str, Callable[[str], object]]) -> dict[str, Any]:
    """
    Parse a store URL's query with each option's function in `known`.

    Raises ValueError, without quoting values, which can be secret.
    """
    options = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise ValueError(
                f"The store URL has an unknown option '{name}'. Known options: {', '.join(sorted(known))}."
            )
        try:
            options[name] = known[name](value)
        except ValueError as error:
            raise ValueError(f"The store URL's option '{name}' is malformed: {error}.") from None
    return options


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError("expected a positive number of seconds")
    return number


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError("expected a positive whole number")
    return int(text)


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser for these words, in any case."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return read
