"""Antiphon in processes of its own, to be stopped, killed, limited and measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fork_server import Process, start
from tests.support.ports import free_port

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class Server:
    """`antiphon serve` at some URL."""

    def __init__(self, process: Process, url: str) -> None:
        self.process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self) -> list[int]:
        """Return the serving worker processes, without `multiprocessing`'s own."""
        workers = []
        for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
            with contextlib.suppress(OSError):  # it has just gone
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    workers.append(int(child))
        return workers

    def memory(self) -> int:
        """Return its peak memory in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@contextlib.contextmanager
def server(*options: str, **settings: object) -> Iterator[Server]:
    """Serve with some settings, as many processes as `workers` says; none is left behind."""
    port = settings.get("port") or free_port()
    given = {"port": port, "secret_key": "of the tests", "log_level": "error", "shutdown_grace": 1, **settings}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    environment["ANTIPHON_USAGE_JOURNAL"] = "off"  # tests clear the stores of killed servers
    environment |= {f"ANTIPHON_{name.upper()}": str(value) for name, value in given.items()}
    running = start("serve", *options, env=environment, stdout=subprocess.DEVNULL)
    served = Server(running, f"http://127.0.0.1:{port}")
    try:
        _await(served)
        yield served
    finally:
        if running.poll() is None:
            running.terminate()  # workers end with their parent only if it can tell them
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


async def until_refused(url: str) -> None:
    """Wait until a stopping server refuses connections."""
    async with asyncio.timeout(60), httpx.AsyncClient(timeout=60, trust_env=False) as http:
        while True:
            try:
                await http.get(f"{url}/healthz", headers={"connection": "close"})
            except httpx.ConnectError:
                return
            except httpx.TransportError:
                pass  # it came in the very last moment
            await asyncio.sleep(0.02)


def stop_between_transactions(pid: int, store_url: str) -> None:
    """Stop a process without database locks, which others would wait for."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        if not store_url.startswith("sqlite:///"):
            return
        with contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), timeout=0.5)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)


def _await(served: Server) -> None:
    until = time.monotonic() + 120
    with httpx.Client(base_url=served.url, trust_env=False) as http:
        while True:
            try:
                http.get("/healthz").raise_for_status()
                return
            except httpx.TransportError:
                assert time.monotonic() < until and served.process.poll() is None, "the server does not start"
                time.sleep(0.05)
