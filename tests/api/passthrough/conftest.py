from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.upstream import Upstream


@pytest_asyncio.fixture
async def up() -> AsyncIterator[Upstream]:
    """The backend for passthrough."""
    async with Upstream() as upstream:
        yield upstream
