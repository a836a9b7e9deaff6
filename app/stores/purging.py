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
async def purging(store: Store, *purges: Callable[[], None]) -> AsyncIterator[None]:
    """Purge a store now and regularly. Also calls `purges`, which must not raise."""
    task = asyncio.create_task(_purge_regularly(store, purges))
    try:
        yield
    finally:
        await end(task)


async def _purge_regularly(store: Store, purges: Sequence[Callable[[], None]]) -> None:
    while True:
        for purge in purges:
            purge()
        try:
            await store.purge()
        except StoreUnavailable:
            pass  # logged by the store
        except Exception:
            logger.exception("unexpected error")
        await asyncio.sleep(INTERVAL * random.uniform(0.75, 1))  # spread over processes
