"""A turn's storage in each store, and a response's Redis commands, as counted by Redis."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import redis

from app.stores.memory import MemoryStore
from app.stores.redis import RedisStore
from app.stores.sqlite import SQLiteStore
from tests.load.tables import table
from tests.support.build import delta
from tests.support.redis_server import RedisServer
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

QUESTION = "Tell me about the weather in Paris. " * 8  # 288 characters, some 70 tokens
WORDS = ["The", " weather", " is", " fine", ",", " again", ".", " "] * 25  # 200 tokens
LENGTHS = (1, 20, 200)  # turns
TIMES = 10  # responses counted together

_TTL = 1000


def chains(turns: int) -> int:
    """Return the number of conversations for this length: enough short conversations to make shared data negligible."""
    return max(1, 40 // turns)


async def show() -> None:
    """Print both tables."""
    print(f"\nBytes for each turn of {len(QUESTION)} characters that is answered with {len(''.join(WORDS))}")
    with RedisServer() as server, tempfile.TemporaryDirectory() as directory:
        rows = [["store", *(f"{length} turn{'s' * (length > 1)}" for length in LENGTHS)]]
        for name, measure in (("memory://", _memory), ("sqlite://", _sqlite), ("redis://", _redis)):
            rows.append([name, *[f"{await measure(length, server, Path(directory)):.0f}" for length in LENGTHS]])
        print(table(rows))
    with RedisServer() as server:
        rows = [["", "commands", "to Redis", "from Redis", "CPU of Redis"]]
        print("\nWhat one response asks of Redis, with what its scripts do")
        print(table([*rows, *[row async for row in _command_rows(server)]]))


async def _memory(turns: int, server: RedisServer, directory: Path) -> float:
    store = MemoryStore(ttl=_TTL)
    async with _client(store=store) as http:
        for _ in range(chains(turns)):
            await _talk(http, turns)
        counted: int = store.bytes
        return counted / turns / chains(turns)


async def _sqlite(turns: int, server: RedisServer, directory: Path) -> float:
    path = directory / f"{turns}.db"
    async with _client(store=SQLiteStore.from_url(f"sqlite:///{path}", ttl=_TTL)) as http:
        for _ in range(chains(turns)):
            await _talk(http, turns)
    return path.stat().st_size / turns / chains(turns)


async def _redis(turns: int, server: RedisServer, directory: Path) -> float:
    with server.client() as client:
        client.flushall()
        async with _client(store=RedisStore.from_url(server.url, ttl=_TTL)) as http:
            for _ in range(chains(turns)):
                await _talk(http, turns)
            used = [client.memory_usage(key, samples=0) for key in client.keys("antiphon:{*")]
        return sum(used) / turns / chains(turns)


async def _command_rows(server: RedisServer) -> AsyncIterator[list[str]]:
    limits = {"limit_requests_per_minute": 10**6, "limit_tokens_per_minute": 10**9, "limit_streams_per_key": 10**6}
    paced: list[Step] = [step for word in WORDS for step in (delta(content=word), 0.005)]
    with server.client() as client:

        async def row(name: str, ask: Callable[[], Awaitable[object]]) -> list[str]:
            before = _counted(client)
            for _ in range(TIMES):
                await ask()
            after = _counted(client)
            noise = [late - early for late, early in zip(_counted(client), after, strict=True)]
            parts = [(now - then - own) / TIMES for then, now, own in zip(before, after, noise, strict=True)]
            commands, received, sent, cpu = (max(part, 0) for part in parts)
            return [
                name,
                f"{commands:.1f}",
                f"{received / 1000:.1f} kB",
                f"{sent / 1000:.1f} kB",
                f"{cpu * 1e6:.0f} µs",
            ]

        async with _client(store_url=server.url) as http, _client(store_url=server.url, **limits) as limited:
            previous: list[str | None] = [None]

            async def go_on() -> None:
                previous.append(await _json(http, previous[-1]))

            yield await row("the first turn", lambda: _json(http))
            for length in LENGTHS[1:]:
                while len(previous) < length - TIMES // 2:
                    await go_on()
                yield await row(f"turn {length}", go_on)
            yield await row("the first turn, with limits per key", lambda: _json(limited))
            yield await row("`store: false`", lambda: _json(http, store=False))
            yield await row("a stored response, looked up", lambda: http.get(f"/responses/{previous[1]}"))
        async with _client(Scripted(paced), store_url=server.url) as http:
            await _background(http)
            yield await row("in the background for 1 s, 200 deltas, followed", lambda: _background(http))
        events = [client.memory_usage(key, samples=0) for key in client.keys("antiphon:*:events:*")]
        print(f"The events of such a response in the background take {sum(events) / len(events) / 1000:.0f} kB.")


def _counted(client: redis.Redis) -> tuple[float, float, float, float]:
    info = client.info("all")
    commands = sum(count["calls"] for name, count in info.items() if name.startswith("cmdstat_") and "info" not in name)
    cpu = info["used_cpu_user"] + info["used_cpu_sys"]
    return commands, info["total_net_input_bytes"], info["total_net_output_bytes"], cpu


@contextlib.asynccontextmanager
async def _client(backend: Any = None, **given: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A server's client."""
    backend = backend or Scripted([delta(content="".join(WORDS))])
    given = {"secret_key": ["k"], **given}
    async with (
        antiphon(backend, **given) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http,
    ):
        yield http


async def _talk(http: httpx.AsyncClient, turns: int) -> None:
    previous = None
    for _ in range(turns):
        previous = await _json(http, previous)


async def _json(http: httpx.AsyncClient, previous: str | None = None, **more: Any) -> str:
    body = {"model": "m", "input": QUESTION, "previous_response_id": previous, **more}
    answer = await http.post("/responses", json=body)
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


async def _background(http: httpx.AsyncClient) -> None:
    id = await _json(http, background=True)
    answer = await http.get(f"/responses/{id}", params={"stream": "true"})
    assert "event: response.completed" in answer.text
    await asyncio.sleep(0.05)
