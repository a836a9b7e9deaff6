"""Log records in tests."""

from __future__ import annotations

import logging

import pytest


def records_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    """
    Return the records of a logger and its children.

    `caplog` contains records from every thread: an exporter started by an earlier test can log at any time.
    """
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{logger}.")]


def all_text(caplog: pytest.LogCaptureFixture) -> str:
    """Return all messages, tracebacks and fields, in which a secret must not occur."""
    return caplog.text + repr([record.__dict__ for record in caplog.records])
