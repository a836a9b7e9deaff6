from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.tools.code_interpreter.bubblewrap import Bubblewrap, Sandbox, SandboxLimits, SandboxUnavailable
from app.tools.code_interpreter.settings import CodeSettings

MEBIBYTE = 1024 * 1024
LIMITS = SandboxLimits(memory=256 * MEBIBYTE, disk=8 * MEBIBYTE, processes=24, cpus=1)


@pytest.fixture(scope="session")
def bubblewrap() -> Bubblewrap:
    """What makes sandboxes, where this machine can."""
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
