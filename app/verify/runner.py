"""Runs the checks: which of them, side by side, and what came of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from app.verify import samples
from app.verify.checks import ALL_CHECKS
from app.verify.exchange import HTTPExchange
from app.verify.rows import Check, CheckResult, Ended, Verdict
from app.verify.server import ServerAccess, VerifiedServer

VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "unsupported", "unclear")


class NothingToVerify(Exception):
    """There is no Responses server, or no model to ask, or no check was chosen; the message says which."""


@dataclass
class VerifyReport:
    """What came of the checks of one server."""

    url: str
    model: str
    started_at: str  # ISO 8601, UTC
    seconds: float = 0.0
    requests: int = 0
    results: list[CheckResult] = field(default_factory=list)  # in the order of the table
    not_deleted: list[str] = field(default_factory=list)  # paths of what the server still stores

    @property
    def summary(self) -> dict[str, int]:
        """How many checks ended in which way."""
        return {verdict: sum(result.verdict == verdict for result in self.results) for verdict in VERDICTS}


def chosen_checks(only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """Return the checks whose ids fit any of the patterns `only` and none of `skip`, in the order of the table."""
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
    Check a server; `progress` is called with each result and the number of checks.

    The base URL may lack its `/v1`, and the model its name. Raises `NothingToVerify`.
    """
    if not checks:
        raise NothingToVerify("No check has such an id.")
    began = time.monotonic()
    report = VerifyReport("", "", datetime.now(UTC).isoformat(timespec="seconds"))
    server = VerifiedServer(access)
    try:
        await _find(server)
        report.url, report.model = server.url, server.model
        report.results = await _all(server, checks, access.concurrency, progress)
        report.not_deleted = await server.clean_up()
    finally:
        await server.aclose()
    report.requests, report.seconds = server.requests, round(time.monotonic() - began, 3)
    return report


async def _find(server: VerifiedServer) -> None:
    """Find the model if none is named, and the base URL; raises `NothingToVerify`."""
    given = server.url
    for server.url in dict.fromkeys((given, f"{given}/v1")):
        exchange = await server.get("/models")
        named = server.model or _first_model(exchange)
        if not named:
            continue
        server.model = named
        exchange = await server.once(samples.text)
        if exchange.ok:
            return
        server.forget()
        if exchange.error or exchange.status not in (404, 405):
            break
    server.url = given
    if exchange.ok:
        raise NothingToVerify(f"{given} lists no model: name one with --model.")
    raise NothingToVerify(f"{exchange.method} {exchange.url}: {exchange.outcome()}")


def _first_model(exchange: HTTPExchange) -> str:
    return next((identifier for identifier in exchange.listed_ids if isinstance(identifier, str)), "")


async def _all(
    server: VerifiedServer, checks: Sequence[Check], concurrency: int, progress: Callable[[CheckResult, int], None]
) -> list[CheckResult]:
    waiting = list(reversed(checks))
    results: dict[str, CheckResult] = {}

    async def work() -> None:
        while waiting:
            result = await _one(server, waiting.pop())
            results[result.check.id] = result
            progress(result, len(checks))

    await asyncio.gather(*(work() for _ in range(max(1, concurrency))))
    return [results[check.id] for check in checks]


async def _one(server: VerifiedServer, check: Check) -> CheckResult:
    began = time.monotonic()
    verdict: Verdict = "pass"
    detail = request = ""
    try:
        await check.run(server)
    except Ended as ended:
        verdict, detail = ended.verdict, ended.detail
        request = ended.exchange.curl() if ended.exchange else ""
    except Exception as error:
        verdict, detail = "unclear", f"The check cannot read the answer: {type(error).__name__}: {error}"
    return CheckResult(check, verdict, detail, request, round(time.monotonic() - began, 3))
