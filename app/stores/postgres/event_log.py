"""
Event logs in PostgreSQL: each added batch sends a notification to waiting readers.

Each process listens on one connection. While it is broken, readers poll.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any

from app.runtime.tasks import wait_for_event
from app.storage.postgres import PostgresClient
from app.stores.event_log import EventSegment, LeaseState, RunKey, RunState
from app.stores.postgres.schema import CHANNEL

_FIND = """
SELECT ended, leased > clock_timestamp() FROM antiphon_runs
WHERE bucket = $1 AND response = $2 AND expires > clock_timestamp()
"""
# A few at a time, because a batch can have a megabyte.
_READ = """
SELECT first, batches.last, data, ends FROM antiphon_batches AS batches JOIN antiphon_runs USING (bucket, response)
WHERE bucket = $1 AND response = $2 AND expires > clock_timestamp() AND batches.last > $3
ORDER BY batches.last LIMIT 16
"""
# In order, to prevent deadlocks between concurrent renewals of the same runs.
_RENEW = """
SELECT bucket, response, antiphon_run_append(bucket, response, $1, $2, $3)
FROM (SELECT * FROM unnest($4::text[], $5::text[]) AS runs (bucket, response) ORDER BY 1, 2) AS runs
"""
_CANCEL = "UPDATE antiphon_runs SET cancelled = true WHERE bucket = $1 AND response = $2"
_ORPHANS = "SELECT bucket, response FROM antiphon_runs WHERE NOT ended AND leased <= clock_timestamp() LIMIT 100"
_DELETE = f"""
WITH deleted AS (DELETE FROM antiphon_runs WHERE bucket = $1 AND response = $2 RETURNING 1)
SELECT pg_notify('{CHANNEL}', $1 || ' ' || $2) FROM deleted
"""

_LISTENING_PAUSE = 5.0  # seconds between polls while notifications work
_PAUSE = 0.25  # otherwise


class PostgresLog:
    def __init__(self, client: PostgresClient, *, ttl: float, lease: float) -> None:
        self._client = client
        self._ttl = max(ttl, lease)
        self._ttl_once_ended = ttl
        self._lease = lease
        self._notifications = _Notifications(client)

    async def begin(self, run: RunKey, worker: str) -> None:
        await self._client.fetch(
            "SELECT antiphon_run_begin($1, $2, $3, $4, $5)", *run, worker, self._lease, self._ttl, idempotent=True
        )

    async def append(self, run: RunKey, worker: str, batch: EventSegment) -> LeaseState:
        first, last, data, ends = batch
        state: LeaseState = await self._client.fetchval(
            "SELECT antiphon_run_append($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            *(*run, worker, self._lease, self._ttl_once_ended if ends else self._ttl, first, last, ends, data),
            idempotent=True,  # a batch already in the log is not added
        )
        return state

    async def renew(self, worker: str, runs: Collection[RunKey]) -> dict[RunKey, LeaseState]:
        if not runs:
            return {}
        buckets, ids = [run.bucket for run in runs], [run.id for run in runs]
        rows = await self._client.fetch(_RENEW, worker, self._lease, self._ttl, buckets, ids, idempotent=True)
        return {RunKey(bucket, response_id): state for bucket, response_id, state in rows}

    async def claim(self, run: RunKey, worker: str) -> bool:
        claimed: bool = await self._client.fetchval(
            "SELECT antiphon_run_claim($1, $2, $3, $4, $5)", *run, worker, self._lease, self._ttl
        )
        return claimed

    async def cancel(self, run: RunKey) -> None:
        await self._client.fetch(_CANCEL, *run, idempotent=True)

    async def state(self, run: RunKey) -> RunState:
        rows = await self._client.fetch(_FIND, *run, idempotent=True)
        if not rows:
            return "absent"
        ended, leased = rows[0]
        return "ended" if ended else "running" if leased else "orphaned"

    async def read(self, run: RunKey, after: int, wait: float = 0) -> list[EventSegment]:
        after = min(after, 2**62)
        batches = await self._poll(run, after)
        if batches or wait <= 0:
            return batches
        deadline = asyncio.get_running_loop().time() + wait
        async with self._notifications.of(f"{run.bucket} {run.id}") as notified:
            while not batches and (left := deadline - asyncio.get_running_loop().time()) > 0:
                notified.clear()
                pause = _LISTENING_PAUSE if await self._notifications.listen() else _PAUSE
                if batches := await self._poll(run, after):
                    break
                await wait_for_event(notified, min(left, pause))
                batches = await self._poll(run, after)
        return batches

    async def _poll(self, run: RunKey, after: int) -> list[EventSegment]:
        return [EventSegment(*row) for row in await self._client.fetch(_READ, *run, after, idempotent=True)]

    async def orphans(self) -> list[RunKey]:
        return [RunKey(*row) for row in await self._client.fetch(_ORPHANS, idempotent=True)]

    async def delete(self, run: RunKey) -> None:
        await self._client.fetch(_DELETE, *run, idempotent=True)

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
        """Yield an event that is set whenever a run's log changes."""
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
