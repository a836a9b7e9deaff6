"""A task that is cancelled during a store query stops, at whatever point of the query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.stores import EventSegment, RunKey
from tests.support.redis_server import RedisServer
from tests.support.store_locations import redis_store

RUN = RunKey("cancelling:c0ffee", "resp_1")


@pytest.mark.parametrize("question", ["put", "all", "append"])
async def test_redis_query_that_is_cancelled_raises_it(redis_server: RedisServer, question: str) -> None:
    store = redis_store(redis_server.url)
    log = store.log(ttl=1000, lease=20)
    await log.begin(RUN, "w1")
    ask: Callable[[], Awaitable[object]] = {
        "put": lambda: store.put(*RUN, b"record"),
        "all": lambda: store.all(RUN.partition),
        "append": lambda: log.append(RUN, "w1", EventSegment(0, 0, b"a")),
    }[question]
    went_on = []

    async def asking() -> None:
        await ask()
        went_on.append(asyncio.current_task())

    for turns in range(200):
        task = asyncio.create_task(asking())
        for _ in range(turns % 20):
            await asyncio.sleep(0)
        requested = task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() is requested
        assert (task in went_on) is not requested

    assert await store.all("nothing") == {}
    await log.delete(RUN)  # otherwise an orphan to every server with this Redis
    await store.delete(*RUN)
    await log.aclose()
    await store.aclose()
