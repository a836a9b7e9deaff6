"""
Load tests that print their results.

    python -m tests.load.load                          all, some minutes
    python -m tests.load.load streams --streams 500    many slow streams, with two workers and two replicas
    python -m tests.load.load conversations            conversations through a balancer, with restarting replicas
    python -m tests.load.load store                    a turn's storage in each store, and its Redis commands
    python -m tests.load.load stores                   stores compared: CPU, and visibility from other processes

Exits with 1 after losses or errors. Delays depend on the machine's other work: the row `direct` shows the model itself.
CPU time does not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import quantiles
from typing import IO

from tests.load import conversations, sizes, stores, streams
from tests.load.echo import Echo
from tests.load.proxy import balanced
from tests.load.replicas import Program, Replica, replicas, shown_if_it_fails
from tests.load.tables import table
from tests.support.redis_server import RedisServer

HEAD = [
    *("", "completed", "late p50", "p99", "most"),
    *("CPU of a delta", "of a beginning and end", "memory of a stream", "files of a process"),
]


def main() -> int:
    """Run the chosen tests; returns 1 after errors."""
    parser = argparse.ArgumentParser(description="Put a load on Antiphon.")
    parser.add_argument("what", nargs="*", choices=["streams", "conversations", "store", "stores", []], default=[])
    parser.add_argument("--streams", type=int, default=2000, help="streams that are open at once")
    parser.add_argument("--seconds", type=int, default=30, help="for which each of them speaks, once a second")
    parser.add_argument("--requests", type=int, default=2000, help="responses to store in each of the stores")
    parser.add_argument("--conversations", type=int, default=1000, help="conversations to have at least")
    given = parser.parse_args()
    print(f"{os.cpu_count()} processors, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    wrong: list[str] = []
    with tempfile.TemporaryFile() as log, shown_if_it_fails(log):
        if not given.what or "streams" in given.what:
            wrong += asyncio.run(_streams(given.streams, given.seconds, log))
        if not given.what or "conversations" in given.what:
            wrong += asyncio.run(_conversations(given.conversations, log))
        if not given.what or "store" in given.what:
            asyncio.run(sizes.show())
        if not given.what or "stores" in given.what:
            asyncio.run(stores.show(given.requests, log))
    for problem in wrong[:10]:
        print(f"WRONG: {problem}")
    return bool(wrong)


async def _streams(count: int, seconds: int, log: IO[bytes]) -> list[str]:
    _allow_files(2 * count + 200)
    rows = [HEAD]
    wrong: list[str] = []
    with RedisServer() as redis, Program("tests.load.clock", log) as clock:
        await clock.start()
        settings = {"store_url": redis.url, "backend_url": f"{clock.url}/v1"}
        rows.append(await _row("direct", "chat", [clock], [], count, seconds, wrong))
        async with replicas(1, log, **settings, workers=2) as servers:
            rows.append(await _row("2 workers", "responses", servers, servers, count, seconds, wrong))
        async with replicas(2, log, **settings) as servers:
            rows.append(await _row("2 replicas", "responses", servers, servers, count, seconds, wrong))
    print(f"\n{count} streams at once, one delta a second each; how late the deltas are while all streams are open")
    print(table(rows))
    return wrong


async def _row(
    name: str,
    api: str,
    servers: Sequence[Program],
    measured: Sequence[Replica],
    count: int,
    seconds: int,
    wrong: list[str],
) -> list[str]:
    ports = [server.port for server in servers]
    if measured:  # first use is not part of a stream's cost
        _, warming_up = streams.run(api, ports, streams=20, deltas=2, period=0.1, ramp=0.1)
        await warming_up
    memory, cpu = _used(measured)
    ramp = seconds / 3
    received, speaking = streams.run(api, ports, streams=count, deltas=seconds, period=1, ramp=ramp)
    began = time.monotonic()
    await asyncio.sleep(ramp + 1)
    # All streams are open now, and only send until the first ends.
    steady, (grown, opened) = time.monotonic(), _used(measured)
    files = [number for server in measured for number in server.files]
    await asyncio.sleep(began + seconds - 1 - steady)
    until, (_, spoken) = time.monotonic(), _used(measured)
    await speaking
    wrong += [f"{name}: {problem}" for problem in received.wrong]
    late = [late for due, late in received.deltas if steady < due < until]
    p50, p99 = (quantiles(late, n=100)[at] for at in (49, 98))
    row = [name, f"{received.completed}", *(f"{1000 * value:.1f} ms" for value in (p50, p99, max(late)))]
    if not measured:
        return [*row, "", "", "", ""]
    each = (spoken - opened) / len(late)  # CPU seconds
    other = (_used(measured)[1] - cpu - each * len(received.deltas)) / count
    memory = (grown - memory) / count
    costs = [f"{each * 1e6:.0f} µs", f"{other * 1e3:.1f} ms", f"{memory / 1000:.1f} kB"]
    return [*row, *costs, " + ".join(map(str, files))]


def _used(servers: Sequence[Replica]) -> tuple[float, float]:
    return sum(server.memory for server in servers), sum(server.cpu for server in servers)


async def _conversations(count: int, log: IO[bytes]) -> list[str]:
    with RedisServer() as redis:
        async with (
            Echo() as model,
            replicas(2, log, store_url=redis.url, backend_url=model.url, shutdown_grace=20) as servers,
            balanced([server.port for server in servers]) as (balancer, url),
        ):
            rolling = conversations.roll(servers, times=5)
            figures = await conversations.talk(url, rolling, conversations=count, at_once=32)
    print(f"\n{figures.conversations} conversations, {figures.seconds:.0f} seconds, 10 restarts of one of 2 replicas")
    rows = [["what", "how many"], *([f"turns as {way}", f"{number}"] for way, number in figures.turns.items())]
    rows += [
        ["responses found again unchanged", f"{figures.kept}"],
        ["requests", " + ".join(map(str, balancer.sent.values()))],
        ["connections refused, and sent to the other replica", f"{balancer.refused}"],
        ["requests that the client sent again, since there was no answer", f"{figures.asked_again}"],
        ["lost, or wrong", f"{len(figures.wrong)}"],
    ]
    print(table(rows))
    return figures.wrong


def _allow_files(number: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < number:
        raise SystemExit(f"This needs {number} open files, and `ulimit -Hn` says {most}.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(number, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), most))


if __name__ == "__main__":
    sys.exit(main())
