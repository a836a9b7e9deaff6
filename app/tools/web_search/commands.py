"""
Codex search commands: `POST /v1/alpha/search`.

    {"id": "session", "model": "m", "commands": {"search_query": [{"q": "python"}], "open": [{"ref_id": "https://..."}]}}

The response has a text for the model: `{"output": "...", "results": [...], "encrypted_output": null}`. Source:
`codex-rs/codex-api/src/search.rs` in https://github.com/openai/codex. The text reports failures, since Codex ends the
turn after an HTTP error.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from app.core.access import KeyAccess
from app.errors import InvalidRequest
from app.tools import Declaration, Outcome

MAX_CODEX_COMMANDS = 16  # per request
_CONCURRENT = 4
_CHARS = 4  # characters per token, approximately
_SIZES = {"short": "low", "medium": "medium", "long": "high"}
_REFERENCES = "The `ref_id` of a result is its URL."


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore")


class QueryCommand(_Fields):
    q: str
    recency: int | None = None
    domains: list[str] | None = Field(None, max_length=100)


class OpenCommand(_Fields):
    ref_id: str
    lineno: int | None = Field(None, ge=0)


class FindCommand(_Fields):
    ref_id: str
    pattern: str


class TimeCommand(_Fields):
    """At an offset from UTC, such as `+03:00`."""

    utc_offset: str


class SearchCommands(_Fields):
    """Unsupported commands are answered with an alternative."""

    search_query: list[QueryCommand] | None = None
    open: list[OpenCommand] | None = None
    find: list[FindCommand] | None = None
    time: list[TimeCommand] | None = None
    image_query: list[Any] | None = None
    click: list[Any] | None = None
    screenshot: list[Any] | None = None
    finance: list[Any] | None = None
    weather: list[Any] | None = None
    sports: list[Any] | None = None
    response_length: str | None = None


class SearchRequest(_Fields):
    id: str | None = None
    model: str | None = None
    input: Any = None
    reasoning: Any = None
    commands: SearchCommands = Field(default_factory=SearchCommands)
    settings: dict[str, Any] = {}
    max_output_tokens: int | None = Field(None, ge=1)


_UNSUPPORTED = {
    "image_query": "Image search is not available. Use `search_query`.",
    "click": "Links are not numbered. Use `open` with the URL of the link.",
    "screenshot": "Screenshots are not available. Use `open`.",
    "finance": "Prices are not available as a command. Use `search_query`.",
    "weather": "The weather is not available as a command. Use `search_query`.",
    "sports": "Sports are not available as a command. Use `search_query`.",
}
_PAGES_OFF = "Pages cannot be opened. Use `search_query`; its results contain text."
_DOMAIN_CLASH = "None of the `domains` are allowed."


class SearchSession(Protocol):
    @property
    def opens_pages(self) -> bool: ...

    async def search(self, arguments: Mapping[str, object]) -> Outcome: ...

    async def open_page(self, arguments: Mapping[str, object]) -> Outcome: ...

    async def find_in_page(self, arguments: Mapping[str, object]) -> Outcome: ...


_Command: TypeAlias = Callable[[], Awaitable[Outcome]]


class CodexSearch:
    def __init__(self, open_session: Callable[[Declaration], SearchSession]) -> None:
        self._open_session = open_session

    async def run(self, request: SearchRequest, owner: str, access: KeyAccess) -> dict[str, object]:
        commands = request.commands
        work = [*self._commands(request, owner, access)]
        if len(work) > MAX_CODEX_COMMANDS:
            message = f"Invalid 'commands': must have at most {MAX_CODEX_COMMANDS} commands, not {len(work)}."
            raise InvalidRequest(message, param="commands", code="invalid_value")
        free = asyncio.Semaphore(_CONCURRENT)

        async def run(start: _Command) -> Outcome:
            async with free:
                return await start()

        outcomes = await asyncio.gather(*map(run, work))
        texts = [str(outcome.output) for outcome in outcomes]
        texts += [note for name, note in _UNSUPPORTED.items() if getattr(commands, name)]
        answer: dict[str, object] = {"output": _join(texts, request.max_output_tokens), "encrypted_output": None}
        if commands.search_query:
            found = (outcome.fields.get("results") for outcome in outcomes)
            answer["results"] = [result for results in found if isinstance(results, list) for result in results]
        return answer

    def _commands(self, request: SearchRequest, owner: str, access: KeyAccess) -> Iterator[_Command]:
        commands, filters = request.commands, request.settings.get("filters")
        allowed = filters.get("allowed_domains") if isinstance(filters, Mapping) else None
        declared = {name: value for name, value in request.settings.items() if name in _SETTINGS}
        if commands.response_length in _SIZES and not declared.get("search_context_size"):
            declared["search_context_size"] = _SIZES[commands.response_length]
        # Other modes, such as `index_only`, need an index.
        if declared.get("external_web_access") not in (None, True):
            declared["external_web_access"] = False

        def session(**changes: object) -> SearchSession:
            tool = {"type": "web_search", **declared, **changes}
            return self._open_session(Declaration(tool, {}, "settings", owner, "", "", access=access))

        pages = session()
        for query in commands.search_query or ():
            if query.domains:
                domains = _allowed_domains(query.domains, allowed)
                if not domains:
                    yield _fixed(Outcome.failed(_DOMAIN_CLASH))
                    continue
                blocked = filters.get("blocked_domains") if isinstance(filters, Mapping) else None
                searcher = session(filters={"allowed_domains": domains, "blocked_domains": blocked})
            else:
                searcher = pages
            yield partial(searcher.search, {"query": query.q})
        for opened in commands.open or ():
            yield _open_command(pages, opened)
        for find in commands.find or ():
            yield _find_command(pages, find)
        for time in commands.time or ():
            yield _fixed(_time_at(time.utc_offset))


_SETTINGS = ("filters", "user_location", "search_context_size", "external_web_access")


def _allowed_domains(domains: Sequence[str], allowed: object) -> list[str]:
    """An empty list of allowed domains allows all."""
    if not isinstance(allowed, list) or not allowed:
        return [*domains]
    return [domain for domain in domains if any(domain == one or domain.endswith(f".{one}") for one in allowed)]


def _open_command(session: SearchSession, command: OpenCommand) -> _Command:
    async def open_page() -> Outcome:
        if (refused := _refusal(session, command.ref_id)) is not None:
            return refused
        outcome = await session.open_page({"url": command.ref_id})
        if command.lineno and outcome.status == "completed":
            lines = str(outcome.output).split("\n")
            return Outcome("\n".join([*lines[:_HEAD], *lines[_HEAD + command.lineno :]]))
        return outcome

    return open_page


_HEAD = 4  # lines before a page's text: title, URL, a note, an empty line


def _find_command(session: SearchSession, command: FindCommand) -> _Command:
    async def find() -> Outcome:
        if (refused := _refusal(session, command.ref_id)) is not None:
            return refused
        return await session.find_in_page({"url": command.ref_id, "pattern": command.pattern})

    return find


def _refusal(session: SearchSession, ref_id: str) -> Outcome | None:
    if not session.opens_pages:
        return Outcome.failed(_PAGES_OFF)
    if not ref_id.lower().startswith(("http://", "https://")):
        return Outcome.failed(f"{ref_id[:100]!r} is not a URL. {_REFERENCES}")
    return None


def _fixed(outcome: Outcome) -> _Command:
    async def say() -> Outcome:
        return outcome

    return say


_OFFSET = re.compile(r"(?:UTC)?([+-])(\d{1,2}):?(\d{2})?")


def _time_at(offset: str) -> Outcome:
    match = _OFFSET.fullmatch(offset.strip())
    shift = timedelta(hours=int(match[2]), minutes=int(match[3] or 0)) if match else timedelta(days=2)
    if match is None or shift >= timedelta(days=1):
        return Outcome.failed(f"{offset[:20]!r} is not a UTC offset. Example: +03:00.")
    now = datetime.now(UTC) + (shift if match[1] == "+" else -shift)
    return Outcome(f"The time at UTC{offset.strip().removeprefix('UTC')} is {now:%Y-%m-%d %H:%M:%S} ({now:%A}).")


def _join(texts: Sequence[str], max_tokens: int | None) -> str:
    text = "\n\n".join(texts) or f"No command found. Use `search_query`. {_REFERENCES}"
    limit = (max_tokens or 0) * _CHARS
    return f"{text[:limit]}\n(Truncated.)" if limit and len(text) > limit else text
