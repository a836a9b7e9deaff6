"""What a test finds in the log."""

from __future__ import annotations

import logging

import pytest


def records_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    """
    Return the records of a logger and of those below it.

    `caplog` has those of every thread of the process: an exporter that an earlier test has started may log at any time.
    """
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{logger}.")]
