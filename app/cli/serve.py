"""Runs the server: one process, or several with shared sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvicorn
from uvicorn.supervisors import ChangeReload
from uvicorn.supervisors.multiprocess import Multiprocess

from app import __version__
from app.cli.reload import default_pid_file, pid_file
from app.core.redaction import without_password
from app.errors import APIError
from app.observability import logging as logs
from app.runtime import process
from app.settings import Settings, load_settings
from app.settings.loading import WORKERS_DIRECTORY, environment
from app.settings.reloading import ReloadReport

if TYPE_CHECKING:
    from starlette.types import ASGIApp

logger = logging.getLogger(__name__)

# The workers' metrics directory, for the Prometheus client library, imported only by workers.
_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"

# Seconds until an idle connection is closed. Should exceed the timeout of clients and load balancers, usually 60
# seconds: a request sent while the server closes the connection is lost.
KEEP_ALIVE = 75
# Seconds until a silent worker is replaced. On a very busy machine, importing uvicorn exceeds the default of 5 seconds.
_WORKER_SILENCE = 30
_LISTING_TIMEOUT = 5.0  # seconds for the backend's model list
_BACKLOG = 2048  # pending connections; uvicorn's default
_STARTUP_FAILURE = 3  # uvicorn's exit status for a failed application start


def run_server(settings: Settings, sockets: Sequence[socket.socket], *, watch_files: bool) -> None:
    """Serve until the process is stopped; with `watch_files`, restart when a file changes."""
    # After its graceful shutdown uvicorn raises the signal again; the exit status should be 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if hasattr(signal, "SIGHUP"):  # ignored until the application has installed its handler
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    config = uvicorn.Config(
        "app.cli.serve:app_factory",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        reload=watch_files,
        reload_dirs=[os.path.dirname(os.path.dirname(__file__))] if watch_files else None,
        log_config=logs.config(settings),
        log_level=None,  # set by log_config
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `RequestId` reads them
        http="app.api.uvicorn.http:HTTPProtocol",
        ws="app.api.uvicorn.websocket:WebSocketProtocol",
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # compression costs more than it saves for many small messages
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace),
        timeout_worker_healthcheck=_WORKER_SILENCE,
    )
    with _worker_directories(settings):
        if watch_files:
            ChangeReload(config, target=_Server(config).run, sockets=[*sockets]).run()
            return
        path = settings.pid_file or default_pid_file(settings.port)
        with pid_file(path, required=settings.pid_file is not None) as reloads:
            if settings.workers > 1:
                workers = _Workers(config, [*sockets])
                workers.reloads = reloads
                workers.run()
                return
            server = _Server(config)
            with contextlib.suppress(KeyboardInterrupt):
                server.run([*sockets])
    if not server.started:
        sys.exit(_STARTUP_FAILURE)


def app_factory() -> ASGIApp:
    """Called in each process."""
    with process.gc_paused():
        from app.main import create_app  # not in the parent process

        settings = load_settings()
        logs.configure(settings)
        process.end_with_parent()
        process.pass_no_descriptors()
        process.map_large_blocks()
        app = create_app(settings, reload=load_settings)
    process.tune_gc()
    process.return_free_memory()  # 1 MB if modules were compiled
    return app.outermost


@contextmanager
def _worker_directories(settings: Settings) -> Iterator[None]:
    """Create directories for several workers: for their metrics and, for example, the container socket."""
    os.environ.pop(WORKERS_DIRECTORY, None)
    with ExitStack() as stack:
        if settings.workers > 1:
            for variable, name in ((_MULTIPROCESS, "metrics"), (WORKERS_DIRECTORY, "workers")):
                if not environment().get(variable):
                    directory = tempfile.TemporaryDirectory(prefix=f"antiphon-{name}-")
                    os.environ[variable] = stack.enter_context(directory)
        yield


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept queued connections first: closing the listener would reset them."""
        await asyncio.sleep(0.01)  # the event loop polls the listeners; `sleep(0)` would cancel new connections
        await super().shutdown(sockets)


class _Workers(Multiprocess):
    reloads: Path | None = None  # for reports to `antiphon reload`

    def terminate_all(self) -> None:
        """Close the sockets first: new connections would never be accepted."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def handle_signals(self) -> None:
        """Merge several SIGHUPs."""
        for _ in range(self.signal_queue.count(signal.SIGHUP) - 1):
            self.signal_queue.remove(signal.SIGHUP)
        super().handle_signals()

    def handle_hup(self) -> None:
        """Forward SIGHUP to the workers, which reload their settings; uvicorn would restart them."""
        begun = time.monotonic_ns()
        workers = [worker.pid for worker in self.processes if worker.pid is not None and worker.exitcode is None]
        if self.reloads:
            if not ReloadReport.read_all(self.reloads).keys() >= {*workers}:
                self.signal_queue.append(signal.SIGHUP)  # retry later: the signal would end a starting worker
                return
            with contextlib.suppress(OSError):
                ReloadReport(os.getpid(), begun, workers=workers).write(self.reloads)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)


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


def address_of(settings: Settings, *, reachable: bool = False) -> str:
    """With `reachable`, an unspecified address becomes the loopback address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host) if reachable else settings.host
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{settings.port}"


def print_banner(settings: Settings) -> None:
    """
    Print the address and an example request on stderr, or log the address as JSON.

    If the backend must first list its models, a thread prints the request.
    """
    backends = (
        f"{name} ({', '.join(without_password(server.url) or server.backend for server in backend.each())})"
        for name, backend in settings.served().items()
    )
    parts = {
        "address": address_of(settings),
        "backend": ", ".join(backends),
        "store": without_password(settings.store_url),
    }
    if settings.log_format == "json":
        logger.info("server started", extra={"version": __version__, **parts})
        return
    click.echo(
        f"Antiphon {__version__} on {parts['address']}, backend {parts['backend']}, store {parts['store']}.", err=True
    )
    server = next(iter(settings.served().values())).each()[0]
    if settings.default_model or server.backend == "demo" or not server.url:
        _suggest(settings, settings.default_model or ("demo" if server.backend == "demo" else "YOUR_MODEL"))
    else:
        threading.Thread(target=_suggest_listed, name="antiphon-suggest", args=(settings,), daemon=True).start()


def _suggest_listed(settings: Settings) -> None:
    """The first listed model, with the backend's own client: another HTTP client would need 3 MB."""
    from app.assembly.parts import build_backend

    async def first_model() -> str:
        async with aclosing(build_backend(settings)) as backend, asyncio.timeout(_LISTING_TIMEOUT):
            return str((await backend.models())[0]["id"])

    try:
        model = asyncio.run(first_model())
    except (APIError, TimeoutError, IndexError):
        model = "YOUR_MODEL"
    _suggest(settings, model)


def _suggest(settings: Settings, model: str) -> None:
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.has_keys else ""
    page = f"\nor open {address_of(settings, reachable=True)}/studio in a browser." if settings.studio else ""
    click.echo(
        f"Try:\n  curl {address_of(settings)}/v1/responses{key} -H 'Content-Type: application/json' "
        f'-d \'{{"model": "{model}", "input": "Hello!"}}\'{page}',
        err=True,
    )
