"""The checks against faulty servers: each fault is found by its check, and by no other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase

import pytest
import pytest_asyncio

from app.backends.demo import DemoBackend
from app.main import create_app
from openresponses_verify.checks import ALL_CHECKS
from openresponses_verify.rows import Check
from openresponses_verify.runner import chosen_checks, verify_server
from openresponses_verify.server import ServerAccess
from tests.support.serving import serving, settings
from tests.verify import answer_faults, state_faults, stream_faults
from tests.verify.broken_server import FAULTS, BrokenServer, Fault
from tests.verify.reach import Reach

MODULES = (stream_faults, answer_faults, state_faults)  # each registers its own
KEYS = ("sk-one", "sk-two")
CHECKS = chosen_checks(skip=["suite.*"])


@contextlib.asynccontextmanager
async def broken_by(fault: Fault) -> AsyncIterator[ServerAccess]:
    """Serve Antiphon with a fault."""
    app = create_app(settings(api_keys=list(KEYS)), backend=DemoBackend())
    options = {"ws": "app.api.uvicorn.websocket:WebSocketProtocol", "ws_per_message_deflate": False}
    async with serving(BrokenServer(app, fault), **options) as url:  # type: ignore[arg-type]
        yield ServerAccess(f"{url}/v1", "demo", *KEYS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reach() -> Reach:
    """Which checks a fault reaches."""
    reach = Reach()
    async with broken_by(reach.recorder) as access:
        await reach.record(access, CHECKS)
    return reach


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_fault_is_found_by_its_check_and_by_no_unrelated_one(fault: Fault, reach: Reach) -> None:
    """Only the reached checks run: on recorded answers with the fault, or against a server if their requests change."""
    failed, others = await reach.replay(fault, reach.of(fault, CHECKS))
    if others:
        failed |= await failed_with(fault, others)
    assert fault.found_by in failed
    patterns = (fault.found_by, *fault.also)
    unrelated = {id: detail for id, detail in failed.items() if not any(fnmatchcase(id, one) for one in patterns)}
    assert unrelated == {}


@pytest.mark.parametrize("fault", FAULTS[::20], ids=lambda fault: fault.name)
async def test_fault_of_a_server_is_found_as_on_recorded_answers(fault: Fault, reach: Reach) -> None:
    checks = reach.of(fault, CHECKS)
    failed, others = await reach.replay(fault, checks)
    of_server = await failed_with(fault, checks)
    assert of_server.keys() - {check.id for check in others} == failed.keys()


async def failed_with(fault: Fault, checks: list[Check]) -> dict[str, str]:
    """Return why checks fail against a server with a fault, by their ids."""
    async with broken_by(fault) as access:
        report = await verify_server(access, checks)
    return {result.check.id: result.detail for result in report.results if result.verdict == "fail"}


def test_faults_name_checks_that_exist() -> None:
    ids = [check.id for check in ALL_CHECKS]
    for fault in FAULTS:
        assert fault.found_by in ids
        assert all(any(fnmatchcase(id, pattern) for id in ids) for pattern in fault.also)


def test_faults_are_many_and_found_by_many_checks() -> None:
    assert len(FAULTS) >= 120
    assert len({fault.found_by for fault in FAULTS}) >= 100
