"""
Measure what Antiphon adds: against a proxy that passes bytes on, and against the upstream itself, in the same run.

    python -m tests.bench.bench            a few minutes
    python -m tests.bench.bench --smoke    a few seconds; fails on wrong answers, and on nothing else

Every round asks the servers in turn, so that what disturbs the machine disturbs them alike. Trust the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

from tests.bench.answers import answer
from tests.bench.load import Target, cpu, hold, volley

ROOT = Path(__file__).parents[2]
READY = 60  # seconds that a server may take to start


class Run(NamedTuple):
    """One kind of load, and how much of it."""

    model: str
    stream: bool
    total: int
    at_once: int


class Plan(NamedTuple):
    """What to measure."""

    rounds: int
    bulk: Run
    paced: Run
    calls: Run
    alone: Run
    held: int


FULL = Plan(
    rounds=5,
    bulk=Run("count-200-0", True, 400, 16),
    paced=Run("count-200-10", True, 100, 50),
    calls=Run("count-20-0", False, 1000, 8),
    alone=Run("count-20-0", True, 200, 1),
    held=200,
)
SMOKE = Plan(
    rounds=1,
    bulk=Run("count-200-0", True, 16, 4),
    paced=Run("count-20-10", True, 16, 16),
    calls=Run("count-20-0", False, 20, 4),
    alone=Run("count-20-0", True, 5, 1),
    held=20,
)


@dataclass
class Figures:
    """What was measured of one server: one value for each round."""

    bulk: list[float] = field(default_factory=list)  # seconds of CPU per delta
    paced: list[float] = field(default_factory=list)  # likewise
    calls: list[float] = field(default_factory=list)  # seconds of CPU per call
    first: list[float] = field(default_factory=list)  # seconds to the first delta
    held: float = 0.0  # bytes for each open stream


@contextmanager
def server(name: str, api: str, log: IO[bytes] | int, command: list[str], **environment: str) -> Iterator[Target]:
    """Run a server on a free port while the context lasts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A developer's own settings must not turn up in the measurement.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_")}
    process = subprocess.Popen(
        [sys.executable, *command, "--port", str(port)],
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
        cwd=tempfile.gettempdir(),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        _await_port(name, process, port)
        yield Target(name, port, process.pid, api)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(name: str, process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{name} does not listen")


async def measure(plan: Plan, direct: Target, measured: list[Target]) -> tuple[dict[str, Figures], list[str]]:
    """Ask the servers in turn. Return the figures by the server's name, and what was wrong with the answers."""
    figures = {target.name: Figures() for target in [direct, *measured]}
    problems: list[str] = []

    async def run(target: Target, run: Run) -> tuple[float, float]:
        before = cpu(target.pid)
        replies, wrong = await volley(target, **run._asdict())
        problems.extend(f"{target.name}, {run.model}: {problem}" for problem in wrong)
        return cpu(target.pid) - before, median(reply.first - reply.started for reply in replies)

    for target in [direct, *measured]:  # warm up
        for load in (plan.bulk, plan.calls):
            await run(target, load._replace(total=load.at_once))
    for target in measured:  # first of all: memory that was used before would be used again
        figures[target.name].held = await hold(target, "count-2-60000", plan.held)
    for _ in range(plan.rounds):
        for name, load in (("bulk", plan.bulk), ("paced", plan.paced), ("calls", plan.calls)):
            parts = load.total * (len(answer(load.model).pieces) if load.stream else 1)
            for target in measured:
                used, _ = await run(target, load)
                getattr(figures[target.name], name).append(used / parts)
        for target in [direct, *measured]:
            figures[target.name].first.append((await run(target, plan.alone))[1])
    return figures, problems


def table(plan: Plan, direct: Figures, floor: Figures, antiphon: Figures) -> str:
    """Return the figures, medians of the rounds; a ratio is the median of the rounds' ratios."""

    def row(what: str, mine: list[float], theirs: list[float], scale: float, unit: str) -> list[str]:
        ratios = [one / other for one, other in zip(mine, theirs, strict=True) if other]
        ratio = f"{median(ratios):.1f}" if ratios else "n/a"
        return [what, *(f"{median(values) * scale:.3g} {unit}" for values in (mine, theirs)), ratio]

    def added(figures: Figures) -> list[float]:
        return [mine - theirs for mine, theirs in zip(figures.first, direct.first, strict=True)]

    bulk, paced = plan.bulk, plan.paced
    rows = [
        ["", "antiphon", "floor", "ratio"],
        row(f"CPU per delta, {bulk.at_once} streams at full speed", antiphon.bulk, floor.bulk, 1e6, "µs"),
        row(f"CPU per delta, {paced.at_once} streams, 100 deltas/s each", antiphon.paced, floor.paced, 1e6, "µs"),
        row("CPU per call, not streamed, 20 tokens", antiphon.calls, floor.calls, 1e3, "ms"),
        [*row("time to the first delta, beyond the upstream's", added(antiphon), added(floor), 1e3, "ms")[:3], ""],
        row(f"memory per open stream, {plan.held} open", [antiphon.held], [floor.held], 1e-3, "kB"),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def main() -> int:
    """Run the bench; return 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description="Measure what Antiphon adds.")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that the answers are right")
    parser.add_argument("--rounds", type=int, help="rounds to run")
    arguments = parser.parse_args()
    plan = SMOKE if arguments.smoke else FULL
    plan = plan._replace(rounds=arguments.rounds or plan.rounds)
    with tempfile.TemporaryFile() as log:
        try:
            with (
                server("upstream", "chat", log, ["-m", "tests.bench.upstream"]) as direct,
                server("floor", "chat", log, ["-m", "tests.bench.floor", "--upstream", str(direct.port)]) as floor,
                server(
                    "antiphon",
                    "responses",
                    log,
                    ["-m", "app", "serve"],
                    ANTIPHON_BACKEND_URL=f"http://127.0.0.1:{direct.port}/v1",
                    ANTIPHON_LOG_LEVEL="warning",
                ) as antiphon,
            ):
                figures, problems = asyncio.run(measure(plan, direct, [antiphon, floor]))
        except BaseException:
            log.seek(0)
            sys.stderr.buffer.write(log.read())
            raise
    if problems:
        print(f"{len(problems)} wrong answers:", *problems[:5], sep="\n  ")
        return 1
    print(table(plan, figures["upstream"], figures["floor"], figures["antiphon"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
