"""
Stores compared on the same requests: CPU, and the delay until another process sees a stream.

Each request is a JSON answer from an instant model. Rows differ only in the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any, NamedTuple

import httpx

from tests.bench.cost import cpu
from tests.load.echo import Echo
from tests.load.replicas import replicas
from tests.load.tables import table
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

AT_ONCE = 16
CHAINS = 10
LENGTH = 20  # turns per conversation

_HEAD = ("store", "responses a second", "CPU of a response", "of the store", "a turn of 20", "of the store")


class Spent(NamedTuple):
    """Cost per request: CPU seconds, and total wall time."""

    server: float
    store: float
    wall: float


@contextlib.contextmanager
def store_servers() -> Iterator[dict[str, tuple[str, int | None]]]:
    """Start all stores; yield their URLs and process ids, if any."""
    with RedisServer() as redis, PostgresServer() as postgres, tempfile.TemporaryDirectory() as directory:
        yield {
            "memory://": ("memory://", None),
            "sqlite://": (f"sqlite:///{Path(directory) / 'antiphon.db'}", None),
            "redis://": (redis.url, redis.pid),
            "postgresql://": (postgres.url, postgres.pid),
        }


async def show(requests: int, log: IO[bytes]) -> None:
    """Print the tables."""
    rows: list[Sequence[str]] = [_HEAD]
    resumed: list[Sequence[str]] = [("store", "follow from another process, p50", "resume what has ended, p50")]
    with store_servers() as stores:
        async with Echo(pace=0) as model:
            for name, (url, process) in stores.items():
                rows.append(await _row(name, url, process, model.url, requests, log))
                if process:
                    resumed.append(await _resumed(name, url, model.url, log))
    print(f"\n{requests} stored answers as JSON, {AT_ONCE} at once; then conversations of {LENGTH} turns")
    print(table(rows))
    print("\nBackground responses of one process, streamed by another")
    print(table(resumed))


async def _row(name: str, url: str, process: int | None, model: str, requests: int, log: IO[bytes]) -> Sequence[str]:
    async with replicas(1, log, store_url=url, backend_url=model) as (server,):
        async with httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=120, trust_env=False) as http:

            async def measured(work: Callable[[], Awaitable[object]], times: int) -> Spent:
                before = server.cpu, cpu(process) if process else 0.0, time.monotonic()
                await work()
                after = server.cpu, cpu(process) if process else 0.0, time.monotonic()
                own, store, wall = (b - a for a, b in zip(before, after, strict=True))
                return Spent(own / times, store / times, wall)

            await _singles(http, 100)  # first use is not part of a response's cost
            single = await measured(lambda: _singles(http, requests), requests)
            turn = await measured(lambda: _chains(http), CHAINS * LENGTH)
    of_store = [f"{spent.store * 1e6:.0f} µs" if process else "" for spent in (single, turn)]
    own = [f"{spent.server * 1e3:.2f} ms" for spent in (single, turn)]
    return name, f"{requests / single.wall:.0f}", own[0], of_store[0], own[1], of_store[1]


async def _singles(http: httpx.AsyncClient, number: int) -> None:
    left = iter(range(number))

    async def ask() -> None:
        for _ in left:
            await _ask(http)

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))


async def _chains(http: httpx.AsyncClient) -> None:
    async def talk() -> None:
        previous = None
        for _ in range(LENGTH):
            previous = (await _ask(http, previous_response_id=previous))["id"]

    await asyncio.gather(*(talk() for _ in range(CHAINS)))


async def _ask(http: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    answer = await http.post("/responses", json={"model": "m", "input": "a", **more})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


async def _resumed(name: str, url: str, model: str, log: IO[bytes]) -> Sequence[str]:
    async with replicas(2, log, store_url=url, backend_url=model) as servers, contextlib.AsyncExitStack() as stack:
        clients = [httpx.AsyncClient(base_url=f"{server.url}/v1", timeout=120, trust_env=False) for server in servers]
        one, other = [await stack.enter_async_context(client) for client in clients]
        followed, resumed = [], []
        for _ in range(20):
            began = time.monotonic()
            id = (await _ask(one, background=True))["id"]
            await _stream(other, id)
            followed.append(time.monotonic() - began)
            began = time.monotonic()
            await _stream(other, id)
            resumed.append(time.monotonic() - began)
    return name, *(f"{1000 * median(times):.0f} ms" for times in (followed, resumed))


async def _stream(http: httpx.AsyncClient, id: str) -> None:
    """Stream a background response to its end."""
    async with http.stream("GET", f"/responses/{id}", params={"stream": "true"}) as stream:
        lines = [line async for line in stream.aiter_lines() if line.startswith("data: {")]
    assert json.loads(lines[-1].removeprefix("data: "))["type"] == "response.completed"
