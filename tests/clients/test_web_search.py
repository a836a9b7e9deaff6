"""Search on the web, as frameworks show it: they declare the tool as their own documentation does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from tests.clients.answers import calling, saying
from tests.clients.clients import CLIENTS, FRAMEWORKS, Driver
from tests.support.serving import antiphon, serving
from tests.support.upstream import Upstream

NAMES = ["agents-python", "langchain", "langchain-v1", "pydantic-ai", "ai-sdk-openai", "ai-sdk-6-openai"]
BY_MESSAGES = ["anthropic-python", "langchain-anthropic", "ai-sdk-anthropic"]
URL = "https://lovelace.example.org/notes"
FOUND = {"url": URL, "title": "Notes", "content": "She wrote about the Analytical Engine."}


@pytest.fixture
async def server_url(upstream: Upstream) -> AsyncIterator[str]:
    """The base URL of a server with a stand-in for SearXNG."""
    searxng = FastAPI()

    @searxng.get("/search")
    def search(q: str, format: str) -> dict[str, object]:
        return {"query": q, "results": [FOUND]}

    async with serving(searxng) as url:
        async with antiphon(backend_url=upstream.url, tools={"web_search": {"url": url}}) as server:
            yield f"{server}/v1"


@pytest.mark.parametrize("scenario", ["web_search", "web_search_streamed"])
@pytest.mark.parametrize("name", [*NAMES, *BY_MESSAGES])
async def test_web_search_call_is_read_by_clients(
    name: str, scenario: str, server_url: str, upstream: Upstream, tmp_path: Path
) -> None:
    upstream.say(calling("web_search", json.dumps({"query": "Ada Lovelace"})))
    upstream.say(saying("She wrote [notes](", URL, ")."))
    shown = await Driver({**CLIENTS, **FRAMEWORKS}[name], server_url, tmp_path).shows(scenario)
    assert shown["text"] == f"She wrote [notes]({URL})."
    assert shown.get("cited", [URL])[-1] == URL
    assert shown.get("queries", ["Ada Lovelace"]) == ["Ada Lovelace"]
    assert shown.get("calls", ["web_search"]) == ["web_search"]
    assert FOUND["content"] in str(upstream.requests[-1].json["messages"])
