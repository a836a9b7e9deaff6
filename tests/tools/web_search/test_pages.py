"""Pages cannot do harm, whatever they contain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI, Response

from app.main import create_app
from app.tools import guard
from app.tools.guard import URLPattern
from app.tools.web_search import pages
from tests.support.loop_holds import HELD, watched_loop
from tests.support.scripted import Scripted
from tests.support.serving import serving, settings
from tests.tools.web_search.hostile_pages import PAGES, Page
from tests.tools.web_search.test_web_search import answering, searching, shown


class Seen(NamedTuple):
    """The model's view of a page, and the event loop's longest block."""

    text: str
    held: float


async def see(names: Iterable[str]) -> dict[str, Seen]:
    """Open pages in turn, over real sockets, each for a new response."""
    web = FastAPI()
    contents: dict[str, Response] = {}
    web.get("/page/{number}")(lambda number: contents[number])
    table = {"url": "http://127.0.0.1:1", "open_pages": True}
    backend = Scripted()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_SECONDS", 200.0)  # for a busy machine
        app = create_app(settings(tools={"web_search": table}), backend=backend)
    async with serving(web) as web_url, serving(app) as url, httpx.AsyncClient(base_url=url, timeout=300) as http:

        async def fetch(url: str, **_: Any) -> httpx.Response:
            return await guard.fetch(url, allowed=[URLPattern.parse(f"{web_url}/*")], policy="any")

        async def look(number: str, page: Page) -> Seen:
            headers = {"content-type": page.type, **({"content-encoding": page.encoding} if page.encoding else {})}
            contents[number] = Response(page.make(), headers=headers)
            looked_for = {} if page.pattern is None else {"pattern": page.pattern}
            name = "find_in_page" if looked_for else "open_page"
            backend.scripts = [searching(name=name, url=f"{web_url}/page/{number}", **looked_for), answering("Seen.")]
            async with watched_loop() as holds:
                body = {"model": "m", "input": "?", "tools": [{"type": "web_search"}]}
                response = (await http.post("/v1/responses", json=body)).json()
            assert response["status"] == "completed"
            return Seen(shown(backend), holds.longest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pages, "fetch", fetch)
            patch.setattr(pages, "EXTRACT_SECONDS", 1.0)
            return {name: await look(str(number), PAGES[name]) for number, name in enumerate(names)}


@pytest.fixture(scope="module")
def pages_seen() -> dict[str, Seen]:
    return asyncio.run(see(PAGES))


@pytest.mark.parametrize("name", PAGES)
def test_hostile_page_is_shown_or_refused_and_holds_nobody_up(name: str, pages_seen: dict[str, Seen]) -> None:
    text, held = pages_seen[name]
    assert PAGES[name].shown in text
    for _ in range(2):  # other processes can make it longer, never shorter
        if held > HELD:
            held = asyncio.run(see([name]))[name].held
    assert held <= HELD
