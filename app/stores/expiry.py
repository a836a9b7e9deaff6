from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from app.errors import StoreUnavailable
from app.runtime.tasks import end
from app.stores import Store

logger = logging.getLogger(__name__)

INTERVAL = 60.0  # seconds, at most


@asynccontextmanager
async def expiring(store: Store, *more: Callable[[], None]) -> AsyncIterator[None]:
    """Delete a store's expired records now and regularly. Also call `more`, which must not raise."""
    task = asyncio.create_task(_expire_regularly(store, more))
    try:
        yield
    finally:
        await end(task)


async def _expire_regularly(store: Store, more: Sequence[Callable[[], None]]) -> None:
    while True:
        for delete_expired in more:
            delete_expired()
        try:
            await store.delete_expired()
        except StoreUnavailable:
            pass  # logged by the store
        except Exception:
            logger.exception("unexpected error")
        await asyncio.sleep(INTERVAL * random.uniform(0.75, 1))  # spread over processes
