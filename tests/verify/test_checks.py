"""The checks against Antiphon itself, which passes them all."""

from __future__ import annotations

from app.backends.demo import DemoBackend
from app.verify.checks import ALL_CHECKS
from app.verify.runner import VerifyReport, verify_server
from tests.support.sockets import listening

# What the demo does not do, whatever it is told: make two calls at once, know its name, and take long.
UNCLEAR = {"tools.parallel", "errors.model", "background.cancel"}
KEYS = ("sk-one", "sk-two")


def others(report: VerifyReport) -> list[str]:
    """Return what did not pass, beside what may be unclear."""
    unclear = {result.check.id for result in report.results if result.verdict == "unclear"}
    return [
        f"{result.check.id}: {result.verdict}: {result.detail}"
        for result in report.results
        if result.verdict != "pass" and result.check.id not in unclear & UNCLEAR
    ]


async def test_antiphon_with_keys_passes_every_check_and_stores_nothing_in_the_end() -> None:
    async with listening(DemoBackend(), api_keys=list(KEYS)) as url:
        report = await verify_server(url, key=KEYS[0], second_key=KEYS[1])
        assert others(report) == []
        assert report.not_deleted == []
        assert len(report.results) == len(ALL_CHECKS)
        assert report.requests <= 320


async def test_antiphon_without_keys_passes_every_check_but_those_of_keys() -> None:
    async with listening(DemoBackend()) as url:
        report = await verify_server(url)
    unsupported = {result.check.id for result in report.results if result.verdict == "unsupported"}
    assert unsupported == {
        *(check.id for check in ALL_CHECKS if check.group == "isolation"),
        *("errors.no-key", "errors.wrong-key"),
    }
    assert [one for one in others(report) if ": unsupported: " not in one] == []


def test_ids_are_unique_and_every_row_has_its_sentence_and_its_place() -> None:
    ids = [check.id for check in ALL_CHECKS]
    assert len(set(ids)) == len(ids)
    for check in ALL_CHECKS:
        assert check.title and check.law.endswith((".", ":", "]")) and check.source
