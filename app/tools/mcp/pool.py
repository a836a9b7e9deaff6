"""
Open sessions with declared MCP servers, reused by the same owner's responses.

A ping checks the session before reuse. Calls are never sent twice. Servers at callers' URLs get a new session per
response.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from app.tools.mcp.server import MCPFailure, ServerAddress
from app.tools.mcp.settings import MCPSettings

if TYPE_CHECKING:
    from app.tools.mcp.connection import ServerConnection

_CONNECTION = "app.tools.mcp.connection"

_CLOSE_SECONDS = 10  # at shutdown
_LIST_SECONDS = 300.0  # tool list cache TTL
_MAX_CACHED_LIST = 1024 * 1024  # characters of JSON

_Key: TypeAlias = tuple[str, str, frozenset[tuple[str, str]]]  # server, owner, headers
_Listed: TypeAlias = tuple[list[dict[str, object]], bool]


async def open_connection(address: ServerAddress, *, stderr: bool = False) -> ServerConnection:
    """Raises `MCPFailure`. The first call imports the SDK."""
    if _CONNECTION not in sys.modules:
        await asyncio.to_thread(importlib.import_module, _CONNECTION)  # takes over a second
    from app.tools.mcp.connection import ServerConnection

    connection = ServerConnection(address, stderr=stderr)
    await connection.open()
    return connection


@dataclass(eq=False, slots=True)
class PooledConnection:
    connection: ServerConnection
    key: _Key | None  # None if never reused
    expires: float  # event loop time
    users: int = 1
    idle: asyncio.TimerHandle | None = field(default=None)
    _listed: str = ""  # JSON, so that responses cannot change the cached list
    _listed_at: float = 0.0
    _list_version: int = 0

    @property
    def is_open(self) -> bool:
        return self.connection.is_open

    async def list_tools(self) -> _Listed:
        now, version = asyncio.get_running_loop().time(), self.connection.list_version
        if self._listed and version == self._list_version and now < self._listed_at + _LIST_SECONDS:
            tools, complete = json.loads(self._listed)
            return tools, complete
        tools, complete = await self.connection.list_tools()
        listed = json.dumps((tools, complete)) if self.key else ""
        self._listed = listed if len(listed) <= _MAX_CACHED_LIST else ""
        self._listed_at, self._list_version = now, version
        return tools, complete

    async def call_tool(self, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
        return await self.connection.call_tool(name, arguments)


class _Opening:
    """A connection being opened or checked, shared by responses."""

    __slots__ = ("task", "waiting")
    task: asyncio.Task[PooledConnection]

    def __init__(self) -> None:
        self.waiting = 0


class SessionPool:
    def __init__(self, settings: MCPSettings) -> None:
        self._settings = settings
        self._reusable: dict[_Key, PooledConnection] = {}  # least recently used first
        self._opening: dict[_Key, _Opening] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def acquire(self, address: ServerAddress, owner: str) -> PooledConnection:
        """Acquire an open connection, to be released; raises `MCPFailure`."""
        if not address.name or self._closed or self._settings.session_idle <= 0:
            return PooledConnection(await open_connection(address), None, 0.0)
        key = (address.name, "" if address.shared else owner, frozenset(address.headers.items()))
        if (opening := self._opening.get(key)) is None:
            opening = self._opening[key] = _Opening()
            opening.task = asyncio.create_task(self._open(key, address, opening), context=Context())
        opening.waiting += 1
        try:
            return await asyncio.shield(opening.task)
        except asyncio.CancelledError:
            self._stop_waiting(key, opening)
            raise

    async def _open(self, key: _Key, address: ServerAddress, opening: _Opening) -> PooledConnection:
        try:
            pooled = await self._reused(key) or await self._opened(key, address)
        finally:
            if self._opening.get(key) is opening:
                del self._opening[key]
        pooled.users += opening.waiting - 1
        return pooled

    def _stop_waiting(self, key: _Key, opening: _Opening) -> None:
        """Cancel the opening, unless another response waits."""
        task = opening.task
        if not task.done():
            opening.waiting -= 1
            if not opening.waiting:
                del self._opening[key]
                task.cancel()
        elif not task.cancelled() and not task.exception():
            self.release(task.result())

    async def _reused(self, key: _Key) -> PooledConnection | None:
        pooled = self._reusable.pop(key, None)
        if pooled is None:
            return None
        self._reusable[key] = pooled
        pooled.users += 1
        if pooled.idle:
            pooled.idle.cancel()
        try:
            if pooled.is_open and asyncio.get_running_loop().time() < pooled.expires:
                await pooled.connection.check()
                return pooled
        except MCPFailure:
            pass
        except BaseException:
            self.release(pooled)
            raise
        self._retire(pooled)
        self.release(pooled)
        return None

    async def _opened(self, key: _Key, address: ServerAddress) -> PooledConnection:
        connection = await open_connection(address)
        pooled = PooledConnection(connection, key, asyncio.get_running_loop().time() + self._settings.session_age)
        if self._closed:
            return pooled
        self._reusable[key] = pooled
        for other in [*self._reusable.values()]:
            if len(self._reusable) > self._settings.max_sessions and not other.users:
                self._retire(other)
        return pooled

    def release(self, pooled: PooledConnection) -> None:
        pooled.users -= 1
        if pooled.users:
            return
        if pooled.key is None or self._reusable.get(pooled.key) is not pooled:
            self._close(pooled)
        elif not pooled.is_open or len(self._reusable) > self._settings.max_sessions:
            self._retire(pooled)
        else:
            pooled.idle = asyncio.get_running_loop().call_later(self._settings.session_idle, self._retire, pooled)

    def _retire(self, pooled: PooledConnection) -> None:
        """Stop reusing a connection, and close it once unused."""
        if pooled.key is not None and self._reusable.get(pooled.key) is pooled:
            del self._reusable[pooled.key]
        if not pooled.users:
            self._close(pooled)

    def _close(self, pooled: PooledConnection) -> None:
        if pooled.idle:
            pooled.idle.cancel()
        if task := pooled.connection.close():
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
