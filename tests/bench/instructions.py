"""
Instructions per request or delta, counted by valgrind's callgrind.

Unlike CPU time, counts are stable on a busy machine, within a percent. Requests are sent sequentially.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from tests.bench import eventloop
from tests.bench.answers import answer
from tests.bench.load import volley
from tests.bench.scenarios import Scenario
from tests.bench.servers import Server, Target, running

REQUESTS = {"S1": 60, "S2": 25, "S3": 5}  # counted, by scenario
WARM_UP = 15  # requests
START = 300  # seconds; valgrind runs code fifty times slower


def count(
    scenarios: Iterable[Scenario], servers: Sequence[Server], upstream: int, log: IO[bytes]
) -> dict[tuple[str, str], float]:
    """
    Return instructions by names of scenario and server, per delta or request; {} without valgrind.

    Counts only this project's servers, for the scenarios in `REQUESTS`.
    """
    if not shutil.which("callgrind_control"):
        print("instructions are not counted: valgrind is not installed")
        return {}
    alone = [scenario._replace(at_once=1, spread=False) for scenario in scenarios if scenario.name in REQUESTS]
    counts: dict[tuple[str, str], float] = {}
    for server in servers:
        if server.command[0] != sys.executable:
            continue
        able = [scenario for scenario in alone if server.answers(scenario.name)]
        with tempfile.TemporaryDirectory() as folder:
            with running(_under_valgrind(server, folder), log, upstream, START) as target:
                _control("--instr=on", target)  # once: later switches make callgrind's totals wrong
                for scenario in able:
                    counts[scenario.name, server.name] = _counted(target, scenario, Path(folder))
    return counts


def _under_valgrind(server: Server, folder: str) -> Server:
    tool = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/callgrind")
    return replace(
        server,
        command=(*tool, *server.command),
        environment={**server.environment, "PYTHONHASHSEED": "0"},
    )


def _counted(target: Target, scenario: Scenario, folder: Path) -> float:
    requests = REQUESTS[scenario.name]
    _ask(target, scenario, min(requests, WARM_UP))
    _control("--zero", target)
    _ask(target, scenario, requests)
    before = {*folder.iterdir()}
    _control("--dump", target)
    (dump,) = {*folder.iterdir()} - before
    deltas = len(answer(scenario.model).pieces) if scenario.per == "delta" else 1
    return total(dump.read_text(errors="replace")) / (requests * deltas)


def _ask(target: Target, scenario: Scenario, requests: int) -> None:
    for reply in eventloop.run(volley(target, scenario, requests)):
        if problem := reply.wrong(target.server, scenario):
            raise RuntimeError(f"{target.name}, {scenario.name}: {problem}")


def _control(option: str, target: Target) -> None:
    subprocess.run(["callgrind_control", option, str(target.pid)], check=True, capture_output=True)


def total(dump: str) -> int:
    """Return the instruction count in callgrind's output file."""
    found = re.search(r"^(?:totals|summary): (\d+)", dump, re.MULTILINE)
    if not found:
        raise ValueError("The dump must contain a line 'totals:'.")
    return int(found[1])
