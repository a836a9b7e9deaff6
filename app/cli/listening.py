"""The server's listening sockets and pid file."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.settings.loading import RELOADS_DIRECTORY, environment

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_BACKLOG = 2048  # pending connections; uvicorn's default


def listen(host: str, port: int) -> list[socket.socket]:
    """
    Listen on all of a host's addresses, with the same port; 0 for any free port.

    Raises `OSError` if an address is in use, or does not belong to this machine. Workers can inherit the sockets.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing: OSError | None = None
    with ExitStack() as opened:
        sockets: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            listener = opened.enter_context(socket.socket(family, kind, protocol))
            if os.name == "posix":  # on Windows it would let two programs share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind((address[0], port, *address[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                missing = error  # `localhost` can resolve to an IPv6 address that this machine lacks
                continue
            listener.listen(_BACKLOG)
            listener.set_inheritable(True)
            port = listener.getsockname()[1]
            sockets.append(listener)
        if missing and not sockets:
            raise missing
        opened.pop_all()
    return sockets


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
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Do not follow symbolic links: other users could write to the directory.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    except OSError as error:
        _log_unwritten(path, error, required)
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
        except OSError as error:
            _log_unwritten(path, error, required)
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


def _log_unwritten(path: Path, error: OSError, required: bool) -> None:
    level = logging.WARNING if required else logging.INFO
    fields = {"path": str(path), "reason": error.strerror}
    logger.log(level, "pid file not written; `antiphon reload` cannot find this server", extra=fields)


def send_reload_signal(path: Path) -> int | None:
    """Send SIGHUP to the server that holds a pid file; return its process id, or None without a server."""
    if fcntl is None:
        return None
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = int(file.read())
                os.kill(pid, signal.SIGHUP)
                return pid
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass
    return None
