"""Reloads the settings on SIGHUP: compares old and new, and reports each process's result to `antiphon reload`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from app.settings import Settings
from app.settings.loading import PREFIX, RELOADS_DIRECTORY, environment

_RELOADABLE_PREFIXES = ("backend", "limit_", "log_", "max_input_", "max_output_", "max_stored_")
RELOADABLE = {name for name in Settings.model_fields if name.startswith(_RELOADABLE_PREFIXES)}
RELOADABLE |= {"api_keys", "keys", "prices", "prompts", "config"}
RELOADABLE.remove("limit_store_url")


def compare_settings(old: Settings, new: Settings) -> tuple[list[str], list[str]]:
    """Return the changed fields that can be applied, and the changed variables that need a restart."""
    changed = [name for name in Settings.model_fields if getattr(old, name) != getattr(new, name)]
    # Without keys, a middleware added at start rejects pages from other origins.
    reloadable = RELOADABLE if new.has_keys else RELOADABLE - {"api_keys", "keys"}
    restart = sorted(f"{PREFIX}{name.upper()}" for name in changed if name not in reloadable)
    return [name for name in changed if name in reloadable], restart


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """A process's reload result."""

    pid: int
    begun: int  # `time.monotonic_ns()`, shared by the processes on a machine
    applied: Sequence[str] = ()  # fields
    restart: Sequence[str] = ()  # changed variables that need a restart
    backends: Sequence[str] = ()
    problems: Sequence[str] = ()
    workers: Sequence[int] = ()  # the parent process's workers, which reload instead

    def write(self, directory: Path) -> None:
        """Write the report, replacing this process's last report; raises `OSError`."""
        new = directory / f"{self.pid}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(new, directory / f"{self.pid}.json")

    @classmethod
    def read_all(cls, directory: Path) -> dict[int, ReloadReport]:
        """Each process's last report, by process id."""
        reports = {}
        for path in directory.glob("*.json"):
            with suppress(FileNotFoundError):  # the server ends
                report = cls(**json.loads(path.read_text(encoding="utf-8")))
                reports[report.pid] = report
        return reports


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
