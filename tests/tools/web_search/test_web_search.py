"""Web search and opening pages: the model's and the caller's view."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from openai.types.responses.response import ToolUsage

from app.main import create_app
from app.settings import SettingsError
from app.tools.web_search import pages
from app.tools.web_search.pages import matches
from tests.support import laws
from tests.support.build import call, delta, finish
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings

RESULTS = [
    {"url": "https://lisboa.example.pt/weather", "title": "Weather in Lisbon", "content": "Sunny, 21 degrees."},
    {"url": "https://news.example.com/a", "title": "News", "content": "Nothing new."},
    {"url": "https://lisboa.example.pt/weather", "title": "The same again", "content": "Sunny."},
    {"url": "javascript:alert(1)", "title": "No page", "content": ""},
    {"title": "Nothing", "content": "without a URL"},
]


class SearXNG:
    """A stand-in for a SearXNG server, with the fields of its JSON."""

    def __init__(self) -> None:
        self.queries: list[dict[str, str]] = []
        self.answer: Callable[[], Any] = lambda: {"query": "", "number_of_results": 0, "results": RESULTS}
        self.app = FastAPI()
        self.app.get("/search")(self.search)

    async def search(self, request: Request) -> Any:
        self.queries.append(dict(request.query_params))
        answer = self.answer()
        return answer if isinstance(answer, HTMLResponse | JSONResponse) else JSONResponse(answer)


@pytest.fixture
async def searxng() -> AsyncIterator[SearXNG]:
    server = SearXNG()
    async with serving(server.app) as url:
        server.url = url  # type: ignore[attr-defined]
        yield server


def searching(query: Any = "weather in Lisbon", name: str = "web_search", **arguments: Any) -> list[Any]:
    """A model's answer with a call to the tool."""
    return [call(0, "c0", name, json.dumps(arguments or {"query": query})), finish("tool_calls")]


def answering(text: str) -> list[Any]:
    return [*(delta(content=piece) for piece in text), finish("stop")]


@contextlib.asynccontextmanager
async def client(searxng: SearXNG, *answers: list[Any], **table: Any) -> AsyncIterator[tuple[Any, Scripted]]:
    backend = Scripted(*answers)
    table = {"url": searxng.url, **table}  # type: ignore[attr-defined]
    async with serving(create_app(settings(tools={"web_search": table}), backend=backend)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as openai_client:
            yield openai_client, backend


def shown(backend: Scripted) -> str:
    """The model's view of the last call."""
    return str(backend.received[-1]["messages"][-1]["content"])


async def test_web_search_is_called_and_answered(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("It is sunny.")) as (openai_client, backend):
        response = await openai_client.responses.create(
            model="m", input="Weather in Lisbon?", tools=[{"type": "web_search"}]
        )
    search, message = response.output
    assert (search.type, search.status, search.action.type) == ("web_search_call", "completed", "search")
    assert search.action.query == "weather in Lisbon"
    assert message.content[0].text == "It is sunny."
    assert [query["q"] for query in searxng.queries] == ["weather in Lisbon"]
    assert searxng.queries[0]["format"] == "json"
    assert "[Weather in Lisbon](https://lisboa.example.pt/weather)" in shown(backend)
    assert "The same again" not in shown(backend) and "javascript" not in shown(backend)


async def test_web_search_stream_has_openais_events_in_order(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("Sunny.")) as (openai_client, _):
        async with openai_client.responses.stream(
            model="m", input="Weather?", tools=[{"type": "web_search"}]
        ) as stream:
            events = [event async for event in stream]
    kinds = [event.type for event in events]
    search = kinds.index("response.web_search_call.in_progress")
    assert kinds[search - 1 : search + 4] == [
        "response.output_item.added",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_item.done",
    ]
    assert kinds[-1] == "response.completed"


async def test_web_search_links_to_results_are_cited_where_they_close(searxng: SearXNG) -> None:
    text = "Sunny ([Lisbon](https://lisboa.example.pt/weather?utm_source=x)), says [no page](https://made.up/)."
    async with client(searxng, searching(), answering(text)) as (openai_client, _):
        tools = [{"type": "web_search"}]
        async with openai_client.responses.stream(model="m", input="Weather?", tools=tools) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
    [citation] = response.output[1].content[0].annotations
    assert response.output_text == text
    assert (citation.type, citation.title) == ("url_citation", "Weather in Lisbon")
    assert citation.url == "https://lisboa.example.pt/weather"
    assert text[citation.start_index : citation.end_index].startswith("([Lisbon](")
    assert text[: citation.end_index].endswith("))")
    kinds = [event.type for event in events]
    added = kinds.index("response.output_text.annotation.added")
    assert kinds[added - 1] == kinds[added + 1] == "response.output_text.delta"


async def test_web_search_sources_of_an_earlier_turn_can_be_cited(searxng: SearXNG) -> None:
    link = "As [said](https://news.example.com/a)."
    async with client(searxng, searching(), answering("Sunny."), answering(link)) as (openai_client, _):
        tools = [{"type": "web_search"}]
        first = await openai_client.responses.create(model="m", input="Weather?", tools=tools)
        second = await openai_client.responses.create(model="m", input="News?", previous_response_id=first.id)
    assert [citation.title for citation in second.output[0].content[0].annotations] == ["News"]


async def test_web_search_results_are_known_in_the_next_turn(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("Sunny."), answering("21.")) as (openai_client, backend):
        tools = [{"type": "web_search"}]
        first = await openai_client.responses.create(model="m", input="Weather?", tools=tools)
        await openai_client.responses.create(model="m", input="Degrees?", tools=tools, previous_response_id=first.id)
    assert "Sunny, 21 degrees." in json.dumps(backend.received[-1]["messages"])
    assert len(searxng.queries) == 1


async def test_web_search_sources_and_results_are_returned_if_included(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("Sunny.")) as (openai_client, _):
        tools = [{"type": "web_search"}]
        plain = await openai_client.responses.create(model="m", input="Weather?", tools=tools)
    async with client(searxng, searching(), answering("Sunny.")) as (openai_client, _):
        whole = await openai_client.responses.create(
            model="m",
            input="Weather?",
            tools=tools,
            include=["web_search_call.action.sources", "web_search_call.results"],
        )
    assert plain.output[0].action.sources is None
    assert "results" not in plain.output[0].to_dict()
    assert [source.url for source in whole.output[0].action.sources] == [
        "https://lisboa.example.pt/weather",
        "https://news.example.com/a",
    ]
    assert [result["title"] for result in whole.output[0].to_dict()["results"]] == ["Weather in Lisbon", "News"]


async def test_web_search_shows_only_allowed_domains(searxng: SearXNG) -> None:
    tool = {"type": "web_search", "filters": {"allowed_domains": ["https://EXAMPLE.pt/"]}}
    async with client(searxng, searching(), answering("Sunny.")) as (openai_client, backend):
        await openai_client.responses.create(model="m", input="Weather?", tools=[tool])
    assert "lisboa.example.pt" in shown(backend)
    assert "news.example.com" not in shown(backend)
    assert searxng.queries[0]["q"] == "weather in Lisbon site:example.pt"


async def test_web_search_tells_the_model_the_users_location(searxng: SearXNG) -> None:
    user_location = {"type": "approximate", "city": "Porto", "country": "PT", "timezone": "Europe/Lisbon"}
    tool = {"type": "web_search_preview", "user_location": user_location, "search_context_size": "low"}
    async with client(searxng, answering("Hello.")) as (openai_client, backend):
        await openai_client.responses.create(model="m", input="Hi", tools=[tool])
    described = backend.received[0]["tools"][0]["function"]["description"]
    assert "Porto, PT (timezone Europe/Lisbon)" in described


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: JSONResponse({}, 403), "`search.formats` must list `json`"),
        (lambda: JSONResponse({}, 500), "status 500"),
        (lambda: HTMLResponse("<html>"), "invalid response"),
        (lambda: {"results": "none"}, None),
        (lambda: [1], None),
    ],
)
async def test_web_search_that_fails_is_reported_to_the_model(
    searxng: SearXNG, answer: Any, message: str | None
) -> None:
    searxng.answer = answer
    async with client(searxng, searching(), answering("I do not know.")) as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    assert response.status == "completed"
    assert response.output[0].status == ("failed" if message else "completed")
    assert (message or "No results for") in shown(backend)


async def test_web_search_service_that_is_unavailable_is_reported_to_the_model(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("?"), url="http://127.0.0.1:1") as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    assert response.output[0].status == "failed"
    assert "searxng does not answer: it refuses connections." in shown(backend)


async def test_web_search_query_that_is_none_is_refused(searxng: SearXNG) -> None:
    async with client(searxng, searching(17), answering("?")) as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    assert response.output[0].status == "failed"
    assert "`query` must be a search query" in shown(backend)
    assert searxng.queries == []


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"filters": {"allowed_domains": ["not a domain"]}}, "tools[0].filters.allowed_domains[0]"),
        ({"search_context_size": "huge"}, "tools[0].search_context_size"),
    ],
)
async def test_web_search_declaration_that_is_invalid_is_a_400(
    searxng: SearXNG, tool: dict[str, Any], param: str
) -> None:
    async with client(searxng, answering("?")) as (openai_client, _):
        with pytest.raises(openai.BadRequestError) as refusal:
            await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search", **tool}])
    assert refusal.value.param == param


async def test_web_search_usage_is_returned_in_openais_dialect(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("Sunny.")) as (openai_client, _):
        response = await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    usage = ToolUsage.model_validate(response.to_dict()["tool_usage"])
    assert (usage.web_search.num_requests, usage.image_gen.total_tokens) == (1, 0)


# Pages.

PAGE = (
    "<html><head><title>A page</title></head><body><article><p>The first paragraph tells of the weather in Lisbon, and"
    " is long enough to be taken for the text of the page.</p><p>The second one has a needle in it, between other"
    " words that do not matter to anybody.</p></article><script>alert(1)</script></body></html>"
)


def page_at(url: str, content: bytes, content_type: str = "text/html", status: int = 200) -> httpx.Response:
    request = httpx.Request("GET", url)
    return httpx.Response(status, headers={"content-type": content_type}, content=content, request=request)


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A web with the same page at every URL. The guard has separate tests."""
    fetched: list[str] = []

    async def fetch(url: str, **options: Any) -> httpx.Response:
        fetched.append(url)
        if "missing" in url:
            return page_at(url, b"", status=404)
        if "image" in url:
            return page_at(url, b"\x89PNG", "image/png")
        if "plain" in url:
            return page_at(url, "café".encode("latin-1"), "text/plain; charset=latin-1")
        return page_at(url, PAGE.encode(), "text/html; charset=utf-8")

    monkeypatch.setattr(pages, "fetch", fetch)
    return fetched


async def test_pages_are_opened_and_searched_where_the_operator_allows_it(searxng: SearXNG, web: list[str]) -> None:
    url = "https://example.com/page"
    opening = searching(name="open_page", url=url)
    finding = searching(name="find_in_page", url=url, pattern="NEEDLE")
    async with client(searxng, opening, finding, answering("Found."), open_pages=True) as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    opened, found, _ = response.output
    assert (opened.action.type, opened.action.url, opened.status) == ("open_page", url, "completed")
    assert (found.action.type, found.action.pattern, found.status) == ("find_in_page", "NEEDLE", "completed")
    texts = [message["content"] for message in backend.received[-1]["messages"] if message["role"] == "tool"]
    assert "weather in Lisbon" in texts[0] and "alert(1)" not in texts[0]
    assert "has a needle in it" in texts[1]
    assert web == [url]  # it was remembered


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.com/missing", "status 404"),
        ("https://example.com/image", "image/png"),
        ("https://other.example.org/", "not in an allowed domain"),
        ("", "must be the URL"),
    ],
)
async def test_pages_that_cannot_be_shown_are_reported(
    searxng: SearXNG, web: list[str], url: str, message: str
) -> None:
    tool = {"type": "web_search", "filters": {"allowed_domains": ["example.com"]}}
    opening = searching(name="open_page", url=url)
    async with client(searxng, opening, answering("?"), open_pages=True) as (openai_client, backend):
        response = await openai_client.responses.create(model="m", input="?", tools=[tool])
    assert response.output[0].status == "failed"
    assert message in shown(backend)


async def test_plain_text_is_read_by_its_charset(searxng: SearXNG, web: list[str]) -> None:
    opening = searching(name="open_page", url="https://example.com/plain")
    async with client(searxng, opening, answering("?"), open_pages=True) as (openai_client, backend):
        await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    assert "café" in shown(backend)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "https://127.0.0.1/", "https://169.254.169.254/latest", "file:///x"]
)
async def test_pages_of_private_networks_are_not_opened(searxng: SearXNG, url: str) -> None:
    opening = searching(name="open_page", url=url)
    async with client(searxng, opening, answering("?"), open_pages=True) as (openai_client, _):
        response = await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search"}])
    assert response.output[0].status == "failed"


@pytest.mark.parametrize("tool", [{}, {"external_web_access": False}])
async def test_pages_are_not_opened_unless_allowed(searxng: SearXNG, tool: dict[str, Any]) -> None:
    async with client(searxng, answering("Hi."), open_pages=bool(tool)) as (openai_client, backend):
        await openai_client.responses.create(model="m", input="?", tools=[{"type": "web_search", **tool}])
    assert [tool["function"]["name"] for tool in backend.received[0]["tools"]] == ["web_search"]


def test_matches_in_a_page_are_shown_with_their_context() -> None:
    text = f"{'a' * 300} Needle {'b' * 900} needle"
    assert matches(text, "needle") == [f"{'a' * 199} Needle {'b' * 199}", f"{'b' * 199} needle"]
    assert len(matches("x " * 100_000, "x")) == 20
    assert matches("a.c abc", "a.c") == ["a.c abc"]


# Settings.


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "url: must be set to the base URL of the searxng server"),
        ({"url": "localhost"}, "must be the base URL"),
        ({"provider": "brave"}, "api_key_env: must be set to the variable with the API key for brave"),
        ({"provider": "brave", "api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE is not set"),
        ({"provider": "bing"}, "must be one of searxng, brave, tavily, exa"),
        ({"provider": "no.such:Thing"}, "import failed"),
        ({"url": "http://a", "open_page": True}, "open_page"),
    ],
)
def test_web_search_table_that_is_invalid_is_refused_at_start(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match="web_search") as error:
        create_app(settings(tools={"web_search": table}), backend=Scripted([]))
    assert message in str(error.value)


async def test_web_search_events_keep_the_laws(searxng: SearXNG) -> None:
    async with client(searxng, searching(), answering("Sunny.")) as (openai_client, _):
        async with httpx.AsyncClient(base_url=str(openai_client.base_url)) as http:
            body = {"model": "m", "input": "?", "tools": [{"type": "web_search"}], "stream": True}
            answer = await http.post("responses", json=body)
    laws.check([json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")])
