"""Frameworks with code in a container, declared as in their documentation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.tools.code_interpreter.bubblewrap import Bubblewrap
from app.tools.code_interpreter.settings import CodeSettings
from tests.clients.answers import calling, saying
from tests.clients.clients import CLIENTS, Driver
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

NAMES = ["agents-python", "langchain", "langchain-v1", "pydantic-ai", "ai-sdk-openai", "ai-sdk-6-openai"]
CODE = "print(6 * 7)"


@pytest.fixture
async def server_url(upstream: Upstream) -> AsyncIterator[str]:
    """The base URL of a server with code execution, if supported here."""
    try:
        Bubblewrap(CodeSettings(provider="bubblewrap")).probe()
    except ValueError as error:
        pytest.skip(f"no sandboxes here: {error}")
    async with antiphon(backend_url=upstream.url, tools={"code_interpreter": {"provider": "bubblewrap"}}) as url:
        yield f"{url}/v1"


@pytest.mark.parametrize("scenario", ["code", "code_streamed"])
@pytest.mark.parametrize("name", NAMES)
async def test_code_interpreter_call_is_read_by_clients(
    name: str, scenario: str, server_url: str, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.say(calling("code_interpreter", json.dumps({"code": CODE})))
    upstream.say(saying("It is 42."))
    shown = await Driver(CLIENTS[name], server_url, tmp_path).shows(scenario)
    assert shown["text"] == "It is 42."
    assert shown.get("code", [CODE]) == [CODE]
    assert shown.get("logs", ["42\n"]) == ["42\n"]
    assert shown.get("calls", ["code_execution"]) == ["code_execution"]
    assert upstream.requests[-1].json["messages"][-1]["content"] == "42\n"
