from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from app.core.access import KeyAccess
from app.errors import TooManyRequests
from app.observability.lifecycle import Observer, ResponseLifecycle
from app.stores import Change, Store, owner_of

FRESH = 10.0  # seconds between measurements
RETRY_AFTER = 60.0  # seconds; only a deletion or expiry frees space
_OWNERS = 10_000  # owners in memory


@dataclass(slots=True, eq=False)
class _Usage:
    stored: int = 0  # the measured bytes, and this process's later additions
    reserved: int = 0
    measured_at: float = -FRESH
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during a measurement


class StorageQuota:
    """
    Checks requests against their owner's storage quota; 0 disables it.

    The store measures an owner's bytes, so other processes' changes count. A measurement is reused for `FRESH` seconds,
    except to reject a request. Responses in progress, and other processes' requests meanwhile, can exceed the quota.
    """

    def __init__(
        self,
        store: Store,
        limit: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit` applies to keys without a limit."""
        self.limit = limit
        self._store = store
        self._clock = clock
        self._owners: dict[str, _Usage] = {}

    async def apply(self, access: KeyAccess, *changes: Change) -> bool:
        """Apply changes like `Store.apply`; raises `TooManyRequests`."""
        size = sum(len(record) for change in changes for record in change.put.values())
        with await self.reserve(access, owner_of(changes[0].partition), size) or nullcontext():
            return await self._store.apply(*changes)

    async def reserve(self, access: KeyAccess, owner: str, size: int) -> Reservation | None:
        """Reserve `size` bytes; None without a limit. Raises `TooManyRequests`."""
        limit = self.limit if access.max_stored_bytes is None else access.max_stored_bytes
        if not limit:
            return None
        if owner not in self._owners and len(self._owners) >= _OWNERS:
            self._owners.clear()
        usage = self._owners.setdefault(owner, _Usage())
        async with usage.lock:
            now = self._clock()
            if now - usage.measured_at >= FRESH or usage.stored + usage.reserved + size > limit:
                usage.stored, usage.measured_at = await self._store.stored_bytes(owner), now
        total = usage.stored + usage.reserved
        if total + size > limit:
            raise TooManyRequests(
                f"Your stored responses and conversations use {total} bytes, and this request would exceed your limit "
                f"of {limit} bytes. Delete some that you no longer need (DELETE /v1/responses/ID or "
                "/v1/conversations/ID), or send `store: false`.",
                code="insufficient_quota",
                retry_after=RETRY_AFTER,
                headers={"x-should-retry": "false"},  # stops automatic retries by OpenAI's clients
            )
        return Reservation(usage, size)


class Reservation(Observer):
    """Reserves bytes within its context or, as an observer, while a response runs."""

    def __init__(self, usage: _Usage, size: int) -> None:
        self._usage = usage
        self._size = size

    def __enter__(self) -> None:
        self._usage.reserved += self._size

    def __exit__(self, *_: object) -> None:
        """Count the bytes as stored until the next measurement."""
        self._usage.reserved -= self._size
        self._usage.stored += self._size

    def on_start(self, lifecycle: ResponseLifecycle) -> None:
        self.__enter__()

    def on_end(self, lifecycle: ResponseLifecycle) -> None:
        self.__exit__()
