"""Antiphon on a real socket, in this process: `async with serving(app) as url`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
import uvicorn.server
from fastapi import FastAPI

from app.main import create_app
from app.settings import Settings

POLL = 0.005  # seconds


class _Asyncio:
    """`asyncio` for uvicorn, which asks ten times a second whether all connections have ended."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(min(delay, POLL))


# A server ends for nearly every test: the tests would wait for that longer than they take.
uvicorn.server.asyncio = _Asyncio()  # type: ignore[attr-defined]


class Server(uvicorn.Server):
    """A server that tells when it has started, and ends when it is told to: uvicorn's looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ending = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # sets the headers of each response
        await self.ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to pytest."""
        yield


@contextlib.asynccontextmanager
async def serving(app: FastAPI, **config: Any) -> AsyncIterator[str]:
    """Serve an application as `antiphon serve` does, on a free port; gives its base URL."""
    options = {
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": 1,
        "timeout_keep_alive": 75,
        **config,
    }
    server = Server(uvicorn.Config(app, host="127.0.0.1", port=0, **options))
    running = asyncio.ensure_future(server.serve())
    ready = asyncio.ensure_future(server.ready.wait())
    try:
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        ready.cancel()
        server.ending.set()
        await running


def settings(**values: Any) -> Settings:
    """Settings of a test: nothing of the environment's own `.env` counts, and tests share no journal of usage."""
    return Settings(_env_file=None, **{"usage_journal": "off", **values})


@contextlib.asynccontextmanager
async def antiphon(backend: Any = None, store: Any = None, **values: Any) -> AsyncIterator[str]:
    """Serve Antiphon with some settings, and maybe a backend or a store of the test's own."""
    async with serving(create_app(settings(**values), backend=backend, store=store)) as url:
        yield url
