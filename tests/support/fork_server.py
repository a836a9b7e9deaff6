"""
Antiphon in separate processes, without half a second of imports per start.

    server = start("serve", "--port", "8080", cwd=directory, env=variables)
    ended = run("check", cwd=directory, env=variables)

A process with the application imported, one per pytest worker, is forked for each of them, and runs `python -m app`
with the given directory, variables, arguments and files. Tests of Python's own start, such as imports or Python's
variables, use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "app")

# Modules imported by commands at runtime, except modules that read variables on import.
_IMPORTED = (
    "anyio._backends._asyncio",
    "app.api.routes.files",
    "app.api.routes.vector_stores",
    "app.api.uvicorn.http",
    "app.api.uvicorn.websocket",
    "app.backends.apis.chat",
    "app.backends.demo",
    "app.backends.server",
    "app.cli.chat",
    "app.cli.check",
    "app.cli.client",
    "app.cli.serve",
    "app.main",
    "app.stores.postgres",
    "app.stores.redis",
    "app.stores.sqlite",
    "app.tools.files.ingestion",
    "app.tools.files.sqlite",
    "app.tools.files.tool",
    "app.tools.web_search",
    "fastapi.telemetry._runtime",
    "httpx",
    "pydantic.v1",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
)
_MOST = 1024 * 1024  # bytes of a message: variables and arguments
_GRACE = 10.0  # seconds for remaining processes to end


class Forked:
    """A forked process with the tests' part of `subprocess.Popen`."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status  # a socket on which the exit status arrives
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        ended = select.poll()
        ended.register(self._status, select.POLLIN)
        if self.returncode is None and not ended.poll(None if timeout is None else timeout * 1000):
            assert timeout is not None
            raise subprocess.TimeoutExpired([*COMMAND], timeout)
        with self._lock:  # another thread may wait, too
            if self.returncode is None:
                self.returncode = int(os.read(self._status, 32))  # nothing, if the fork server has ended
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may be ending
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[bytes] | Forked


def start(
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: IO[Any] | int | None = None,
    stdout: IO[Any] | int | None = None,
    stderr: IO[Any] | int | None = None,
) -> Process:
    """Run `python -m app` with these arguments, as `subprocess.Popen` would; its pipes are not provided for."""
    env = dict(os.environ) if env is None else dict(env)
    if sys.platform != "linux" or _configures_python(env):
        return subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    with contextlib.ExitStack() as stack:
        files = []
        for standard, file in enumerate((stdin, stdout, stderr)):
            if file is None:
                files.append(standard)
            elif file == subprocess.DEVNULL:
                files.append(stack.enter_context(open(os.devnull, "r+b", buffering=0)).fileno())
            else:
                files.append(file if isinstance(file, int) else file.fileno())
        return _fork_server().fork(arguments, str(cwd), env, files)


def run(
    *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, input: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run `python -m app` with these arguments until it ends, as `subprocess.run` would; it is killed at `timeout`."""
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
        stdin.write(input)
        stdin.seek(0)
        process = start(*arguments, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            status = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess([*COMMAND, *arguments], status, stdout.read(), stderr.read())


def _configures_python(env: Mapping[str, str]) -> bool:
    """Tell whether a variable is for Python, which reads it when it starts."""
    return any(
        name.startswith("PYTHON") and name != "PYTHONPATH" and value != os.environ.get(name)
        for name, value in env.items()
    )


class _ForkServer:
    """The forking process, as seen by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def fork(self, arguments: tuple[str, ...], cwd: str, env: dict[str, str], files: list[int]) -> Forked:
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            message = json.dumps({"arguments": arguments, "cwd": cwd, "env": env}).encode()
            socket.send_fds(self._socket, [message], [theirs.fileno(), *files])
        pid = int(status.recv(32))
        return Forked(pid, status.detach())

    def close(self) -> None:
        self._socket.close()  # at which it ends
        self._process.wait()


@functools.cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


def _serve(control: socket.socket) -> list[str] | None:
    """Fork on request until the control socket closes. Returns the arguments in a forked process."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the processes
    running: dict[int, tuple[int, socket.socket]] = {}  # by file descriptor: their ids, and whom to tell when they end
    with control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != control.fileno():
                    _tell(*running.pop(key.fd))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                message, files, *_ = socket.recv_fds(control, _MOST, 4)
                if not message:
                    _end(running)
                    return None
                status = socket.socket(fileno=files.pop(0))
                if not (pid := os.fork()):
                    signal.signal(signal.SIGINT, interrupt)
                    for descriptor, (_, other) in running.items():
                        os.close(descriptor)
                        other.close()
                    status.close()
                    return _become(files=files, **json.loads(message))
                for file in files:
                    os.close(file)
                status.send(str(pid).encode())
                descriptor = os.pidfd_open(pid)
                running[descriptor] = pid, status
                selector.register(descriptor, selectors.EVENT_READ)


def _tell(pid: int, status: socket.socket) -> None:
    _, ended = os.waitpid(pid, 0)
    with status, contextlib.suppress(OSError):  # whoever started it may not want to know
        status.send(str(os.waitstatus_to_exitcode(ended)).encode())


def _end(running: Mapping[int, tuple[int, socket.socket]]) -> None:
    """Kill processes whose owner died or forgot them."""
    for pid, _ in running.values():
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    until = time.monotonic() + _GRACE
    for descriptor, (pid, _) in running.items():
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(max(0.0, until - time.monotonic()) * 1000):
            os.kill(pid, signal.SIGKILL)


def _become(arguments: list[str], cwd: str, env: dict[str, str], files: list[int]) -> list[str]:
    """Apply a process's directory, environment, arguments and files."""
    os.chdir(cwd)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    added = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [cwd, *added, *(path for path in sys.path[1:] if path not in inherited)]
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    return arguments


def _main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "threads are not forked"
    gc.collect()
    gc.freeze()
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module("app", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
