"""Whatever a caller or a model names, no connection is made where none may be: the table of `guard_attacks`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address

import httpcore
import httpcore2
import pytest

from app.errors import InvalidRequest
from app.tools import Declaration, ToolHost
from app.tools.guard import OutboundRefused, URLPattern, fetch, is_allowed
from app.tools.mcp import MCPTool
from app.tools.mcp.connection import ServerConnection
from app.tools.mcp.server import MCPFailure
from tests.tools.guard_attacks import ATTACKS, Network


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_on_the_fetching_of_pages_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = ATTACKS[name]
    network = Network(attack.redirects)
    monkeypatch.setattr(httpcore, "AnyIOBackend", lambda: network)
    allowed = [*map(URLPattern.parse, attack.allowed)]
    with pytest.raises(OutboundRefused):
        await fetch(attack.url, allowed=allowed, policy=attack.policy, resolver=network.resolve)
    assert {*network.connected} == {*attack.reaches}
    assert all(is_allowed(ip_address(address), attack.policy) for address in network.connected)


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_by_the_url_of_an_mcp_server_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = ATTACKS[name]
    network = Network(attack.redirects, httpcore2)
    monkeypatch.setattr(httpcore2, "AnyIOBackend", lambda: network)
    table = {"allow_urls": attack.allowed, "allow_private": attack.policy == "private"}
    tool = MCPTool.from_settings(table, ToolHost())
    fields = {"type": "mcp", "server_label": "mine"}
    declaration = partial(Declaration, fields, param_path="tools[0]", owner="", response_id="resp_1", chain="chain")
    try:
        opened = tool.open(declaration(secrets={**fields, "server_url": attack.url}))
    except InvalidRequest as error:
        assert error.param == "tools[0].server_url"
    else:
        async with opened as session:
            settings = session._address.settings.model_copy(update={"transport": "http", "open_timeout": 10})
            address = replace(session._address, settings=settings, resolver=network.resolve)
            connection = ServerConnection(address)
            with suppress(MCPFailure):
                await connection.open()
                await connection.list_tools()
            assert not connection.is_open
            if closing := connection.close():
                await closing
    await tool.aclose()
    assert {*network.connected} <= {*attack.reaches}
