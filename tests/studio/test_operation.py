"""The studio's pages about the server: usage, current activity, the response log, and refusals."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect

from app.core.access import hash_of
from app.core.types.deltas import DONE
from tests.studio.browser import Studio
from tests.support.build import delta, finish, reported
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")

HELLO: list[Step] = [delta(content="Hello"), finish("stop"), {"choices": [], "usage": reported(1000, 500)}, DONE]
PRICES = {"*": {"input": 1, "output": 4}}
KEYS = {
    "alice": {"hash": hash_of("alice"), "budget": {"tokens_per_day": 2000}},
    "bob": {"hash": hash_of("bob")},
    "boss": {"hash": hash_of("boss"), "admin": True},
}
DRAWN = "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
CHANGED = (
    "(before) => document.querySelector('[aria-label=\"Tokens by day, in and out\"] canvas').toDataURL() !== before"
)
VIEWS = {
    "Usage": "#usage-body .tile",
    "Now": "#now-body .tile",
    "Responses": ".log .rows a",
    "Files": "#files-body .card",
}


async def create(url: str, key: str = "", **fields: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False, headers=headers) as http:
        answer: dict[str, Any] = (
            await http.post("/responses", json={"model": "qwen3", "input": "Hi", **fields})
        ).json()
        return answer


async def test_key_sees_what_it_has_used_and_admin_what_all_have(browser: Browser) -> None:
    async with antiphon(Scripted(HELLO), keys=KEYS, prices=PRICES) as url:
        for key in ("alice", "bob"):
            await create(url, key)
        async with Studio.open(browser, url, key="alice") as studio:
            await studio.go("Usage")
            tokens = studio.page.locator(".tile", has=studio.page.get_by_text("Tokens", exact=True))
            await expect(tokens).to_contain_text("1.5K")
            await expect(tokens).to_contain_text("1K in, 500 out")
            meter = studio.page.get_by_role("meter", name="alice: tokens per day")
            await expect(meter).to_have_attribute("aria-valuenow", "75")
            await expect(meter).to_have_attribute("aria-valuetext", re.compile("1,500 of 2,000"))
            await studio.page.get_by_label("By", exact=True).select_option("key")
            usage = studio.page.get_by_role("region", name="Usage by key")
            await expect(usage.get_by_role("row")).to_have_count(2)
            await expect(usage).to_contain_text("alice")
            await studio.begin("boss")
            await studio.go("Usage")
            await studio.page.get_by_label("By", exact=True).select_option("key")
            usage = studio.page.get_by_role("region", name="Usage by key")
            await expect(usage.get_by_role("row")).to_have_count(3)
            await expect(studio.page.get_by_role("meter", name="alice: tokens per day")).to_have_count(1)


async def test_each_plot_is_drawn_and_has_its_numbers_as_a_table(browser: Browser) -> None:
    async with antiphon(Scripted(HELLO), prices=PRICES) as url:
        await create(url)
        async with Studio.open(browser, url) as studio:
            await studio.go("Usage")
            for title in ("Cost by day", "Tokens by day, in and out", "Requests, last 24 hours"):
                figure = studio.page.get_by_role("figure", name=title, exact=True)
                await expect(figure.locator("canvas")).to_be_visible()
                assert await figure.locator("canvas").evaluate(DRAWN)
                await figure.get_by_text("As a table").click()
                await expect(figure.get_by_role("table").get_by_role("row")).to_have_count(2)
            figure = studio.page.get_by_role("figure", name="Tokens by day, in and out")
            await expect(figure.get_by_role("table")).to_contain_text("1.5K")


async def test_theme_of_plots_follows_that_of_the_page(browser: Browser) -> None:
    async with antiphon(Scripted(HELLO)) as url:
        await create(url)
        async with Studio.open(browser, url, theme="light") as studio:
            await studio.go("Usage")
            canvas = studio.page.get_by_role("figure", name="Tokens by day, in and out").locator("canvas")
            await expect(canvas).to_be_visible()
            light = await canvas.evaluate("(canvas) => canvas.toDataURL()")
            await studio.page.get_by_role("radio", name="Dark").check()
            await studio.page.wait_for_function(CHANGED, arg=light)


async def test_running_response_is_seen_and_cancelled(browser: Browser) -> None:
    end = asyncio.Event()
    async with antiphon(Scripted([delta(content="He"), end, *HELLO]), keys=KEYS) as url:
        made = await create(url, "alice", background=True)
        async with Studio.open(browser, url, key="boss") as studio:
            await studio.go("Now")
            row = studio.page.get_by_role("region", name="Running responses").get_by_role("row").nth(1)
            await expect(row).to_contain_text("alice")
            await expect(row.get_by_role("button")).to_have_count(0)  # it is not the admin's
            await studio.begin("alice")
            await studio.go("Now")
            await studio.page.get_by_role("button", name=f"Cancel {made['id']}").click()
            await expect(studio.page.get_by_text("No responses are running.")).to_be_visible()
        end.set()


async def test_servers_are_seen_without_their_load_by_a_key_without_admin(browser: Browser) -> None:
    async with antiphon(keys=KEYS) as url, Studio.open(browser, url, key="alice") as studio:
        for key, columns in (("alice", 3), ("boss", 6)):
            await studio.begin(key)
            await studio.go("Now")
            backends = studio.page.get_by_role("region", name="Backends")
            await expect(backends.get_by_role("columnheader")).to_have_count(columns)
            await expect(backends).to_contain_text("up")


async def test_log_is_filtered_by_text_status_and_model(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [HELLO]
    for text, model in (("The first one.", "qwen3"), ("The second one.", "gpt-5"), ("Another.", "gpt-5")):
        await create(studio.url, studio.key, input=text, model=model)
    page = studio.page
    await studio.go("Responses")
    entries = page.locator(".log .rows a")
    await expect(entries).to_have_count(3)
    await page.get_by_label("Search by text or id").fill("one.")
    await expect(entries).to_have_count(2)
    await page.get_by_role("group", name="Narrow down").get_by_text("Model").click()
    await page.get_by_role("button", name="gpt-5 1").click()
    await expect(entries).to_have_count(1)
    await expect(entries).to_contain_text("The second one.")
    await page.get_by_label("Search by text or id").fill("Hello")
    await expect(entries).to_have_count(2)  # of the answers
    await page.goto(f"{studio.url}/studio#/responses?status=failed&model=gpt-5")
    await expect(page.get_by_text("No responses match these filters.")).to_be_visible()
    await page.get_by_role("button", name="Clear", exact=True).click()
    await expect(entries).to_have_count(3)


async def test_refused_request_is_listed_with_its_reason(studio: Studio) -> None:
    await create(studio.url, studio.key, temperature=9)
    await studio.go("Responses")
    await studio.page.get_by_role("link", name="Refused").click()
    refused = studio.page.get_by_role("region", name="Refused requests").locator("tbody tr")
    await expect(refused).to_have_count(1)
    for text in ("400", "temperature", "POST /responses"):
        await expect(refused).to_contain_text(text)
    await studio.page.get_by_role("link", name="Stored").click()
    await expect(studio.page.get_by_label("Search by text or id")).to_be_visible()


async def test_run_with_tools_is_a_timeline_of_rounds_and_calls(studio: Studio) -> None:
    tools = [{"type": "mcp", "server_label": "demo"}]
    await create(studio.url, studio.key, model="demo", input="Please echo: hello", tools=tools)
    await studio.go("Responses")
    await studio.page.locator(".log .rows a").first.click()
    rows = studio.page.locator(".gantt li")
    names = ("Connecting to tools", "Model, round 1", "echo", "Model, round 2")
    for name in names:
        await expect(rows.filter(has_text=name)).to_have_count(1)
    left_edges = await rows.locator(".gantt-bar:not(.wait, .queue, .between)").evaluate_all(
        "(bars) => bars.map((bar) => bar.getBoundingClientRect().left)"
    )
    assert left_edges == sorted(left_edges)


@pytest.mark.parametrize("width", [390, 1600])
async def test_pages_are_accessible_and_fit(browser: Browser, width: int, tmp_path: Any) -> None:
    tools = {"file_search": {"store_url": f"sqlite:///{tmp_path}/files.db"}}
    async with antiphon(Scripted(HELLO), prices=PRICES, tools=tools) as url:
        await create(url)
        await create(url, temperature=9)
        async with Studio.open(browser, url, width=width) as studio:
            for view, shown in VIEWS.items():
                await studio.page.goto(f"{url}/studio#/{view.lower()}")
                await expect(studio.page.locator(shown).first).to_be_visible()
                assert await studio.axe_in_both_themes("main") == []
                assert await studio.overflow() == 0
