"""Codex's search: commands, permissions, limits, and the requests in Codex's own tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.core.access import hash_of
from app.tools.web_search import pages
from tests.support.serving import antiphon
from tests.tools.web_search.test_web_search import SearXNG, page_at, searxng

__all__ = ["searxng"]

# As in the tests of codex-rs/codex-api/src/endpoint/search.rs.
OF_CODEX: dict[str, Any] = {
    "id": "search-session",
    "model": "gpt-test",
    "input": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "find this"},
                {"type": "input_image", "image_url": "https://example.com/image.png"},
            ],
        }
    ],
    "commands": {
        "search_query": [{"q": "OpenAI news", "recency": 7, "domains": ["openai.com"]}],
        "open": [{"ref_id": "https://openai.com", "lineno": 12}],
    },
    "settings": {
        "user_location": {"type": "approximate", "country": "US", "city": "San Francisco"},
        "search_context_size": "low",
        "filters": {"allowed_domains": ["openai.com"], "blocked_domains": ["example.com"]},
        "image_settings": {"max_results": 4, "caption": True},
        "allowed_callers": ["direct"],
        "external_web_access": True,
    },
    "max_output_tokens": 2500,
}
PAGE = "<html><title>Blog</title><body><article><p>First line.</p><p>Second line.</p></article></body></html>"


@asynccontextmanager
async def client_of(
    server: SearXNG, *, tools: dict[str, Any] | None = None, **values: Any
) -> AsyncIterator[httpx.AsyncClient]:
    table = {"url": server.url, "open_pages": True, **(tools or {})}  # type: ignore[attr-defined]
    async with (
        antiphon(tools={"web_search": table}, **values) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers={"Authorization": "Bearer k"}, timeout=60) as client,
    ):
        yield client


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pages without a network; returns the fetched URLs."""
    fetched: list[str] = []

    async def fetch(url: str, **options: Any) -> httpx.Response:
        fetched.append(url)
        return page_at(url, PAGE.encode())

    monkeypatch.setattr(pages, "fetch", fetch)
    return fetched


async def test_request_of_codex_is_answered_as_codex_reads_it(searxng: SearXNG, page: list[str]) -> None:
    searxng.answer = lambda: {"results": [{"url": "https://openai.com/a", "title": "A", "content": "News."}]}
    async with client_of(searxng) as client:
        answer = await client.post("/alpha/search", json=OF_CODEX)
    assert answer.status_code == 200
    document = answer.json()
    assert document.keys() == {"output", "encrypted_output", "results"}
    assert document["encrypted_output"] is None
    assert "[A](https://openai.com/a)" in document["output"]
    assert document["results"] == [
        {"type": "text_result", "url": "https://openai.com/a", "title": "A", "snippet": "News."}
    ]
    (query,) = searxng.queries
    assert query["q"] == "OpenAI news site:openai.com -site:example.com"
    assert page == ["https://openai.com"]


async def run(client: httpx.AsyncClient, commands: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = await client.post("/alpha/search", json={"id": "s", "model": "m", "commands": commands, **fields})
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def test_pages_are_opened_at_a_line_and_searched(searxng: SearXNG, page: list[str]) -> None:
    url = "https://example.org/blog"
    async with client_of(searxng) as client:
        whole = await run(client, {"open": [{"ref_id": url}]})
        later = await run(client, {"open": [{"ref_id": url, "lineno": 1}]})
        found = await run(client, {"find": [{"ref_id": url, "pattern": "second"}]})
    assert "First line." in whole["output"] and "Second line." in whole["output"]
    assert "First line." not in later["output"] and "Second line." in later["output"]
    assert url in later["output"]
    assert "Second line." in found["output"]
    assert "results" not in whole


@pytest.mark.parametrize("access", [False, "index_only"])
async def test_pages_stay_closed_without_access_to_the_web(searxng: SearXNG, page: list[str], access: object) -> None:
    commands = {"open": [{"ref_id": "https://example.org"}], "find": [{"ref_id": "https://a.example", "pattern": "x"}]}
    async with client_of(searxng) as client:
        answer = await run(client, commands, settings={"external_web_access": access})
    assert answer["output"].count("Pages cannot be opened.") == 2
    assert page == []


async def test_domains_of_a_query_stay_within_the_allowed_ones(searxng: SearXNG) -> None:
    settings = {"filters": {"allowed_domains": ["python.org"]}}
    queries = [{"q": "a", "domains": ["docs.python.org", "evil.example"]}, {"q": "b", "domains": ["evil.example"]}]
    async with client_of(searxng) as client:
        answer = await run(client, {"search_query": queries}, settings=settings)
    assert [query["q"] for query in searxng.queries] == ["a site:docs.python.org"]
    assert "None of the `domains`" in answer["output"]


async def test_unknown_and_unsupported_commands_are_answered_in_the_text(searxng: SearXNG) -> None:
    commands = {
        "open": [{"ref_id": "turn0search0"}],
        "weather": [{"location": "Lisbon"}],
        "click": [{"ref_id": "turn0fetch3", "id": 17}],
        "time": [{"utc_offset": "+03:00"}, {"utc_offset": "noon"}],
    }
    async with client_of(searxng) as client:
        answer = await run(client, commands)
        empty = await run(client, {})
    for words in ("is not a URL", "The weather is not available", "Links are not numbered", "The time at UTC+03:00 is"):
        assert words in answer["output"]
    assert "'noon' is not a UTC offset" in answer["output"]
    assert empty["output"] == "No command found. Use `search_query`. The `ref_id` of a result is its URL."
    assert "results" not in empty


async def test_failed_search_is_a_text_and_no_http_error(searxng: SearXNG) -> None:
    searxng.answer = lambda: "no results"
    async with client_of(searxng, tools={"provider": "searxng", "url": "http://127.0.0.1:9"}) as client:
        answer = await run(client, {"search_query": [{"q": "x"}]})
    assert answer["output"].startswith("The search failed")
    assert answer["results"] == []


async def test_output_is_cut_to_the_tokens_of_the_request(searxng: SearXNG) -> None:
    async with client_of(searxng) as client:
        answer = await run(client, {"search_query": [{"q": "x"}]}, max_output_tokens=10)
    assert len(answer["output"]) < 80
    assert answer["output"].endswith("(Truncated.)")


async def test_too_many_commands_are_refused(searxng: SearXNG) -> None:
    async with client_of(searxng) as client:
        body = {"id": "s", "model": "m", "commands": {"time": [{"utc_offset": "+01:00"}] * 17}}
        refused = await client.post("/alpha/search", json=body)
        wrong = await client.post("/alpha/search", json={"commands": {"search_query": [{"q": 1}]}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "commands")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "commands.search_query[0].q")


async def test_search_counts_in_the_usage_and_the_limits_of_the_key(searxng: SearXNG) -> None:
    keys = {"ada": {"hash": hash_of("k"), "admin": True}}
    async with client_of(searxng, keys=keys, limit_requests_per_minute=2) as client:
        await run(client, {"search_query": [{"q": "a"}, {"q": "b"}]})
        await run(client, {"time": [{"utc_offset": "+00:00"}]})
        limited = await client.post("/alpha/search", json={"commands": {}})
        (row,) = (await client.get("/antiphon/usage")).json()["data"]
    assert limited.status_code == 429
    assert int(limited.headers["retry-after"]) > 0
    assert (row["key"], row["model"], row["requests"], row["total_tokens"]) == ("ada", "web_search", 2, 0)


async def test_search_needs_the_right_to_the_tool(searxng: SearXNG) -> None:
    async with client_of(searxng, keys={"ada": {"hash": hash_of("k"), "tools": ["mcp:*"]}}) as client:
        refused = await client.post("/alpha/search", json={"commands": {"search_query": [{"q": "a"}]}})
    assert refused.status_code == 403
    assert searxng.queries == []


async def test_search_without_the_table_is_a_404_that_names_it() -> None:
    async with antiphon() as url, httpx.AsyncClient() as client:
        missing = await client.post(f"{url}/v1/alpha/search", json={})
    assert missing.status_code == 404
    assert "[tools.web_search]" in missing.json()["error"]["message"]
