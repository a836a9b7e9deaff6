"""Search in files, as frameworks show it: they declare the tool as their own documentation does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.clients.answers import calling, saying
from tests.clients.clients import CLIENTS, Driver
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

NAMES = ["agents-python", "langchain", "langchain-v1", "pydantic-ai", "ai-sdk-openai", "ai-sdk-6-openai"]
TEXT = "Ada Lovelace wrote about the Analytical Engine."


@pytest.fixture
async def url_and_store(upstream: Upstream, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The base URL of a server with a vector store, and the store's id."""
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(backend_url=upstream.url, tools=tools) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="lab") as client:
            store = await client.vector_stores.create()
            for name, text in (("ada.txt", TEXT), ("bread.txt", "Bread needs yeast.")):
                await client.vector_stores.files.upload_and_poll(
                    vector_store_id=store.id, file=(name, text.encode()), poll_interval_ms=20
                )
        yield f"{url}/v1", store.id


@pytest.mark.parametrize("scenario", ["file_search", "file_search_streamed"])
@pytest.mark.parametrize("name", NAMES)
async def test_file_search_call_is_read_by_clients(
    name: str, scenario: str, url_and_store: tuple[str, str], upstream: Upstream, tmp_path: Path
) -> None:
    url, store = url_and_store
    upstream.say(calling("file_search", json.dumps({"queries": ["Ada Lovelace"]})))
    upstream.say(saying("She wrote about", " the Engine ", "【1", "】", "."))
    shown = await Driver(CLIENTS[name], url, tmp_path).shows(scenario, STORE=store)
    assert shown["text"] == "She wrote about the Engine."
    assert shown["found"] == ["ada.txt"]
    assert shown.get("cited", ["ada.txt"]) == ["ada.txt"]
    assert TEXT in str(upstream.requests[-1].json["messages"])
