"""
Measure Antiphon's overhead against the direct call, a byte proxy and peers, in the same run.

    python -m tests.bench.bench --write            25 minutes; writes docs/speed.md, docs/speed.svg and README.md
    python -m tests.bench.bench --only antiphon,nginx --scenarios S2,S3 --rounds 2
    python -m tests.bench.bench --only "antiphon,antiphon by responses,antiphon by messages" --scenarios S1,S2,S5
    python -m tests.bench.bench --smoke            a few seconds; fails only on wrong answers

Servers take turns in every round, so that disturbances affect all of them. Trust the ratios.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import TypeVar

from tests.bench import eventloop, instructions, plot, report
from tests.bench.answers import answer
from tests.bench.cost import cpu, memory
from tests.bench.gateways import AGENTIC_API, CODEX_RELAY, SMG
from tests.bench.load import Reply, begun, hold, volley
from tests.bench.results import Measurement, Results
from tests.bench.scenarios import HELD, SCENARIOS, Scenario, shortened
from tests.bench.servers import BY_API, SERVERS, UPSTREAM, Server, Target, on_processors, running

Row = TypeVar("Row", Scenario, Server)
# Two gateways need a Responses server, so Antiphon is measured over the same API, too.
COMPARED = (*SERVERS, BY_API[0], SMG, AGENTIC_API, CODEX_RELAY)
ALL = (*COMPARED, *BY_API[1:])
SMOKE = ("antiphon", "antiphon by responses", "antiphon by messages", "byte proxy")


class WrongAnswer(Exception):
    """A server's answer differs from the model's."""


class Bench:
    """A run: the servers in each scenario, and their figures."""

    def __init__(self, scenarios: Sequence[Scenario], direct: Target, measured: Sequence[Target]) -> None:
        self.scenarios, self.direct, self.measured = scenarios, direct, list(measured)
        self.results = Results()
        self.parents: dict[tuple[str, str], str] = {}

    def taking_part(self, scenario: Scenario) -> list[Target]:
        """Return the servers to measure. The upstream itself is measured for times alone, not for CPU."""
        targets = [self.direct, *self.measured] if scenario.per == "time" else self.measured
        able = [target for target in targets if target.server.answers(scenario.name)]
        return [target for target in able if (scenario.name, target.name) not in self.results.left_out]

    def leave_out(self, scenario: Scenario, target: Target, why: str) -> None:
        """Leave a peer out of a scenario from now on; others have to answer rightly."""
        if not target.server.peer:
            raise WrongAnswer(f"{target.name}, {scenario.name}: {why}")
        print(f"{target.name} is left out of {scenario.name}: {why}", file=sys.stderr)
        self.results.left_out[scenario.name, target.name] = why
        self.results.measurements.pop((scenario.name, target.name), None)

    async def ask(self, scenario: Scenario, target: Target, total: int) -> list[Reply]:
        """Send a round's requests to a server; returns [], and skips the server from then on, after a wrong answer."""
        replies = await volley(target, scenario, total, self.parents.get((scenario.name, target.name), ""))
        for reply in replies:
            if why := reply.wrong(target.server, scenario):
                self.leave_out(scenario, target, why)
                return []
        return replies

    async def warm_up(self) -> None:
        """Check all servers' answers before measuring."""
        for scenario in self.scenarios:
            for target in self.taking_part(scenario):
                if await self.ask(scenario._replace(turns=range(min(scenario.turns.stop, 2))), target, 2):
                    self.parents[scenario.name, target.name] = await begun(target, scenario)

    async def weigh(self, held: Scenario) -> None:
        """Measure memory first, before anything is reused."""
        for target in self.measured:
            self.results.resting[target.name] = memory(target.pid)
            count = min(held.at_once, 50) if target.server.peer else held.at_once
            try:
                self.results.held[target.name] = await hold(target, held, count)
            except TimeoutError:
                self.leave_out(held, target, f"{count} streams did not begin")

    async def round(self, number: int) -> None:
        """Measure every server in every scenario once, starting with another server each time."""
        for scenario in self.scenarios:
            targets = self.taking_part(scenario)
            for at in range(len(targets)):
                target = targets[(at + number) % len(targets)]
                total = max(scenario.at_once, round(scenario.total * target.server.share))
                before = cpu(target.pid)
                if replies := await self.ask(scenario, target, total):
                    measurement = measurement_of(scenario, total, replies, cpu(target.pid) - before)
                    self.results.measurements.setdefault((scenario.name, target.name), []).append(measurement)


def measurement_of(scenario: Scenario, total: int, replies: Sequence[Reply], used: float) -> Measurement:
    """Return the figures for a round with `total` conversations."""
    prepared = answer(scenario.model)
    due = (len(prepared.pieces) - 1) * prepared.delay
    parts = len(replies) * (len(prepared.pieces) if scenario.per == "delta" else 1)
    return Measurement(
        used / (total * (scenario.rounds + 1) if scenario.rounds else parts),
        median(reply.first - reply.started for reply in replies),
        median(reply.ended - reply.started - due for reply in replies),
    )


async def measure(bench: Bench, held: Scenario, rounds: int) -> Results:
    begin = time.monotonic()
    await bench.warm_up()
    await bench.weigh(held)
    for number in range(rounds):
        print(f"{time.monotonic() - begin:4.0f} s: round {number + 1} of {rounds}", file=sys.stderr)
        await bench.round(number)
    return bench.results


def main() -> int:
    """Run the bench; return 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description="Measure what Antiphon adds.")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that the answers are right")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/ and README.md")
    parser.add_argument("--rounds", type=int, help="rounds to run; default: 5")
    parser.add_argument("--only", help="servers, by name, separated by commas")
    parser.add_argument("--scenarios", help="likewise")
    arguments = parser.parse_args()

    scenarios = chosen(SCENARIOS, arguments.scenarios)
    servers = chosen(ALL, arguments.only) if arguments.only else COMPARED
    held, rounds = HELD, arguments.rounds or 5
    if arguments.smoke:
        scenarios, servers = tuple(map(shortened, SCENARIOS)), chosen(ALL, ",".join(SMOKE))
        held, rounds = shortened(HELD), 1
    for server in servers:
        if not server.installed:
            print(f"{server.name} is not installed, and left out", file=sys.stderr)
    servers = tuple(server for server in servers if server.installed)

    with tempfile.TemporaryFile() as log, ExitStack() as stack:
        try:
            with on_processors(first=False):
                direct = stack.enter_context(running(UPSTREAM, log))
            with on_processors(first=True):
                measured = [stack.enter_context(running(server, log, direct.port)) for server in servers]
            with on_processors(first=False):
                results = eventloop.run(measure(Bench(scenarios, direct, measured), held, rounds))
            if not arguments.smoke:
                results.instructions = instructions.count(scenarios, servers, direct.port, log)
        except WrongAnswer as wrong:
            print(f"A wrong answer. {wrong}")
            return 1
        except BaseException:
            log.seek(0)
            sys.stderr.buffer.write(log.read()[-20_000:])
            raise
    if arguments.smoke:
        print("Every answer was right.")
        return 0
    print(report.figures(results, scenarios, servers))
    if arguments.write and (arguments.only or arguments.scenarios):
        print("This is a part of it only, and is not written down.", file=sys.stderr)
    elif arguments.write:
        report.write(results, scenarios, servers, rounds)
        plot.write(results, scenarios, servers)
    return 0


def chosen(table: tuple[Row, ...], names: str | None) -> tuple[Row, ...]:
    """Return the named rows, by default all; raises SystemExit for an unknown name."""
    if not names:
        return table
    wanted = names.split(",")
    if unknown := set(wanted) - {row.name for row in table}:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in table)}")
    return tuple(row for row in table if row.name in wanted)


if __name__ == "__main__":
    sys.exit(main())
