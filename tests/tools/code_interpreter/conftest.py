from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from app.tools.code_interpreter.bubblewrap import Bubblewrap, SandboxLimits, SandboxUnavailable
from app.tools.code_interpreter.bubblewrap.process import Sandbox
from app.tools.code_interpreter.settings import CodeSettings

MEBIBYTE = 1024 * 1024
LIMITS = SandboxLimits(memory=256 * MEBIBYTE, disk=8 * MEBIBYTE, processes=24, cpus=1)


@pytest.fixture(scope="session")
def bubblewrap() -> Bubblewrap:
    """Sandboxes, if this machine supports them."""
    try:
        made = Bubblewrap(CodeSettings(provider="bubblewrap"))
        made.probe()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandboxes here: {error}")
    return made


@pytest_asyncio.fixture
async def sandbox(bubblewrap: Bubblewrap) -> AsyncIterator[Sandbox]:
    sandbox = await bubblewrap.start(LIMITS)
    yield sandbox
    await sandbox.aclose()


@pytest_asyncio.fixture
async def signalled(bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    """A sandbox frozen by signals, without a control group, with up to two CPUs."""
    monkeypatch.setattr(bubblewrap, "_groups", None)
    sandbox = await bubblewrap.start(replace(LIMITS, cpus=2))
    yield sandbox
    await sandbox.aclose()


@pytest_asyncio.fixture(params=["signals", "cgroup"])
async def frozen(
    bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Sandbox]:
    """A sandbox frozen by signals only, and a sandbox that also uses its control group."""
    if request.param == "signals":
        monkeypatch.setattr(bubblewrap, "_groups", None)
    elif bubblewrap._groups is None:
        pytest.skip("this process cannot make control groups")
    sandbox = await bubblewrap.start(replace(LIMITS, cpus=2))
    yield sandbox
    await sandbox.aclose()
