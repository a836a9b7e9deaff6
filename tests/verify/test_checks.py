"""The checks against Antiphon itself, which passes them all."""

from __future__ import annotations

from app.backends.demo import DemoBackend
from app.verify.runner import VerifyReport, verify_server
from tests.support.serving import antiphon


def failures(report: VerifyReport) -> list[str]:
    return [f"{result.check.id}: {result.detail}" for result in report.results if result.verdict == "fail"]


async def test_antiphon_with_the_demo_passes_every_check() -> None:
    async with antiphon(DemoBackend()) as url:
        report = await verify_server(url)
    assert failures(report) == []
    assert report.not_deleted == []
