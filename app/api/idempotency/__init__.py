"""
`Idempotency-Key`: repeated requests with the same key and body get the first request's response.

    claim = await idempotency.claim(owner, key, digest)   # or the id of the existing response
    ...
    claim.end(response_id)                                # None frees the key for a retry

A claim is a leased record in the store: when a process dies, another can take over its claims.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import NamedTuple

import orjson

from app.errors import InvalidRequest, StoreUnavailable
from app.observability.lifecycle import Observer, ResponseLifecycle
from app.stores import Change, Store

logger = logging.getLogger(__name__)

HEADER = "idempotency-key"
REPLAYED_HEADER = "idempotent-replayed"
MAX_KEY = 255  # characters
LEASE_SECONDS = 30.0  # until a dead process's claim can be taken over
FIRST_POLL, MAX_POLL = 0.02, 0.5  # seconds between polls for a response in progress
_CLAIM = "claim"
_REPLAYABLE = ("completed", "incomplete", "cancelled")  # clients can retry failed requests


def digest(fields: dict[str, object]) -> str:
    """Field order does not matter."""
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def not_stored() -> InvalidRequest:
    message = "The response for this 'Idempotency-Key' is not stored or was deleted, and cannot be sent again."
    return InvalidRequest(message, param="Idempotency-Key", code="idempotent_response_not_found", status=409)


class _Record(NamedTuple):
    digest: str  # of the request body
    created: float
    token: str  # claim id; the record `lease:TOKEN` exists until the response ends or the claim is taken over
    until: float  # Unix time
    response_id: str | None = None  # once the response has ended

    def encoded(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @property
    def lease(self) -> str:
        return f"lease:{self.token}"


class Idempotency:
    def __init__(self, store: Store, ttl: float, clock: Callable[[], float] = time.time) -> None:
        """Keys are stored for `ttl` seconds; `clock` returns Unix time."""
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, owner: str, key: str, digest: str) -> KeyClaim | str:
        """
        Claim a key, or return its response's id; waits while the response is in progress.

        Raises `InvalidRequest`: 400 for an invalid key, 409 for a key used with another body.
        """
        if not (0 < len(key) <= MAX_KEY and key.isprintable()):
            message = f"Invalid 'Idempotency-Key': must be 1 to {MAX_KEY} printable characters."
            raise InvalidRequest(message, param="Idempotency-Key")
        partition = f"{owner}:{hashlib.sha256(key.encode()).hexdigest()[:32]}:idempotency"
        pause = FIRST_POLL
        while True:
            now = self._clock()
            data = await self._store.get(partition, _CLAIM)
            existing = _Record(**json.loads(data)) if data else None
            if existing and existing.response_id and existing.created + self._ttl <= now:
                await self._store.apply(Change(partition, {}, delete=[_CLAIM, existing.lease], requires=_CLAIM))
                continue
            if existing and existing.digest != digest:
                message = "This 'Idempotency-Key' was used with another request. Use a new key for each new request."
                raise InvalidRequest(message, param="Idempotency-Key", code="idempotency_key_reused", status=409)
            if existing and existing.response_id:
                return existing.response_id
            if existing is None or existing.until <= now:
                record = _Record(digest, now, secrets.token_hex(8), now + LEASE_SECONDS)
                if await self._store_claim(partition, record, existing):
                    return KeyClaim(self, partition, record)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_POLL)

    async def _store_claim(self, partition: str, record: _Record, expired: _Record | None) -> bool:
        """Replaces an expired claim; False if another process was faster."""
        if expired:
            put = {_CLAIM: record.encoded(), record.lease: b"1"}
            return await self._store.apply(Change(partition, put, delete=[expired.lease], requires=expired.lease))
        # The lease is stored first, so that every visible claim has a lease; taking over a claim deletes its lease.
        await self._store.put(partition, record.lease, b"1")
        if await self._store.add(partition, _CLAIM, record.encoded()):
            return True
        await self._store.delete(partition, record.lease)
        return False

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def replace(self, partition: str, old: _Record, new: _Record | None) -> bool:
        """False if another process has taken over the claim."""
        put = {_CLAIM: new.encoded()} if new else {}
        ended = new is None or new.response_id is not None
        delete = [*([] if new else [_CLAIM]), *([old.lease] if ended else [])]
        return await self._store.apply(Change(partition, put, delete=delete, requires=old.lease))

    def renewed(self, record: _Record) -> _Record:
        return record._replace(until=self._clock() + LEASE_SECONDS)

    async def aclose(self) -> None:
        """Waits up to 5 seconds for ended claims."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


class KeyClaim(Observer):
    def __init__(self, keys: Idempotency, partition: str, record: _Record) -> None:
        self._keys = keys
        self._partition = partition
        self._record = record
        self._ended = False
        self._renewal = asyncio.create_task(self._renew())

    def end(self, response_id: str | None) -> None:
        """None frees the key. Idempotent."""
        if self._ended:
            return
        self._ended = True
        self._renewal.cancel()
        self._keys.start(self._store(response_id))

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        self.end(lifecycle.response["id"] if lifecycle.status in _REPLAYABLE else None)

    async def _store(self, response_id: str | None) -> None:
        new = self._record._replace(response_id=response_id) if response_id else None
        try:
            if not await self._keys.replace(self._partition, self._record, new):
                logger.warning("idempotency key was taken over by another process")
        except StoreUnavailable:
            logger.warning("idempotency key not stored: store unavailable")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            with suppress(StoreUnavailable):
                await self._keys.replace(self._partition, self._record, self._keys.renewed(self._record))
