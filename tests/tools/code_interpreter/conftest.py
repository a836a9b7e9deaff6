from __future__ import annotations

from collections.abc import AsyncIterator
from copy import copy

import pytest
import pytest_asyncio
from pydantic import ByteSize

from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.bubblewrap.process import Sandbox
from app.tools.code_interpreter.settings import CodeSettings

MEBIBYTE = 1024 * 1024
MEMORY = 256 * MEBIBYTE
LIMITS = CodeSettings(provider="bubblewrap", disk=ByteSize(8 * MEBIBYTE), processes=24, cpus=1)


def limited(bubblewrap: Bubblewrap, settings: CodeSettings = LIMITS) -> Bubblewrap:
    made = copy(bubblewrap)
    made.settings = settings
    return made


@pytest.fixture(scope="session")
def bubblewrap() -> Bubblewrap:
    """Sandboxes, if this machine supports them."""
    try:
        made = Bubblewrap(CodeSettings(provider="bubblewrap"))
        made.probe()
    except ValueError as error:
        pytest.skip(f"no sandboxes here: {error}")
    return made


@pytest_asyncio.fixture
async def sandbox(bubblewrap: Bubblewrap) -> AsyncIterator[Sandbox]:
    sandbox = await limited(bubblewrap).start(MEMORY)
    yield sandbox
    await sandbox.aclose()


@pytest_asyncio.fixture
async def signalled(bubblewrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sandbox]:
    """A sandbox frozen by signals, without a control group, with up to two CPUs."""
    monkeypatch.setattr(bubblewrap, "_groups", None)
    sandbox = await limited(bubblewrap, LIMITS.model_copy(update={"cpus": 2})).start(MEMORY)
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
    sandbox = await limited(bubblewrap, LIMITS.model_copy(update={"cpus": 2})).start(MEMORY)
    yield sandbox
    await sandbox.aclose()
