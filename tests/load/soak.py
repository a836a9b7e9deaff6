"""
Run all kinds of callers for a while, and check for leaks.

    python -m tests.load.soak --seconds 120 --store redis

Prints the server's resources over time. Exits with 1 if memory keeps growing, if an unneeded file, socket or model
stream stays open, or if a caller got an unexpected result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import IO

from tests.load.echo import Echo
from tests.load.replicas import replicas, shown_if_it_fails
from tests.load.tables import table
from tests.load.traffic import CALLERS, Traffic, calling
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

AT_ONCE = 24
SAMPLES = 12
GROWTH = 0.04  # allowed memory growth from the second quarter to the last
PATIENCE = 30.0  # seconds for all open requests to end
SPARE = AT_ONCE  # files more than at rest before: connections to the model and the store, kept for the next caller


@dataclass(frozen=True)
class Sample:
    """Resources at a time."""

    seconds: float
    calls: int
    memory: float  # bytes
    files: int
    open: float  # open responses and WebSockets, and queued questions, as reported
    answering: int  # questions in progress at the model

    def row(self) -> list[str]:
        parts = (f"{self.seconds:.0f}", f"{self.calls}", f"{self.memory / 1e6:.1f} MB", f"{self.files}")
        return [*parts, f"{self.open:.0f}", f"{self.answering}"]


HEAD = ["seconds", "calls", "memory", "files", "open", "streams of the model"]


def main() -> int:
    """Run it; return 1 if anything is left, or went wrong."""
    parser = argparse.ArgumentParser(description="See whether a server leaks.")
    parser.add_argument("--seconds", type=float, default=120, help="for which the callers call")
    parser.add_argument("--store", choices=[*STORES], default="redis", help="where responses are stored")
    options = parser.parse_args()
    with tempfile.TemporaryFile() as log, shown_if_it_fails(log):
        problems = asyncio.run(soak(options.seconds, options.store, log))
    for problem in problems[:20]:
        print(f"WRONG: {problem}")
    return bool(problems)


@contextlib.contextmanager
def _in_memory() -> Iterator[str]:
    yield "memory://?max_bytes=8000000"  # full before the first quarter is over


@contextlib.contextmanager
def _in_sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        yield f"sqlite:///{directory}/antiphon.db"


@contextlib.contextmanager
def _in_redis() -> Iterator[str]:
    with RedisServer() as server:
        yield f"{server.url}?max_connections=8"


@contextlib.contextmanager
def _in_postgres() -> Iterator[str]:
    with PostgresServer() as server:
        yield f"{server.url}?max_connections=8"


STORES = {"memory": _in_memory, "sqlite": _in_sqlite, "redis": _in_redis, "postgres": _in_postgres}


async def soak(seconds: float, store: str, log: IO[bytes]) -> list[str]:
    """Run callers and print samples; returns the errors."""
    with STORES[store]() as store_url:
        async with Echo(pace=0.01) as model:
            settings = {
                "backend_url": model.url,
                "limit_streams": 4 * AT_ONCE,
                "background_log_ttl": 60,
                "history_cache": 1_000_000,  # full before the first quarter is over; by default it grows for minutes
            }
            async with (
                replicas(1, log, store_url=store_url, **settings) as (server,),
                calling(server.url) as observer,
            ):
                began, called = time.monotonic(), Traffic(server.url, observer.http)

                async def sample() -> Sample:
                    open = sum((await observer.gauges()).values())
                    taken = time.monotonic() - began
                    return Sample(taken, called.done.total(), server.memory, sum(server.files), open, model.answering)

                async def call(seconds: float) -> None:
                    until = time.monotonic() + seconds
                    async with calling(server.url) as traffic:
                        traffic.done, traffic.wrong = called.done, called.wrong

                        async def keep_calling() -> None:
                            while time.monotonic() < until:
                                await traffic.one()

                        await asyncio.gather(*(keep_calling() for _ in range(AT_ONCE)))

                await call(min(5.0, seconds / 10))
                samples = [await _rest(sample)]
                calling_on = asyncio.create_task(call(seconds))
                for _ in range(SAMPLES):
                    await asyncio.sleep(seconds / SAMPLES)
                    samples.append(await sample())
                await calling_on
                samples.append(await _rest(sample, samples[0].files + SPARE))
    print(f"{AT_ONCE} callers at once, of {len(CALLERS)} kinds; {store}\n")
    print(table([HEAD, *(each.row() for each in samples)]))
    return [*called.wrong, *_left(samples)]


async def _rest(sample: Callable[[], Awaitable[Sample]], files: float = math.inf) -> Sample:
    """Return the first sample with nothing open and at most `files` files, or the last before the timeout."""
    until = time.monotonic() + PATIENCE
    while True:
        last = await sample()
        if (not last.open and not last.answering and last.files <= files) or time.monotonic() > until:
            return last
        await asyncio.sleep(0.2)


def _left(samples: Sequence[Sample]) -> Iterator[str]:
    first, *between, last = samples
    if last.open or last.answering:
        yield f"{last.open:.0f} things are still open, and {last.answering} streams of the model"
    if last.files > first.files + SPARE:
        yield f"{last.files} files are open, and {first.files} were so before"
    quarter = len(between) // 4
    early = median(each.memory for each in between[quarter : 2 * quarter])
    late = median(each.memory for each in between[-quarter:])
    if late > early * (1 + GROWTH):
        yield f"memory has grown from {early / 1e6:.1f} MB to {late / 1e6:.1f} MB"


if __name__ == "__main__":
    sys.exit(main())
