from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.studio.browser import chromium, chromium_path


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium for all tests of the studio."""
    path = chromium_path()
    if path is None:
        pytest.skip("Chromium is not installed: on Debian, apt install chromium")
    async with chromium(path) as browser:
        yield browser
