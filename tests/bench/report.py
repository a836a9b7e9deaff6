"""Tables of the results, for the terminal and for docs/speed.md, and a sentence for README.md."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from statistics import median

from tests.bench.results import Results
from tests.bench.scenarios import PACED, Scenario
from tests.bench.servers import ROOT, UPSTREAM, Server, version

UNITS = {"delta": ("µs", 1e6), "request": ("ms", 1e3), "round": ("ms", 1e3)}
ANTIPHON = "antiphon"
QUOTED = {"S1", "S2", "S3", "S5"}  # in README.md
COMMAND = "make bench-peers bench"


def figures(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server]) -> str:
    """Return all tables, as Markdown."""
    return "\n\n".join(
        part
        for part in (
            "CPU of the server, user and system, medians of the rounds:",
            cpu_table(results, scenarios, servers),
            "Ratios of these within a round, medians of the rounds:",
            ratio_table(results, scenarios, servers),
            "Time and memory:",
            time_table(results, servers),
            instruction_table(results, scenarios, servers),
            "\n".join(_left_out(results)),
        )
        if part
    )


def cpu_table(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server]) -> str:
    """Return a row for each scenario, a column for each server."""
    rows = []
    for scenario in scenarios:
        if scenario.per in UNITS:
            unit, scale = UNITS[scenario.per]
            cells = [shown(results.cpu(scenario, server.name), scale) for server in servers]
            rows.append([scenario.name, scenario.about, f"{unit} / {scenario.per}", *cells])
    return table(["", "", "", *(server.name for server in servers)], rows)


def ratio_table(results: Results, scenarios: Iterable[Scenario], servers: Sequence[Server]) -> str:
    """Return Antiphon's CPU relative to the proxies, and its peers' CPU relative to Antiphon."""
    names = [server.name for server in servers if server.name != ANTIPHON]
    pairs = [(name, ANTIPHON) if _peer(name, servers) else (ANTIPHON, name) for name in names]
    rows = [
        [scenario.name, scenario.about, *(shown(results.ratio(scenario, *pair)) for pair in pairs)]
        for scenario in scenarios
        if scenario.per in UNITS
    ]
    return table(["", "", *(f"{one} / {other}" for one, other in pairs)], rows)


def time_table(results: Results, servers: Sequence[Server]) -> str:
    names = [server.name for server in servers]
    paced = {name: results.of(PACED, name) for name in names}
    first = {
        name: median(measurement.first for measurement in measurements)
        for name, measurements in paced.items()
        if measurements
    }
    late = {
        name: median(measurement.late for measurement in measurements)
        for name, measurements in paced.items()
        if measurements
    }
    rows: list[list[str]] = []
    for about, unit, scale, values in (
        (
            "first delta, one stream: time added to the direct call",
            "ms",
            1e3,
            {n: results.added(n, UPSTREAM.name) for n in names},
        ),
        ("S3: time to the first delta", "ms", 1e3, first),
        ("S3: delay of the end of a stream", "ms", 1e3, late),
        ("memory at rest", "MB", 1e-6, results.resting),
        ("memory per open stream", "kB", 1e-3, results.held),
    ):
        rows.append([about, unit, *(shown(values.get(name), scale) for name in names)])
    return table(["", "", *names], rows)


def instruction_table(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server]) -> str:
    """Return the instruction table with its introduction; "" without counts."""
    counts = results.instructions
    names = [server.name for server in servers if any(name == server.name for _, name in counts)]
    rows = [
        [
            scenario.name,
            scenario.about,
            scenario.per,
            *(shown(counts.get((scenario.name, name)), 1e-3) for name in names),
        ]
        for scenario in scenarios
        if any(found == scenario.name for found, _ in counts)
    ]
    introduction = "Thousands of instructions, counted by callgrind, one request at a time:"
    return f"{introduction}\n\n{table(['', '', 'per', *names], rows)}" if rows else ""


def write(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server], rounds: int) -> None:
    """Write the figures into docs/speed.md and a sentence about them into README.md, between the marks there."""
    run = f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}; `{COMMAND}`, {rounds} rounds."
    who = table(["", "", "version"], [[server.name, server.about, version(server)] for server in servers])
    _between_marks("docs/speed.md", f"{run}\n\n{who}\n\n{figures(results, scenarios, servers)}")
    quoted = [scenario for scenario in scenarios if scenario.name in QUOTED]
    _between_marks("README.md", sentence(results, quoted, servers))


def sentence(results: Results, scenarios: Sequence[Scenario], servers: Sequence[Server]) -> str:
    """Return how much CPU peers take relative to Antiphon: the least and the most of some scenarios."""
    parts = []
    for peer in (server.name for server in servers if server.peer):
        ratios = [ratio for one in scenarios if (ratio := results.ratio(one, peer, ANTIPHON)) is not None]
        if ratios:
            parts.append(f"{peer} {shown(min(ratios))} to {shown(max(ratios))}")
    return f"CPU time for the same answers, relative to Antiphon (1.0): {', '.join(parts)} ([speed](docs/speed.md))."


def _between_marks(path: str, text: str) -> None:
    document = (ROOT / path).read_text(encoding="utf-8")
    marks = re.compile(r"(<!-- make bench -->\n).*?(<!-- end -->)", re.DOTALL)
    written, count = marks.subn(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", document)
    if count != 1:
        raise ValueError(f"{path} should have the marks once")
    (ROOT / path).write_text(written, encoding="utf-8")


def _machine() -> str:
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            processor = next(line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {processor}, {platform.system()}, Python {platform.python_version()}"


def _left_out(results: Results) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for (scenario, server), why in results.left_out.items():
        reasons.setdefault((server, why), []).append(scenario)
    return [
        f"- {server} has no figures for {', '.join(names)}: {_quoted(why)}" for (server, why), names in reasons.items()
    ]


def _quoted(why: str) -> str:
    return f"`{' '.join(why.replace('`', '').split())[:160]}`"


def _peer(name: str, servers: Sequence[Server]) -> bool:
    return any(server.peer for server in servers if server.name == name)


def shown(value: float | None, scale: float = 1.0) -> str:
    """Return a number with three significant digits, or a dash for None."""
    if value is None:
        return "-"
    scaled = value * scale
    return f"{scaled:,.{0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown with its numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    numbers = [all(re.fullmatch(r"-?[\d.,]*", row[at]) for row in rows) for at in range(len(head))]

    def line(cells: list[str]) -> str:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(cells, widths, numbers, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (width + 1) + (":" if number else "-") for width, number in zip(widths, numbers, strict=True))
    return "\n".join([line(head), f"|{rule}|", *map(line, rows)])
