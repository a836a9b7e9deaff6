"""Codex's own search, `web.run`, which Codex runs itself by `POST /v1/alpha/search`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.clients.answers import calling, saying
from tests.clients.codex.program import Codex, agent_messages
from tests.support.serving import antiphon, serving
from tests.support.upstream import Upstream

FOUND = {"url": "https://lovelace.example.org/notes", "title": "Notes", "content": "About the Analytical Engine."}


@pytest.fixture
async def server(upstream: Upstream) -> AsyncIterator[str]:
    """The base URL of a server with a stand-in for SearXNG."""
    searxng = FastAPI()

    @searxng.get("/search")
    def search(q: str, format: str) -> dict[str, object]:
        return {"query": q, "results": [FOUND]}

    async with serving(searxng) as url, antiphon(backend_url=upstream.url, tools={"web_search": {"url": url}}) as base:
        yield f"{base}/v1"


SETTINGS = (
    'web_search="live"',
    "features.standalone_web_search=true",
    "model_providers.lab.supports_standalone_web_search=true",
)


async def test_codex_searches_by_this_server(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("web__run", json.dumps({"search_query": [{"q": "Ada Lovelace"}]})))
    upstream.say(saying("She wrote notes."))
    assert agent_messages(await codex.exec("Who was she?", codex.catalog, *SETTINGS)) == ["She wrote notes."]
    assert FOUND["content"] in str(upstream.requests[-1].json["messages"][-1])
