"""
Verifies every installed server, and writes `docs/conformance.md` and the table in README.

    python -m tests.conformance.run --write [NAME ...]

Results are in `tests/conformance/results.json`. Servers that are not installed keep their last results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from openresponses_verify.report import as_json
from openresponses_verify.runner import NothingToVerify, verify_server
from openresponses_verify.server import ServerAccess
from tests.bench.servers import ROOT, running, version
from tests.conformance.comparison import comparison
from tests.conformance.page import page, totals
from tests.conformance.servers import RESPONSES_UPSTREAM, SUBJECTS, UPSTREAM, Subject
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

RESULTS = ROOT / "tests" / "conformance" / "results.json"
PAGE = ROOT / "docs" / "conformance.md"
README = ROOT / "README.md"
READY = 600  # seconds until the first answer
BEGIN, END = "<!-- conformance -->", "<!-- /conformance -->"


def _environment(subject: Subject, stack: ExitStack) -> dict[str, str]:
    """Start the store and return the server's environment."""
    environment = dict(subject.server.environment)
    stores: dict[str, type[RedisServer] | type[PostgresServer]] = {"redis": RedisServer, "postgresql": PostgresServer}
    if subject.store in stores:
        environment["ANTIPHON_STORE_URL"] = stack.enter_context(stores[subject.store]()).url
    return environment


def _await(url: str) -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until:
        try:
            if httpx.get(url, timeout=10).status_code < 500:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer")


def verify(subject: Subject, log: Path) -> dict[str, Any]:
    """Run a server and the checks, and return the results to keep."""
    with ExitStack() as stack, log.open("wb") as output:
        upstream = stack.enter_context(running(UPSTREAM, output)).port if subject.behind else 0
        if subject.over_responses:
            upstream = stack.enter_context(running(RESPONSES_UPSTREAM, output, upstream, READY)).port
        server = replace(subject.server, environment=_environment(subject, stack))
        port = stack.enter_context(running(server, output, upstream, READY)).port
        base = f"http://127.0.0.1:{port}"
        _await(f"{base}{subject.path}{subject.ready}" if not subject.keys else f"{base}/healthz")
        report = asyncio.run(verify_server(ServerAccess(f"{base}{subject.path}", subject.model, *subject.keys)))
    document = json.loads(as_json(report))
    statuses = {row["id"]: row["status"] for row in document["checks"]}
    details = {
        row["id"]: _line(str(row["detail"]), {str(port): "PORT", **({} if subject.behind else {subject.model: "tiny"})})
        for row in document["checks"]
        if row["status"] == "fail"
    }
    return {
        "version": _version(subject),
        "date": datetime.now(UTC).date().isoformat(),
        "settings": subject.settings,
        "requests": report.requests,
        "statuses": statuses,
        "details": details,
    }


def _line(detail: str, names: dict[str, str]) -> str:
    """Return a detail's first line, shortened, with machine-independent names."""
    line = " ".join(detail.splitlines()[0].split())
    for name, other in names.items():
        line = line.replace(name, other)
    return line[:220]


def _version(subject: Subject) -> str:
    try:
        return version(subject.server).splitlines()[0].removeprefix("version: ") if subject.server.version else ""
    except (OSError, subprocess.SubprocessError):
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="servers to run; all that are installed by default")
    parser.add_argument("--write", action="store_true", help="write the page, and the table in README")
    parser.add_argument("--logs", type=Path, default=Path("/tmp"), help="a directory for the logs of the servers")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for subject in SUBJECTS:
        if options.names and subject.name not in options.names:
            continue
        if not subject.runs_here:
            print(f"{subject.name}: not installed")
            continue
        try:
            results[subject.name] = verify(subject, options.logs / f"{subject.name.replace(' ', '-')}.log")
        except (NothingToVerify, RuntimeError) as error:
            print(f"{subject.name}: {error}")
            continue
        counts = list(results[subject.name]["statuses"].values())
        print(f"{subject.name}: {counts.count('pass')} pass, {counts.count('fail')} fail", flush=True)
        if options.write:
            write({subject.name: results[subject.name] for subject in SUBJECTS if subject.name in results})


def write(results: dict[str, Any]) -> None:
    """Keep the results, and write the page, and the table and the totals in README."""
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    before, found, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    if found:
        README.write_text(f"{before}{BEGIN}{of_readme(results)}{END}{rest.partition(END)[2]}", encoding="utf-8")


def of_readme(results: dict[str, Any]) -> str:
    """Return README's text about the results."""
    return f"\n\n{comparison(results)}\n\n{totals(results)}\n\n"


if __name__ == "__main__":
    main()
