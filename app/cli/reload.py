"""
`antiphon reload`: makes a running server reload its settings, and waits for the reports.

A server writes its process id to a file, and its processes' reports into a directory next to it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.cli.options import CommandError
from app.settings.loading import RELOADS_DIRECTORY, environment
from app.settings.reloading import ReloadReport

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_TIMEOUT = 60  # seconds for all processes to report
_AGAIN = 3  # seconds between signals: a starting server ignores the first
_PAUSE = 0.05  # seconds between polls


def default_pid_file(port: int) -> Path:
    """A path in a directory of this user."""
    runtime = environment().get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        return Path(runtime) / f"antiphon-{port}.pid"
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"antiphon-{user}" / f"{port}.pid"


@contextmanager
def pid_file(path: Path, *, required: bool = False) -> Iterator[Path | None]:
    """
    Write this process's id to a file, locked within this context: an unlocked file is stale.

    Yields the directory for reports to `antiphon reload`, or None. A failure is logged, as a warning if the file is
    `required`.
    """
    if fcntl is None:
        yield None
        return
    with ExitStack() as opened:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Do not follow symbolic links: other users could write to the directory.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            file = opened.enter_context(os.fdopen(descriptor, "r+"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
        except OSError as error:
            level = logging.WARNING if required else logging.INFO
            fields = {"path": str(path), "reason": error.strerror}
            logger.log(level, "pid file not written; `antiphon reload` cannot find this server", extra=fields)
            yield None
            return
        try:
            with _reloads(path) as directory:
                yield directory
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def reloads_directory(path: Path) -> Path:
    return path.with_name(f"{path.name}.reloads")


@contextmanager
def _reloads(path: Path) -> Iterator[Path | None]:
    """Writable only for this user; without the directory, reloads are not reported."""
    directory = reloads_directory(path)
    os.environ.pop(RELOADS_DIRECTORY, None)
    try:
        if path.parent.stat().st_uid not in (0, os.getuid()):  # another user could replace it by a link
            raise PermissionError(errno.EPERM, f"{path.parent} belongs to another user")
        shutil.rmtree(directory, ignore_errors=True)  # left by a killed server
        directory.mkdir(mode=0o700)
    except OSError as error:
        fields = {"path": str(directory), "reason": error.strerror}
        logger.info("reload report directory not created; `antiphon reload` prints no report", extra=fields)
        yield None
        return
    os.environ[RELOADS_DIRECTORY] = str(directory.absolute())
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def reload_server(path: Path) -> list[ReloadReport]:
    """Return the processes' reports. Raises `CommandError` without a server, or if not all processes report in time."""
    begun = time.monotonic_ns()
    pid = _signal_server(path)
    directory = reloads_directory(path)
    if not directory.is_dir():
        raise CommandError(
            f"Process {pid} was signaled to reload its settings, but cannot report the result. See its log."
        )
    until, again = time.monotonic() + _TIMEOUT, time.monotonic() + _AGAIN
    while True:
        reports = {pid: report for pid, report in ReloadReport.read_all(directory).items() if report.begun >= begun}
        # The server, or its workers once it has named them.
        waiting = [each for each in reports[pid].workers if each not in reports] if pid in reports else [pid]
        if not waiting:
            return [report for report in reports.values() if not report.workers]
        if time.monotonic() > until:
            names = ", ".join(map(str, waiting))
            raise CommandError(f"No report from process {names} within {_TIMEOUT} seconds. See the log of the server.")
        if time.monotonic() > again:
            again += _AGAIN
            if _signal_server(path) != pid:
                raise CommandError(f"Process {pid} has ended.")
        time.sleep(_PAUSE)


def _signal_server(path: Path) -> int:
    """Send SIGHUP to the server that holds a pid file, and return its process id; raises `CommandError`."""
    try:
        with path.open() as file:  # absent on Windows
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = int(file.read())
                os.kill(pid, signal.SIGHUP)
                return pid
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from None
    raise CommandError(
        f"No running server of this user has the pid file {path}. For another port: antiphon reload --port PORT"
    )


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
