"""`antiphon reload`: makes a running server reload its settings, and waits for the reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from app.cli.listening import reloads_directory, send_reload_signal
from app.settings.reloading import ReloadReport

_TIMEOUT = 60  # seconds for all processes to report
_AGAIN = 3  # seconds between signals: a starting server ignores the first
_PAUSE = 0.05  # seconds between polls


class ReloadError(Exception): ...


def reload_server(path: Path) -> list[ReloadReport]:
    """Return the processes' reports. Raises `ReloadError` without a server, or if not all processes report in time."""
    begun = time.monotonic_ns()
    pid = _signal_server(path)
    directory = reloads_directory(path)
    if not directory.is_dir():
        raise ReloadError(f"Process {pid} was told to reload its settings, but cannot report here. See its log.")
    until, again = time.monotonic() + _TIMEOUT, time.monotonic() + _AGAIN
    while True:
        reports = {pid: report for pid, report in ReloadReport.read_all(directory).items() if report.begun >= begun}
        # The server, or its workers once it has named them.
        waiting = [each for each in reports[pid].workers if each not in reports] if pid in reports else [pid]
        if not waiting:
            return [report for report in reports.values() if not report.workers]
        if time.monotonic() > until:
            names = ", ".join(map(str, waiting))
            raise ReloadError(f"No report from process {names} within {_TIMEOUT} seconds. See the log of the server.")
        if time.monotonic() > again:
            again += _AGAIN
            if _signal_server(path) != pid:
                raise ReloadError(f"Process {pid} has ended.")
        time.sleep(_PAUSE)


def _signal_server(path: Path) -> int:
    """Return the process id."""
    try:
        pid = send_reload_signal(path)
    except OSError as error:
        raise ReloadError(f"{path}: {error.strerror}") from None
    if pid is None:
        raise ReloadError(f"No server of this user holds {path}. Is it another port? antiphon reload --port PORT")
    return pid


def summary(reports: Sequence[ReloadReport]) -> str:
    applied, restart, backends = (
        list(dict.fromkeys(name for report in reports for name in getattr(report, field)))
        for field in ("applied", "restart", "backends")
    )
    processes = ", ".join(str(report.pid) for report in reports)
    lines = [
        f"Settings reloaded by process {processes}.",
        f"Changed: {', '.join(applied) or 'nothing'}. Backends: {', '.join(backends)}.",
    ]
    if restart:
        lines.append(f"Changed, but need a restart: {', '.join(restart)}.")
    return "\n".join(lines)
