"""Each pinned client package is recognised; `tests/core/test_dialects.py` has their user agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.dialects import DIALECTS, dialect_of
from tests.clients.answers import saying
from tests.clients.clients import CLIENTS, FRAMEWORKS, Driver
from tests.clients.wire import Wire
from tests.core.test_dialects import AGENTS, version
from tests.support.upstream import Upstream

# Recognised clients.
RECOGNISED = {**CLIENTS, "langchain-node": FRAMEWORKS["langchain-node"]}


@pytest.mark.parametrize("name", RECOGNISED)
async def test_client_user_agent_gives_its_dialect(
    name: str, server: str, upstream: Upstream, wire: Wire, tmp_path: Path
) -> None:
    known = {version(agent): dialect for agent, dialect in AGENTS.items()}
    upstream.always(saying("Hello."))
    driver = Driver(RECOGNISED[name], server, tmp_path)
    for scenario in ("text", "stream"):
        await driver.shows(scenario)
    assert len(wire.responses) == 2
    for exchange in wire.responses:
        assert dialect_of(exchange.request_headers) == DIALECTS[known[version(exchange.request_headers["user-agent"])]]
