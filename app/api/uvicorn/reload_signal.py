"""Reloads the settings on SIGHUP, and reports the result to `antiphon reload`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.settings.loading import RELOADS_DIRECTORY, environment
from app.settings.reloading import ReloadReport

logger = logging.getLogger(__name__)


@contextmanager
def reload_on_sighup(reload: Callable[[], ReloadReport]) -> Iterator[None]:
    """Handle SIGHUP if the system has it and this is the main thread."""
    directory = environment().get(RELOADS_DIRECTORY)

    def write(report: ReloadReport) -> None:
        if directory:
            try:
                report.write(Path(directory))
            except OSError as error:
                logger.warning("reload report not written", extra={"reason": str(error)})

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGHUP, lambda: write(reload()))
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        yield
        return
    write(ReloadReport(os.getpid(), begun=0))  # now the signal does not end this process
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the default would kill the server during shutdown
