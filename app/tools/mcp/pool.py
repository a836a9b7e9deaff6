"""
Open sessions with declared MCP servers, reused by the same owner's responses.

A ping checks the session before reuse. Calls are never sent twice. Servers at callers' URLs get a new session per
response.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from contextvars import Context
from typing import TYPE_CHECKING

from app.tools.mcp.server import ConnectionKey, MCPFailure, ServerAddress
from app.tools.mcp.settings import MCPSettings

if TYPE_CHECKING:
    from app.tools.mcp.connection import ServerConnection

_CONNECTION = "app.tools.mcp.connection"

_CLOSE_SECONDS = 10  # at shutdown


async def open_connection(
    address: ServerAddress, key: ConnectionKey | None = None, *, stderr: bool = False
) -> ServerConnection:
    """Raises `MCPFailure`. The first call imports the SDK."""
    if _CONNECTION not in sys.modules:
        await asyncio.to_thread(importlib.import_module, _CONNECTION)  # takes over a second
    from app.tools.mcp.connection import ServerConnection

    connection = ServerConnection(address, key, stderr=stderr)
    await connection.open()
    return connection


class _Opening:
    """A connection being opened or checked, shared by responses."""

    __slots__ = ("task", "waiting")
    task: asyncio.Task[ServerConnection]

    def __init__(self) -> None:
        self.waiting = 0


class SessionPool:
    def __init__(self, settings: MCPSettings) -> None:
        self._settings = settings
        self._reusable: dict[ConnectionKey, ServerConnection] = {}  # least recently used first
        self._opening: dict[ConnectionKey, _Opening] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def acquire(self, address: ServerAddress, owner: str) -> ServerConnection:
        """Acquire an open connection, to be released; raises `MCPFailure`."""
        if not address.name or self._closed or self._settings.session_idle <= 0:
            return await open_connection(address)
        key = (address.name, "" if address.settings.shared else owner, frozenset(address.headers.items()))
        if (opening := self._opening.get(key)) is None:
            opening = self._opening[key] = _Opening()
            opening.task = asyncio.create_task(self._open(key, address, opening), context=Context())
        opening.waiting += 1
        try:
            return await asyncio.shield(opening.task)
        except asyncio.CancelledError:
            self._stop_waiting(key, opening)
            raise

    async def _open(self, key: ConnectionKey, address: ServerAddress, opening: _Opening) -> ServerConnection:
        try:
            pooled = await self._reused(key) or await self._opened(key, address)
        finally:
            if self._opening.get(key) is opening:
                del self._opening[key]
        pooled.users += opening.waiting - 1  # each response that waits; one is counted already
        return pooled

    def _stop_waiting(self, key: ConnectionKey, opening: _Opening) -> None:
        """Cancel the opening, unless another response waits."""
        task = opening.task
        if not task.done():
            opening.waiting -= 1
            if not opening.waiting:
                del self._opening[key]
                task.cancel()
        elif not task.cancelled() and not task.exception():
            self.release(task.result())

    async def _reused(self, key: ConnectionKey) -> ServerConnection | None:
        pooled = self._reusable.pop(key, None)
        if pooled is None:
            return None
        self._reusable[key] = pooled
        pooled.users += 1
        if pooled.idle:
            pooled.idle.cancel()
        try:
            if pooled.is_open and asyncio.get_running_loop().time() < pooled.expires:
                await pooled.check()
                return pooled
        except MCPFailure:
            pass
        except BaseException:
            self.release(pooled)
            raise
        self._retire(pooled)
        self.release(pooled)
        return None

    async def _opened(self, key: ConnectionKey, address: ServerAddress) -> ServerConnection:
        pooled = await open_connection(address, key)
        pooled.expires = asyncio.get_running_loop().time() + self._settings.session_age
        if self._closed:
            return pooled
        self._reusable[key] = pooled
        for other in [*self._reusable.values()]:
            if len(self._reusable) > self._settings.max_sessions and not other.users:
                self._retire(other)
        return pooled

    def release(self, pooled: ServerConnection) -> None:
        pooled.users -= 1
        if pooled.users:
            return
        if pooled.key is None or self._reusable.get(pooled.key) is not pooled:
            self._close(pooled)
        elif not pooled.is_open or len(self._reusable) > self._settings.max_sessions:
            self._retire(pooled)
        else:
            pooled.idle = asyncio.get_running_loop().call_later(self._settings.session_idle, self._retire, pooled)

    def _retire(self, pooled: ServerConnection) -> None:
        """Stop reusing a connection, and close it once unused."""
        if pooled.key is not None and self._reusable.get(pooled.key) is pooled:
            del self._reusable[pooled.key]
        if not pooled.users:
            self._close(pooled)

    def _close(self, pooled: ServerConnection) -> None:
        if pooled.idle:
            pooled.idle.cancel()
        if task := pooled.close():
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Connections acquired later are not pooled."""
        self._closed = True
        while self._reusable:
            self._close(self._reusable.popitem()[1])
        if self._closing:
            _, unfinished = await asyncio.wait(self._closing, timeout=_CLOSE_SECONDS)
            for task in unfinished:
                task.cancel()
