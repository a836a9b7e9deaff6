"""
Event logs in PostgreSQL: each added segment notifies waiting readers.

Each process listens on one connection. While it is broken, readers poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from app.runtime.tasks import wait_for_event
from app.storage.postgres import PostgresClient
from app.storage.tables import Rows, Tables
from app.stores import EventSegment, RunKey
from app.stores.event_log_sql import SQLLog
from app.stores.postgres.schema import CHANNEL

_LISTENING_PAUSE = 5.0  # seconds between polls while notifications work
_PAUSE = 0.25  # otherwise


class PostgresLog(SQLLog):
    WORDS: ClassVar = {
        "{of_run}": """bucket = $1 AND response = $2 AND EXISTS (
            SELECT FROM antiphon_runs WHERE bucket = $1 AND response = $2 AND {unexpired}
        )""",
        "{unexpired}": "expires > {moment}",
    }
    BEGIN = "SELECT antiphon_run_begin($1, $2, $3, $4, $5)"
    CLAIM = "SELECT antiphon_run_claim($1, $2, $3, $4, $5)"
    APPEND = "SELECT antiphon_run_append($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    # In order, to prevent deadlocks between concurrent renewals of the same runs.
    RENEW = """
    SELECT bucket, response, antiphon_run_append(bucket, response, $1, $2, $3)
    FROM (SELECT * FROM unnest($4::text[], $5::text[]) AS runs (bucket, response) ORDER BY 1, 2) AS runs
    """
    DELETE = f"""
    WITH deleted AS (DELETE FROM antiphon_runs WHERE bucket = $1 AND response = $2 RETURNING 1)
    SELECT pg_notify('{CHANNEL}', $1 || ' ' || $2) FROM deleted
    """

    def __init__(self, client: PostgresClient, tables: Tables, *, ttl: float, lease: float) -> None:
        super().__init__(tables, ttl=ttl, lease=lease)
        self._notifications = _Notifications(client)

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        segments = await self._poll(run, after)
        if segments or wait <= 0:
            return segments
        deadline = asyncio.get_running_loop().time() + wait
        async with self._notifications.of(f"{run.partition} {run.id}") as notified:
            while not segments and (left := deadline - asyncio.get_running_loop().time()) > 0:
                notified.clear()
                pause = _LISTENING_PAUSE if await self._notifications.listen() else _PAUSE
                if segments := await self._poll(run, after):
                    break
                await wait_for_event(notified, min(left, pause))
                segments = await self._poll(run, after)
        return segments

    async def _fetch_segments(self, statement: str, *values: object) -> Rows:
        return await self._tables.fetch(statement, *values, 16)  # a segment can have a megabyte

    async def aclose(self) -> None:
        await self._notifications.aclose()


class _Notifications:
    """The process's listening connection, and each run's waiting readers."""

    def __init__(self, client: PostgresClient) -> None:
        self._client = client
        self._connection: Any = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextlib.asynccontextmanager
    async def of(self, run: str) -> AsyncIterator[asyncio.Event]:
        """The event is set whenever the run's log changes."""
        event = asyncio.Event()
        self._waiting.setdefault(run, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[run].discard(event)
            if not self._waiting[run]:
                del self._waiting[run]

    async def listen(self) -> bool:
        """Start to listen; return whether the connection is open."""
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                with contextlib.suppress(Exception):  # the next poll raises the error
                    self._connection = await self._connect()
            return self._connection is not None and not self._connection.is_closed()

    async def _connect(self) -> Any:
        connection = await self._client.connect()
        try:
            connection.add_termination_listener(self._broken)
            await connection.add_listener(CHANNEL, self._notified)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            await asyncio.sleep(0)  # closes the socket

    def _notified(self, connection: object, process: int, channel: str, run: object) -> None:
        for event in self._waiting.get(str(run), ()):
            event.set()

    def _broken(self, connection: object) -> None:
        for events in self._waiting.values():
            for event in events:
                event.set()
