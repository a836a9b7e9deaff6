from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from app.backends import OpenRequest
from app.backends.demo import DemoBackend
from app.core.request.model_request import ModelRequest
from tests.studio.browser import Studio, chromium, chromium_path
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

KEYS = [f"key-{number}" for number in range(500)]  # one per test on the shared page


class ScriptedDemo(Scripted):
    """The demo backend, which answers with scripts where a test has set `scripts`."""

    def __init__(self) -> None:
        self.demo = DemoBackend()
        super().__init__(profile=self.demo.profile("demo"))

    def open(self, model_request: ModelRequest) -> OpenRequest:
        return super().open(model_request) if self.scripts else self.demo.open(model_request)

    async def count_tokens(self, model_request: ModelRequest) -> int:
        return await self.demo.count_tokens(model_request)

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        return await self.demo.models(caller_key)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium for all tests of the studio."""
    path = chromium_path()
    if path is None:
        pytest.skip("Chromium is not installed: on Debian, apt install chromium")
    async with chromium(path) as browser:
        yield browser


@pytest.fixture(scope="package")
def shared_backend() -> ScriptedDemo:
    return ScriptedDemo()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_studio(
    browser: Browser, shared_backend: ScriptedDemo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Studio]:
    files = tmp_path_factory.mktemp("studio") / "files.db"
    tools = {"demo": {}, "file_search": {"store_url": f"sqlite:///{files}"}}
    async with (
        antiphon(shared_backend, tools=tools, api_keys=",".join(KEYS)) as url,
        Studio.open(browser, url, key=KEYS[-1]) as studio,
    ):
        yield studio


@pytest.fixture(scope="package")
def keys() -> Iterator[str]:
    return iter(KEYS)


@pytest_asyncio.fixture(loop_scope="package")
async def studio(
    request: pytest.FixtureRequest, shared_studio: Studio, shared_backend: ScriptedDemo, keys: Iterator[str]
) -> AsyncIterator[Studio]:
    """
    A freshly reset page, on a server with the demo backend `backend`.

    All tests share the page, because loading takes longer than most of them. Tests of loading or browser storage use a
    new page: `Studio.open`.
    """
    studio = shared_studio
    shared_backend.scripts, shared_backend.received = [], []
    await studio.begin(next(keys))
    failed = request.session.testsfailed
    yield studio
    await studio.page.unroute_all(behavior="ignoreErrors")
    trouble = studio.trouble.copy()
    if trouble or request.session.testsfailed > failed:
        await studio.page.goto("about:blank")
        await studio.page.goto(f"{studio.url}/studio")
        studio.trouble.clear()
    assert trouble == [], trouble


@pytest.fixture
def backend(studio: Studio, shared_backend: ScriptedDemo) -> Scripted:
    """The backend of `studio`: answers as the demo does, or with its `scripts`."""
    return shared_backend
