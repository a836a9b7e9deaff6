"""Fixtures for client tests: Antiphon with a scripted upstream, and Antiphon with the demo backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from app.main import create_app
from tests.clients.clients import CLIENTS, FRAMEWORKS
from tests.clients.program import end_drivers
from tests.clients.wire import Wire
from tests.support.serving import antiphon, serving, settings
from tests.support.upstream import Upstream, upstream

__all__ = ["upstream"]

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clients: runs a real client, whose package npm has installed")
    config.addinivalue_line("markers", "xdist_group(name): tests that one process runs")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the clients alone unless they are asked for, by `-m clients` or by their place."""
    named = [Path(config.invocation_params.dir, argument.partition("::")[0]).resolve() for argument in config.args]
    selected = "clients" in (config.option.markexpr or "") or any(path.is_relative_to(HERE) for path in named)
    return None if selected else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("clients")
            name = item.callspec.params.get("name") if hasattr(item, "callspec") else None
            client = CLIENTS.get(name) or FRAMEWORKS.get(name)
            if client and client.driver.endswith(".py"):  # its packages are imported once, and not by every process
                item.add_marker(pytest.mark.xdist_group(f"{client.driver} {client.package}"))


@pytest.fixture(autouse=True, scope="session")
def drivers() -> Iterator[None]:
    """Stop driver processes."""
    yield
    end_drivers()


@pytest.fixture
def wire() -> Wire:
    """The traffic in front of `server`."""
    return Wire()


@pytest_asyncio.fixture
async def server(upstream: Upstream, wire: Wire) -> AsyncIterator[str]:
    """The base URL, with `/v1`, of an Antiphon with the scripted upstream."""
    async with serving(wire.before(create_app(settings(backend_url=upstream.url)))) as url:
        yield f"{url}/v1"


@pytest_asyncio.fixture
async def demo() -> AsyncIterator[str]:
    """The base URL, with `/v1`, of an Antiphon with the demo backend."""
    async with antiphon() as url:
        yield f"{url}/v1"
