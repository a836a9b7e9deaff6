"""Requests to each search service, and parsing of documented answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from pydantic import SecretStr

from app.tools.web_search.providers import (
    SearchProvider,
    SearchQuery,
    SearchResult,
    WebSearchSettings,
    is_in_domains,
)
from tests.support.serving import serving

ANSWERS: dict[str, Any] = {
    "searxng": {
        "query": "q",
        "results": [
            {
                "url": "https://a.example/1",
                "title": "One",
                "content": "The first.",
                "engine": "wikipedia",
                "publishedDate": "2026-01-02T00:00:00",
                "score": 1.0,
            }
        ],
        "answers": [],
        "suggestions": [],
    },
    "brave": {
        "type": "search",
        "query": {"original": "q"},
        "web": {
            "type": "search",
            "results": [
                {
                    "type": "search_result",
                    "url": "https://a.example/1",
                    "title": "One",
                    "description": "The first.",
                    "page_age": "2026-01-02T00:00:00",
                    "extra_snippets": ["More of it."],
                }
            ],
        },
    },
    "tavily": {
        "query": "q",
        "answer": None,
        "results": [
            {
                "url": "https://a.example/1",
                "title": "One",
                "content": "The first.",
                "score": 0.9,
                "raw_content": None,
                "published_date": "2026-01-02",
            }
        ],
        "response_time": 0.5,
    },
    "exa": {
        "requestId": "r",
        "results": [
            {
                "id": "https://a.example/1",
                "url": "https://a.example/1",
                "title": "One",
                "publishedDate": "2026-01-02T00:00:00.000Z",
                "author": None,
                "text": "The first.",
            }
        ],
    },
}
SENT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "searxng": ("GET", "", {"q": "q site:b.example -site:c.example", "format": "json"}),
    "brave": (
        "GET",
        "x-subscription-token: k",
        {"q": "q site:b.example -site:c.example", "count": "3", "country": "PT"},
    ),
    "tavily": (
        "POST",
        "authorization: Bearer k",
        {"query": "q", "max_results": 3, "include_domains": ["b.example"], "exclude_domains": ["c.example"]},
    ),
    "exa": (
        "POST",
        "x-api-key: k",
        {
            "query": "q",
            "numResults": 3,
            "includeDomains": ["b.example"],
            "excludeDomains": ["c.example"],
            "userLocation": "PT",
            "contents": {"text": {"maxCharacters": 100}},
        },
    ),
}


@pytest.fixture
async def service(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, list[Request], list[Any]]]:
    app, requests, bodies = FastAPI(), [], []  # type: ignore[var-annotated]

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def answer(path: str, request: Request) -> Any:
        requests.append(request)
        bodies.append(await request.json() if request.method == "POST" else dict(request.query_params))
        name = "brave" if path.startswith("res/") else request.headers.get("x-test-name")
        return ANSWERS[name or "searxng"]

    async with serving(app) as url:
        yield url, requests, bodies


@pytest.mark.parametrize("name", ANSWERS)
async def test_provider_gets_its_own_parameters(name: str, service: Any) -> None:
    url, requests, bodies = service
    settings = WebSearchSettings(provider=name, url=url, api_key=SecretStr("k"))
    provider = SearchProvider.from_settings(settings, "k")
    provider._http.headers["x-test-name"] = name
    query = SearchQuery("q", 3, ["b.example"], ["c.example"], country="PT", result_chars=100)
    [result] = await provider.search(query)
    await provider.aclose()
    assert (result.url, result.title) == ("https://a.example/1", "One")
    assert result.text.startswith("The first.")
    assert result.published and result.published.startswith("2026-01-02")
    method, header, body = SENT[name]
    assert requests[0].method == method
    assert bodies == [body]
    if header:
        key, _, value = header.partition(": ")
        assert requests[0].headers[key] == value


async def test_provider_gets_params_of_the_settings(service: Any) -> None:
    url, _, bodies = service
    settings = WebSearchSettings(url=url, params={"engines": "wikipedia", "language": "pt"})
    provider = SearchProvider.from_settings(settings, None)
    assert await provider.search(SearchQuery("q")) == [
        SearchResult("https://a.example/1", "One", "The first.", "2026-01-02T00:00:00")
    ]
    await provider.aclose()
    assert bodies == [{"q": "q", "format": "json", "engines": "wikipedia", "language": "pt"}]


@pytest.mark.parametrize(
    ("url", "within"),
    [
        ("https://example.com/a", True),
        ("https://docs.EXAMPLE.com./a", True),
        ("https://notexample.com/", False),
        ("https://example.com.evil.org/", False),
        ("https://evil.org/?example.com", False),
        ("https://example.com@evil.org/", False),
        ("https://private.example.com/", False),
        ("ftp://example.com/", False),
        ("example.com", False),
    ],
)
def test_domains_include_subdomains(url: str, within: bool) -> None:
    assert is_in_domains(url, ["example.com"], ["private.example.com"]) is within
