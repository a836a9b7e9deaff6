"""Runs checks concurrently and collects their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from openresponses_verify import samples
from openresponses_verify.checks import ALL_CHECKS
from openresponses_verify.exchange import HTTPExchange
from openresponses_verify.rows import Check, CheckResult, NotPassed, Verdict
from openresponses_verify.server import LAST_EXCHANGE, ServerAccess, VerifiedServer

VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "unsupported", "unclear")


class NothingToVerify(Exception):
    """Raised without a Responses server, a model or a matching check. The message names the reason."""


@dataclass
class VerifyReport:
    url: str
    model: str
    started_at: str  # ISO 8601, UTC
    seconds: float = 0.0
    requests: int = 0
    results: list[CheckResult] = field(default_factory=list)  # in registration order
    not_deleted: list[str] = field(default_factory=list)  # paths of objects still stored on the server
    interrupted: bool = False  # by Ctrl-C

    @property
    def summary(self) -> dict[str, int]:
        return {verdict: sum(result.verdict == verdict for result in self.results) for verdict in VERDICTS}


def chosen_checks(only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """
    Return checks with ids that match `only` but not `skip`.

    Raises `NothingToVerify` for a pattern in `only` without a match.
    """
    for pattern in only:
        if not any(fnmatchcase(check.id, pattern) for check in ALL_CHECKS):
            raise NothingToVerify(f"Invalid --only {pattern!r}: must match the id of a check, such as 'stream.*'.")
    return [
        check
        for check in ALL_CHECKS
        if (not only or any(fnmatchcase(check.id, pattern) for pattern in only))
        and not any(fnmatchcase(check.id, pattern) for pattern in skip)
    ]


async def verify_server(
    access: ServerAccess,
    checks: Sequence[Check] = ALL_CHECKS,
    progress: Callable[[CheckResult, int], None] = lambda result, total: None,
) -> VerifyReport:
    """
    Run checks against a server. `progress` receives each result and the number of checks.

    The base URL may lack `/v1`, and the model may be omitted. On cancellation, stored objects are still deleted, and
    the report contains the results so far. Raises `NothingToVerify`.
    """
    if not checks:
        raise NothingToVerify("No check is left to run.")
    began = time.monotonic()
    report = VerifyReport("", "", datetime.now(UTC).isoformat(timespec="seconds"))
    server = VerifiedServer(access)
    try:
        await _find(server)
        report.url, report.model = server.url, server.model
        report.interrupted = not await _run_all(server, checks, access.concurrency, progress, report.results)
        report.not_deleted = await server.clean_up()
    finally:
        await server.aclose()
    report.requests, report.seconds = server.requests, round(time.monotonic() - began, 3)
    return report


async def _find(server: VerifiedServer) -> None:
    """Find the base URL, and a model if none is named; raises `NothingToVerify`."""
    base_url = server.url
    for server.url in dict.fromkeys((base_url, f"{base_url}/v1")):
        exchange = await server.get("/models")
        named = server.model or _first_model(exchange)
        if not named:
            continue
        server.model = named
        exchange = await server.memoized(samples.text)
        if exchange.ok:
            return
        server.clear()
        if exchange.error or exchange.status not in (404, 405):
            break
    server.url = base_url
    if exchange.ok:
        raise NothingToVerify(f"{base_url} lists no model: name one with --model.")
    raise NothingToVerify(f"{exchange.method} {exchange.url}: {exchange.outcome()}")


def _first_model(exchange: HTTPExchange) -> str:
    return next((identifier for identifier in exchange.listed_ids if isinstance(identifier, str)), "")


async def _run_all(
    server: VerifiedServer,
    checks: Sequence[Check],
    concurrency: int,
    progress: Callable[[CheckResult, int], None],
    results: list[CheckResult],
) -> bool:
    """Append results in registration order; returns False if cancelled."""
    waiting = list(reversed(checks))
    ended: dict[str, CheckResult] = {}

    async def work() -> None:
        while waiting:
            result = await _one(server, waiting.pop())
            ended[result.check.id] = result
            progress(result, len(checks))

    try:
        await asyncio.gather(*(work() for _ in range(max(1, concurrency))))
    except asyncio.CancelledError:
        if task := asyncio.current_task():
            task.uncancel()
        await server.cancel_requests()
    results += [ended[check.id] for check in checks if check.id in ended]
    return len(ended) == len(checks)


async def _one(server: VerifiedServer, check: Check) -> CheckResult:
    began = time.monotonic()
    verdict: Verdict = "pass"
    detail = ""
    LAST_EXCHANGE.set(None)
    exchange = None
    try:
        await check.run(server)
    except NotPassed as ended:
        verdict, detail, exchange = ended.verdict, ended.detail, ended.exchange
    except Exception as error:
        verdict, detail = "unclear", f"The check cannot read the answer: {type(error).__name__}: {error}"
    exchange = exchange or LAST_EXCHANGE.get()
    request = exchange.curl() if exchange else ""
    return CheckResult(check, verdict, detail, request, round(time.monotonic() - began, 3))
