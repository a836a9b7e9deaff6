"""Search services: rows in `PROVIDERS`, or classes at an import path, with the methods of `SearchProvider`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
from pydantic import Field, SecretStr, field_validator

from app.core.types import JSONMapping, JSONObject
from app.loading import require_packages
from app.runtime.outbound import why_no_answer
from app.tools import CallFailed, SettingsTable
from app.tools.guard import GuardedTransport

MAX_ANSWER_BYTES = 8_000_000  # per search response; Tavily and Exa return page texts


SearchFailed = CallFailed  # the name used by providers at import paths


@dataclass(frozen=True, slots=True)
class SearchQuery:
    text: str
    count: int = 8
    allowed_domains: Sequence[str] = ()  # and their subdomains; empty allows any
    blocked_domains: Sequence[str] = ()
    country: str | None = None  # two letters, ISO 3166-1
    result_chars: int = 2000

    @property
    def with_sites(self) -> str:
        """With `site:` operators, for services without a domain field."""
        sites = " OR ".join(f"site:{domain}" for domain in self.allowed_domains)
        excluded = " ".join(f"-site:{domain}" for domain in self.blocked_domains)
        return " ".join(filter(None, (self.text, f"({sites})" if " OR " in sites else sites, excluded)))

    def permits(self, url: str) -> bool:
        return is_in_domains(url, self.allowed_domains, self.blocked_domains)


@dataclass(frozen=True, slots=True)
class SearchResult:
    url: str
    title: str
    text: str = ""
    published: str | None = None  # in the service's format


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAPI:
    path: str
    results: tuple[str, ...]  # path of keys to the result list
    text: Callable[[JSONMapping], Iterable[object]]  # text pieces, best first
    params: Callable[[SearchQuery], JSONObject]  # query string, or JSON body if `method` is POST
    url: str | None = None  # None if each operator runs a server
    method: str = "GET"
    key_header: str | None = None  # None if the service needs no key
    key_prefix: str = ""
    published: str = "publishedDate"
    hints: Mapping[int, str] = field(default_factory=dict)  # advice for the operator, by HTTP status


PROVIDERS: dict[str, SearchAPI] = {
    "searxng": SearchAPI(
        path="/search",
        results=("results",),
        text=lambda result: (result.get("content"),),
        params=lambda query: {"q": query.with_sites, "format": "json"},
        hints={403: "its `search.formats` must list `json`"},
    ),
    "brave": SearchAPI(
        url="https://api.search.brave.com",
        path="/res/v1/web/search",
        results=("web", "results"),
        text=lambda result: (result.get("description"), *(result.get("extra_snippets") or ())),
        params=lambda query: {"q": query.with_sites, "count": min(query.count, 20), "country": query.country},
        key_header="X-Subscription-Token",
        published="page_age",
    ),
    "tavily": SearchAPI(
        url="https://api.tavily.com",
        path="/search",
        method="POST",
        results=("results",),
        text=lambda result: (result.get("content"), result.get("raw_content")),
        params=lambda query: {
            "query": query.text,
            "max_results": min(query.count, 20),
            "include_domains": [*query.allowed_domains],
            "exclude_domains": [*query.blocked_domains],
        },
        key_header="Authorization",
        key_prefix="Bearer ",
        published="published_date",
    ),
    "exa": SearchAPI(
        url="https://api.exa.ai",
        path="/search",
        method="POST",
        results=("results",),
        text=lambda result: (result.get("summary"), *(result.get("highlights") or ()), result.get("text")),
        params=lambda query: {
            "query": query.text,
            "numResults": query.count,
            "includeDomains": [*query.allowed_domains] or None,
            "excludeDomains": [*query.blocked_domains] or None,
            "userLocation": query.country,
            "contents": {"text": {"maxCharacters": query.result_chars}},
        },
        key_header="x-api-key",
    ),
}


class SearchProvider:
    def __init__(self, settings: WebSearchSettings, key: str | None) -> None:
        """Raises `ValueError`."""
        api = PROVIDERS[settings.provider]
        url = settings.url or api.url
        if url is None:
            raise ValueError(f"url: must be set to the base URL of the {settings.provider} server")
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError("url: must be the base URL of a server, such as http://127.0.0.1:8888")
        if api.key_header and not key:
            raise ValueError(f"api_key_env: must be set to the variable with the API key for {settings.provider}")
        headers = {api.key_header: f"{api.key_prefix}{key}"} if api.key_header and key else {}
        self._api = api
        self._name = settings.provider
        self._params = settings.params
        self._url = url.rstrip("/") + api.path
        self._http = httpx.AsyncClient(
            headers={**headers, "accept": "application/json"},
            timeout=settings.timeout,
            transport=GuardedTransport("any", max_bytes=MAX_ANSWER_BYTES),
            trust_env=False,
        )

    @classmethod
    def from_settings(cls, settings: WebSearchSettings, key: str | None) -> SearchProvider:
        """Raises `ValueError`."""
        return cls(settings, key)

    async def search(self, query: SearchQuery) -> Sequence[SearchResult]:
        """Results, best first; raises `CallFailed`."""
        params = {name: value for name, value in self._api.params(query).items() if value is not None}
        params |= self._params
        try:
            if self._api.method == "POST":
                response = await self._http.post(self._url, json=params)
            else:
                response = await self._http.get(self._url, params=params)
        except httpx.HTTPError as error:
            raise CallFailed(f"The search failed: {self._name} does not answer: {why_no_answer(error)}.") from None
        if response.status_code != 200:
            hint = self._api.hints.get(response.status_code)
            status = f"{self._name} returned status {response.status_code}"
            raise CallFailed(f"The search failed: {status}{f'; {hint}' if hint else ''}.")
        try:
            answer = response.json()
        except ValueError:
            raise CallFailed("The search failed: the search service sent an invalid response.") from None
        return [*self._read(answer, query)]

    def _read(self, answer: object, query: SearchQuery) -> Iterable[SearchResult]:
        for key in self._api.results:
            answer = answer.get(key) if isinstance(answer, dict) else None
        for result in answer if isinstance(answer, list) else ():
            url = result.get("url") if isinstance(result, dict) else None
            if not isinstance(url, str) or http_host(url) is None:
                continue
            pieces = [piece.strip() for piece in self._api.text(result) if isinstance(piece, str)]
            text = "\n".join(dict.fromkeys(filter(None, pieces)))
            title, published = result.get("title"), result.get(self._api.published)
            yield SearchResult(
                url,
                title if isinstance(title, str) and title else url,
                text[: query.result_chars],
                published if isinstance(published, str) else None,
            )

    async def aclose(self) -> None:
        await self._http.aclose()


def http_host(url: str) -> str | None:
    """None for other schemes and invalid URLs."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    return host.rstrip(".") if host and parts.scheme in ("http", "https") else None


def is_in_domains(url: str, allowed: Sequence[str], blocked: Sequence[str] = ()) -> bool:
    """Includes subdomains; empty `allowed` allows all."""
    host = http_host(url)
    if host is None:
        return False
    within = [
        any(host == domain or host.endswith(f".{domain}") for domain in domains) for domains in (allowed, blocked)
    ]
    return (within[0] or not allowed) and not within[1]


class WebSearchSettings(SettingsTable):
    provider: str = "searxng"
    """The search service: searxng, brave, tavily, exa, or the import path `package.module:Class` of a provider."""
    url: str | None = None
    """The service's base URL. Required for SearXNG, which is self-hosted."""
    api_key: SecretStr | None = None
    api_key_env: str | None = None
    """Environment variable with the API key."""
    params: dict[str, object] = {}
    """Additional parameters for each search, in the service's own names: `{ engines = "wikipedia" }`."""
    timeout: float = Field(15, gt=0)
    """Time limit per search, and per page fetch, in seconds."""
    open_pages: bool = False
    """Whether the model may open web pages, and search in them."""
    allow_private: bool = False
    """Whether pages may be at private addresses and `http://` URLs, for an operator's own network."""

    @field_validator("open_pages")
    @classmethod
    def _can_read_pages(cls, open_pages: bool) -> bool:
        if open_pages:
            require_packages(["trafilatura"], "web")
        return open_pages

    def key(self, environment: Mapping[str, str]) -> str | None:
        if self.api_key is not None:
            return self.api_key.get_secret_value()
        if self.api_key_env is None:
            return None
        if not (key := environment.get(self.api_key_env)):
            raise ValueError(f"api_key_env: the variable {self.api_key_env} is not set")
        return key
