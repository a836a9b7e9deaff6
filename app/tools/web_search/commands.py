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
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from app.core.access import KeyAccess
from app.errors import InvalidRequest
from app.tools import Declaration, Outcome
from app.tools.web_search import WebSearchSession, WebSearchTool

MAX_CODEX_COMMANDS = 16  # per request
_CONCURRENT = 4
_CHARS = 4  # characters per token, approximately
_SIZES = {"short": "low", "medium": "medium", "long": "high"}
_REFERENCES = "The `ref_id` of a result is its URL."


class QueryCommand(BaseModel):
    q: str
    recency: int | None = None
    domains: list[str] | None = Field(None, max_length=100)


class OpenCommand(BaseModel):
    ref_id: str
    lineno: int | None = Field(None, ge=0)


class FindCommand(BaseModel):
    ref_id: str
    pattern: str


class TimeCommand(BaseModel):
    utc_offset: str  # such as `+03:00`


class SearchCommands(BaseModel):
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


class SearchRequest(BaseModel):
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
_SETTINGS = ("filters", "user_location", "search_context_size", "external_web_access")


async def run_commands(tool: WebSearchTool, request: SearchRequest, owner: str, access: KeyAccess) -> dict[str, object]:
    """Raises `InvalidRequest` and `PermissionDenied`."""
    commands = request.commands
    work = _commands(tool, request, owner, access)
    if len(work) > MAX_CODEX_COMMANDS:
        message = f"Invalid 'commands': must have at most {MAX_CODEX_COMMANDS} commands, not {len(work)}."
        raise InvalidRequest(message, param="commands", code="invalid_value")
    free = asyncio.Semaphore(_CONCURRENT)

    async def run(command: Callable[[], Awaitable[Outcome]]) -> Outcome:
        async with free:
            return await command()

    outcomes = await asyncio.gather(*map(run, work))
    texts = [str(outcome.output) for outcome in outcomes]
    texts += [note for name, note in _UNSUPPORTED.items() if getattr(commands, name)]
    text = "\n\n".join(texts) or f"No command found. Use `search_query`. {_REFERENCES}"
    limit = (request.max_output_tokens or 0) * _CHARS
    if limit and len(text) > limit:
        text = f"{text[:limit]}\n(Truncated.)"
    answer: dict[str, object] = {"output": text, "encrypted_output": None}
    if commands.search_query:
        found = (outcome.fields.get("results") for outcome in outcomes)
        answer["results"] = [result for results in found if isinstance(results, list) for result in results]
    return answer


def _commands(
    tool: WebSearchTool, request: SearchRequest, owner: str, access: KeyAccess
) -> list[Callable[[], Awaitable[Outcome]]]:
    commands, filters = request.commands, request.settings.get("filters")
    filters = filters if isinstance(filters, Mapping) else {}
    declared = {name: value for name, value in request.settings.items() if name in _SETTINGS}
    if commands.response_length in _SIZES and not declared.get("search_context_size"):
        declared["search_context_size"] = _SIZES[commands.response_length]
    # Other modes, such as `index_only`, need an index.
    if declared.get("external_web_access") not in (None, True):
        declared["external_web_access"] = False

    def session(**changes: object) -> WebSearchSession:
        declaration = {"type": "web_search", **declared, **changes}
        return tool.open(Declaration(declaration, {}, "settings", owner, "", "", access=access))

    pages = session()
    work: list[Callable[[], Awaitable[Outcome]]] = []
    for query in commands.search_query or ():
        searcher: WebSearchSession | None = pages
        if domains := query.domains:
            allowed = filters.get("allowed_domains")
            if isinstance(allowed, list) and allowed:  # an empty list allows all
                domains = [one for one in domains if any(one == name or one.endswith(f".{name}") for name in allowed)]
            within = {"allowed_domains": domains, "blocked_domains": filters.get("blocked_domains")}
            searcher = session(filters=within) if domains else None
        work.append(partial(_search, searcher, query))
    work += [partial(_open, pages, command) for command in (*(commands.open or ()), *(commands.find or ()))]
    work += [partial(_time, command) for command in commands.time or ()]
    return work


async def _search(session: WebSearchSession | None, command: QueryCommand) -> Outcome:
    if session is None:
        return Outcome.failed("None of the `domains` are allowed.")
    return await session.web_search({"query": command.q})


_HEAD = 4  # lines before a page's text: title, URL, a note, an empty line


async def _open(session: WebSearchSession, command: OpenCommand | FindCommand) -> Outcome:
    """Open a page, or find a text in it."""
    url = command.ref_id
    if not session.opens_pages:
        return Outcome.failed("Pages cannot be opened. Use `search_query`; its results contain text.")
    if not url.lower().startswith(("http://", "https://")):
        return Outcome.failed(f"{url[:100]!r} is not a URL. {_REFERENCES}")
    if isinstance(command, FindCommand):
        return await session.find_in_page({"url": url, "pattern": command.pattern})
    outcome = await session.open_page({"url": url})
    if command.lineno and outcome.status == "completed":
        lines = str(outcome.output).split("\n")
        return Outcome("\n".join([*lines[:_HEAD], *lines[_HEAD + command.lineno :]]))
    return outcome


async def _time(command: TimeCommand) -> Outcome:
    offset = command.utc_offset.strip()
    match = re.fullmatch(r"(?:UTC)?([+-])(\d{1,2}):?(\d{2})?", offset)
    shift = timedelta(hours=int(match[2]), minutes=int(match[3] or 0)) if match else timedelta(days=2)
    if match is None or shift >= timedelta(days=1):
        return Outcome.failed(f"{command.utc_offset[:20]!r} is not a UTC offset. Example: +03:00.")
    now = datetime.now(UTC) + (shift if match[1] == "+" else -shift)
    return Outcome(f"The time at UTC{offset.removeprefix('UTC')} is {now:%Y-%m-%d %H:%M:%S} ({now:%A}).")
