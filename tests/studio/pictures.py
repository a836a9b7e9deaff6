"""
Screenshots of the studio, with the real page and server.

    python -m tests.studio.pictures                    # the pictures in README and docs/studio.md
    python -m tests.studio.pictures --all DIRECTORY    # every view, at four widths, light and dark
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, Page

from app.core.access import hash_of
from tests.studio.browser import Studio, chromium, chromium_path
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse, usage

DOCS = Path(__file__).parents[2] / "docs"
THEMES = {"light": "", "dark": "-dark"}
WIDTHS = {390: 844, 768: 1024, 1280: 880, 1600: 900}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
# Requests of the log: message and options.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("Show me some Markdown.", {}),
    ("Summarize Monday's meeting about the migration of the billing service.", {}),
    ("Think before you answer: what is an antiphon?", {"reasoning": {"effort": "medium"}}),
    ("What is the weather in Paris?", {"tools": [WEATHER]}),
    ("Please echo: hello", {"tools": [{"type": "mcp", "server_label": "demo"}]}),
    ("Invent a person.", {"metadata": {"team": "web"}}),
    ("Draw a picture.", {}),
    ("My name is Ada.", {"metadata": {"team": "web"}}),
    ("Fail in the middle.", {}),
]
MODELS = ("qwen3-32b", "gpt-5-mini", "claude-sonnet-5")
PRICES = {
    "qwen*": {"input": 0.4, "output": 1.2},
    "gpt*": {"input": 250, "output": 2000},
    "*": {"input": 3, "output": 15},
}


async def for_readme(browser: Browser, url: str) -> None:
    """Take the pictures in README and docs/studio.md."""
    await fill(url, 45)
    for theme, suffix in THEMES.items():
        async with Studio.open(browser, url, theme=theme, width=1280, height=880) as studio:
            await studio.suggest("Stream some Markdown")
            await studio.inspect("Events")
            await studio.page.mouse.move(0, 0)
            await studio.page.evaluate("document.fonts.ready")
            await studio.page.screenshot(path=DOCS / f"studio{suffix}.png")
            await studio.go("Responses")
            await studio.page.locator(".log .rows a").nth(20).wait_for()
            await studio.page.screenshot(path=DOCS / f"studio-log{suffix}.png")
    async with translated() as (url, response_id):
        for theme, suffix in THEMES.items():
            path = f"/studio#/responses/{response_id}"
            async with Studio.open(browser, url, path=path, theme=theme, width=1280, height=1180) as studio:
                await show_translation(studio)
                await studio.page.screenshot(path=DOCS / f"studio-translation{suffix}.png")


async def fill(url: str, number: int, key: str = "") -> None:
    """Fill the log with other clients' requests; some fail, and one is refused."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False, headers=headers) as http:
        for index in range(number):
            text, fields = REQUESTS[index % len(REQUESTS)]
            body = {"model": MODELS[index // 2 % len(MODELS)], "input": text, "stream": index % 2 == 0, **fields}
            await http.post("/responses", json=body)
        await http.post("/responses", json={"model": "qwen3-32b", "input": "Hi", "temperature": 9})


@asynccontextmanager
async def translated() -> AsyncIterator[tuple[str, str]]:
    """Serve in front of vLLM; yield the URL and the id of a response with renamed, translated and dropped fields."""
    call = {"index": 0, "id": "call_7", "type": "function"}
    call["function"] = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    async with Upstream() as upstream:
        upstream.say(sse(chunk(tool_calls=[call]), finish("tool_calls"), usage(64, 18), DONE))
        upstream.say(sse(chunk("Yes: it is raining lightly, "), chunk("so take one."), finish(), usage(121, 14), DONE))
        async with (
            antiphon(backend_url=upstream.url, backend_profile="vllm", prices=PRICES) as url,
            httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http,
        ):
            body: dict[str, Any] = {"model": "qwen3-32b", "instructions": "Answer in one sentence.", "tools": [WEATHER]}
            first = (await http.post("/responses", json={**body, "input": "What is the weather in Paris?"})).json()
            body |= {
                "previous_response_id": first["id"],
                "input": [
                    {"type": "function_call_output", "call_id": "call_7", "output": "18 \u00b0C, light rain"},
                    {"role": "user", "content": "Do I need an umbrella?"},
                ],
                "reasoning": {"effort": "high"},
                "text": {"verbosity": "low"},
                "max_output_tokens": 300,
                "temperature": 0.2,
                "metadata": {"team": "web"},
                "service_tier": "flex",
            }
            second = (await http.post("/responses", json=body)).json()
            yield url, second["id"]


async def show_translation(studio: Studio) -> None:
    """Show the open response's client and backend request, as wide as the page."""
    page = studio.page
    await page.get_by_role("heading", name="Client request and backend request").click()
    if await page.get_by_role("button", name="Full width").is_visible():
        await page.get_by_role("button", name="Full width").click()
    await page.locator(".aligned").wait_for()
    await page.locator("#response").evaluate(
        "(drawer) => { const fold = drawer.querySelector('.aligned').closest('details');"
        " drawer.scrollTop += fold.getBoundingClientRect().top - drawer.getBoundingClientRect().top - 60; }"
    )
    await page.mouse.move(0, 0)


async def of_all(browser: Browser, url: str, directory: Path) -> None:
    """Take a picture of each view, to be looked at."""
    await fill(url, 27)
    for theme in ("light", "dark"):
        for width, height in WIDTHS.items():
            async with Studio.open(
                browser, url, theme=theme, width=width, height=height, refusals=(404, 503)
            ) as studio:
                await _tour(studio, directory / f"{theme}-{width}")
    async with translated() as (url, response_id):
        for theme in THEMES:
            for width, height in WIDTHS.items():
                path = f"/studio#/responses/{response_id}"
                async with Studio.open(browser, url, path=path, theme=theme, width=width, height=height) as studio:
                    await show_translation(studio)
                    await studio.page.screenshot(path=directory / f"{theme}-{width}-translation.png")


async def of_admin(browser: Browser, directory: Path) -> None:
    """Take pictures of views with an admin key, files or stored requests."""
    keys = {"boss": {"hash": hash_of("boss"), "admin": True}}
    with tempfile.TemporaryDirectory() as folder:
        tools = {"demo": {}, "file_search": {"store_url": f"sqlite:///{folder}/files.db"}}
        async with antiphon(tools=tools, keys=keys, prices=PRICES, currency="€") as url:
            key_id, store_id = await _keys_and_files(url)
            for theme in THEMES:
                for width, height in WIDTHS.items():
                    async with Studio.open(browser, url, key="boss", theme=theme, width=width, height=height) as studio:
                        await _admin_tour(studio, directory / f"{theme}-{width}", key_id, store_id)


async def _keys_and_files(url: str) -> tuple[str, str]:
    """Create keys, their usage, and a vector store; return the ids of a key and the store."""
    headers = {"Authorization": "Bearer boss"}
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False, headers=headers) as http:
        limits = {"requests_per_minute": 60, "budgets": {"tokens_per_day": 30_000, "money_per_month": 20}}
        body = {"name": "research", "owner": "lab", "models": ["qwen*", "gpt-5-mini", "claude*"], **limits}
        key = (await http.post("/antiphon/keys", json=body)).json()
        await http.post("/antiphon/keys", json={"name": "nightly-builds", "expires_at": 2_000_000_000})
        await http.patch(f"/antiphon/keys/{key['id']}", json={"requests_per_minute": 120})
        store = (await http.post("/vector_stores", json={"name": "Handbook of the house"})).json()
        for name, text in (
            ("guide.txt", "Bread needs yeast. " * 20),
            ("vacation.md", "Thirty days of vacation a year."),
        ):
            file = await http.post("/files", files={"file": (name, text.encode())}, data={"purpose": "assistants"})
            await http.post(f"/vector_stores/{store['id']}/files", json={"file_id": file.json()["id"]})
    await fill(url, 12, key["secret"])
    await fill(url, 12, "boss")
    return key["id"], store["id"]


async def _admin_tour(studio: Studio, start: Path, key_id: str, store_id: str) -> None:
    page = studio.page
    for name, path, shown in (
        ("keys", "keys", "tbody tr"),
        ("key", f"keys/{key_id}", "canvas"),
        ("files-filled", "files", "tbody tr"),
        ("files-store", f"files/{store_id}", "tbody tr"),
    ):
        await page.goto(f"{studio.url}/studio#/{path}")
        await page.locator("main").locator(shown).locator("visible=true").first.wait_for()
        if name == "files-store":
            await page.get_by_label("Search in this vector store").fill("vacation")
            await page.keyboard.press("Enter")
            await page.locator(".result").first.wait_for()
        await _take(page, start, name)
    await page.goto(f"{studio.url}/studio#/keys")
    await page.get_by_role("button", name="New key").click()
    await _take(page, start, "keys-new")
    await page.goto(f"{studio.url}/studio#/compare/run?status=completed")
    await page.reload()
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.get_by_role("link", name="Compare", exact=True).nth(5).wait_for()
    await _take(page, start, "run")
    print(f"{start.name}: axe {await studio.axe()}, overflow {await studio.overflow()}")


async def _take(page: Page, start: Path, name: str) -> None:
    await page.mouse.move(0, 0)
    await page.evaluate("document.fonts.ready")
    await page.screenshot(path=f"{start}-{name}.png")


async def _tour(studio: Studio, start: Path) -> None:
    page = studio.page

    async def take(name: str) -> None:
        await _take(page, start, name)

    await page.get_by_role("button", name="Think first").wait_for()
    await take("welcome")
    await studio.suggest("Think first")
    await page.get_by_role("button", name="Options", exact=True).click()
    await take("options")
    await page.get_by_role("button", name="Close the options").click()
    await studio.say("Draw a picture.")
    await studio.say("Show me some Markdown.")
    await take("talk")
    for tab in ("Events", "Request", "JSON", "Code"):
        if not await page.get_by_role("tab", name=tab).is_visible():
            await studio.inspect(tab)
        await page.get_by_role("tab", name=tab).click()
        await page.get_by_role("tabpanel", name=tab).wait_for()
        await take(f"inspector-{tab.lower()}")
    await page.get_by_role("button", name="Close the inspector").click()
    await studio.say("Fail with a 503.")
    await take("error")
    await studio.go("Responses")
    await page.locator(".log .rows a").first.wait_for()
    await take("responses")
    await page.locator(".log .rows a").first.click()
    await page.locator("#response .fold").first.wait_for()
    await take("response")
    await page.get_by_role("button", name="Close the response").click()
    await page.get_by_role("link", name="Refused").click()
    await take("refused")
    await studio.go("Compare")
    await page.get_by_label("Message for all").fill("Show me some Markdown.")
    await page.get_by_role("button", name="Send to all").click()
    await page.get_by_role("link", name="Continue in Talk").nth(1).wait_for()
    await take("compare")
    for view, shown in (("Usage", ".figures canvas"), ("Now", "#now-body .tile"), ("Files", "#files-body > *")):
        await studio.go(view)
        await page.locator(shown).first.wait_for()
        await take(view.lower())
    await studio.go("About")
    await page.get_by_role("heading", name="Clients").wait_for()
    await take("about")


async def main(directory: Path | None) -> None:
    path = chromium_path()
    if path is None:
        raise SystemExit("Chromium is not installed: on Debian, apt install chromium")
    async with chromium(path) as browser, antiphon(tools={"demo": {}}, prices=PRICES, currency="€") as url:
        await (of_all(browser, url, directory) if directory else for_readme(browser, url))
        if directory:
            await of_admin(browser, directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", type=Path)
    directory = parser.parse_args().all
    if directory:
        directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(directory))
