"""Antiphon on a real socket, in this process: `async with serving(app) as url`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
import uvicorn.server
from fastapi import FastAPI

from app.main import create_app
from app.settings import Settings

POLL = 0.02  # seconds


class _Asyncio:
    """`asyncio` for uvicorn, which asks ten times a second whether to end, and whether all connections have ended."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay: float) -> None:
        await asyncio.sleep(min(delay, POLL))


# Nearly every test stops a server, and would wait longer for that than it runs.
vars(uvicorn.server)["asyncio"] = _Asyncio()


@contextlib.asynccontextmanager
async def serving(app: FastAPI, **config: Any) -> AsyncIterator[str]:
    """Serve an application as `antiphon serve` does, on a free port; gives its base URL."""
    options = {
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": 1,
        "timeout_keep_alive": 75,
        "proxy_headers": False,
        **config,
    }
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, **options))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    running = asyncio.ensure_future(server.serve())
    try:
        while not server.started:
            if running.done():
                running.result()
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


def settings(**values: Any) -> Settings:
    """Test settings without a shared usage journal."""
    return Settings(**{"usage_journal": "off", **values})


@contextlib.asynccontextmanager
async def antiphon(backend: Any = None, store: Any = None, **values: Any) -> AsyncIterator[str]:
    """Serve Antiphon with some settings, and maybe a backend or a store of the test's own."""
    async with serving(create_app(settings(**values), backend=backend, store=store)) as url:
        yield url
