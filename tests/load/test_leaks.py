"""All kinds of callers leave no task, socket or model stream."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from app.api import rate_limits
from app.main import create_app
from tests.load.echo import Echo
from tests.load.traffic import CALLERS, Traffic, calling
from tests.support.redis_server import RedisServer
from tests.support.serving import serving, settings
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, upstream, usage

__all__ = ["upstream"]  # a fixture

ROUNDS = 4
AT_ONCE = 8


def tasks() -> Counter[str]:
    """This process's tasks, counted by function name."""
    return Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]


def open_sockets() -> set[str]:
    """This process's open sockets; empty outside Linux."""
    gc.collect()
    found = set()
    if os.path.exists("/proc/self/fd"):
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {file for file in found if file.startswith("socket:")}


@contextlib.asynccontextmanager
async def server(store_url: str, model: Upstream) -> AsyncIterator[str]:
    app = create_app(
        settings(
            store_url=store_url,
            backend_url=model.url,
            secret_key="k",
            shutdown_grace=1,
            limit_streams=64,  # lost permits would be noticed
        )
    )
    async with serving(
        app, http="app.api.uvicorn.http:HTTPProtocol", ws="app.api.uvicorn.websocket:WebSocketProtocol"
    ) as url:
        yield url


async def let_all_call(traffic: Traffic, rounds: int) -> None:
    left = iter(range(rounds * len(CALLERS)))

    async def keep_calling() -> None:
        for _ in left:
            await traffic.one()

    await asyncio.gather(*(keep_calling() for _ in range(AT_ONCE)))


def reported_by_asyncio(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Unretrieved exceptions: asyncio reports them on destruction."""
    gc.collect()
    return [record.getMessage() for record in caplog.records if record.name == "asyncio"]


async def until_same(read: Callable[[], object], expected: object) -> object:
    """Poll until the value is as expected, and return the last value."""
    for _ in range(1000):
        found = read()
        if found == expected:
            break
        await asyncio.sleep(0.03)
    return found


@pytest.mark.parametrize("store", ["memory", "redis"])
async def test_callers_of_all_kinds_leave_nothing_behind(
    store: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rate_limits, "SLOT_LEASE", 0.3)  # the cleanup task checks again after this time
    store_url = "memory://" if store == "memory" else request.getfixturevalue("redis_server").patient_url
    before_all = open_sockets()
    async with Echo(pace=0.005) as model:
        async with server(store_url, model) as url:
            async with calling(url) as traffic:
                await traffic.http.get("/healthz")
            at_rest = tasks()
            for _ in range(2):
                async with calling(url) as traffic:
                    await let_all_call(traffic, ROUNDS)
                assert traffic.wrong == []
                assert set(traffic.done.values()) == {ROUNDS}

                assert await until_same(lambda: tasks() - at_rest, Counter()) == Counter()
                assert await until_same(lambda: model.answering, 0) == 0
                async with calling(url) as traffic:
                    assert await traffic.gauges() == {}
        assert model.request_count > 0
    assert await until_same(lambda: open_sockets() - before_all, set()) == set()
    assert reported_by_asyncio(caplog) == []


async def test_runs_deleted_by_another_replica_leave_nothing_behind(
    upstream: Upstream, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rate_limits, "SLOT_LEASE", 0.3)
    go = asyncio.Event()
    upstream.always(sse(chunk("Hel"), go, chunk("lo"), finish(), usage(), DONE))
    url = redis_server.patient_url
    async with server(url, upstream) as one, server(url, upstream) as other:
        async with calling(one) as traffic, calling(other) as deleting:
            at_rest = tasks()
            ids = [(await traffic.ask(background=True))["id"] for _ in range(50)]
            while len(upstream.requests) < len(ids):
                await asyncio.sleep(0.01)
            assert tasks()["RunWorker._generate"] == len(ids)
            for id in ids:
                assert (await deleting.http.delete(f"/v1/responses/{id}")).status_code == 200
            go.set()
            assert await until_same(lambda: tasks() - at_rest, Counter()) == Counter()
            for id in ids:
                assert (await traffic.http.get(f"/v1/responses/{id}")).status_code == 404
    assert reported_by_asyncio(caplog) == []
