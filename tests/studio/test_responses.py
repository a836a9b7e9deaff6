"""The studio's history: recent responses, chains and background responses, per key, with the server's messages."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.studio.browser import Studio
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

ROWS = ".log .rows a"

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def create(url: str, input: str, key: str = "", **more: Any) -> dict[str, Any]:
    """Create a response as another client."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
        answer = await http.post("/v1/responses", json={"model": "demo", "input": input, **more})
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made


async def test_responses_of_other_clients_appear_and_can_be_opened(studio: Studio) -> None:
    page = studio.page
    await studio.go("Responses")
    await expect(page.get_by_text("No stored responses yet")).to_be_visible()

    made = await create(studio.url, "Say hello.", studio.key, instructions="Be kind.")
    await page.locator(ROWS, has_text="Say hello.").click()

    drawer = page.locator("#response")
    await expect(drawer.get_by_role("heading", name="Say hello.")).to_be_focused()
    await expect(drawer.get_by_role("region", name="Answer")).to_contain_text("Hello there, friend!")
    assert made["id"] in page.url
    await page.get_by_role("heading", name="Client request and backend request").click()
    await expect(page.get_by_role("table", name="Client request and backend request")).to_contain_text("Be kind.")
    await page.get_by_role("heading", name="JSON").click()
    await expect(page.get_by_role("region", name="The response as JSON")).to_contain_text(made["id"])


async def test_response_is_found_by_its_id_or_reported_as_missing(studio: Studio) -> None:
    studio.refusals = (404,)
    made = await create(studio.url, "Say hello.", studio.key)
    await studio.go("Responses")
    for id, heading in ((made["id"], "Say hello."), ("resp_nothing", "Not found")):
        await studio.page.get_by_label("Search by text or id").fill(id)
        await studio.page.keyboard.press("Enter")
        await expect(studio.page.locator("#response").get_by_role("heading", name=heading)).to_be_visible()


async def test_chain_is_a_tree_with_its_forks_and_goes_on_in_talk(studio: Studio) -> None:
    first = await create(studio.url, "My name is Ada.", studio.key)
    second = await create(studio.url, "What is my name?", studio.key, previous_response_id=first["id"])
    fork = await create(studio.url, "Say hello.", studio.key, previous_response_id=first["id"])
    page = studio.page
    await page.goto(f"{studio.url}/studio#/responses/{second['id']}")
    tree = page.locator(".tree")
    await expect(tree.locator("a")).to_have_count(3)
    await expect(tree.locator("a[aria-current]")).to_contain_text("What is my name?")
    await tree.get_by_text("Say hello.").click()
    await expect(page.locator("#response-title")).to_have_text("Say hello.")
    assert fork["id"] in page.url

    await page.get_by_role("button", name="Close the response").click()
    await page.locator(ROWS, has_text="What is my name?").click()
    await expect(page.locator("#response-title")).to_have_text("What is my name?")
    await page.get_by_role("link", name="Continue in Talk").click()
    await studio.ended(2)
    await studio.say("My name is Bob.")
    await studio.say("What is my name?")
    await expect(studio.last).to_contain_text("Your name is Bob.")


async def test_response_is_deleted(studio: Studio) -> None:
    made = await create(studio.url, "Say hello.", studio.key)
    await studio.page.goto(f"{studio.url}/studio#/responses/{made['id']}")
    await studio.page.locator("#response").get_by_role("button", name="Delete").click()
    dialog = studio.page.get_by_role("dialog", name="Delete this response?")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(studio.page.get_by_text("No stored responses yet")).to_be_visible()


async def test_new_responses_wait_while_a_row_is_read(studio: Studio) -> None:
    await create(studio.url, "The first one", studio.key)
    page = studio.page
    await studio.go("Responses")
    await page.locator(ROWS).hover()
    box = await page.locator(ROWS).bounding_box()
    for number in range(3):
        await create(studio.url, f"Number {number}", studio.key)
    news = page.get_by_role("button", name="3 new responses")
    await expect(news).to_be_visible()
    assert await page.locator(ROWS).bounding_box() == box
    await news.click()
    await expect(page.locator(ROWS)).to_have_count(4)
    await expect(news).to_be_hidden()


async def test_log_is_read_with_the_keyboard(studio: Studio) -> None:
    for text in ("First", "Second", "Third"):
        await create(studio.url, text, studio.key)
    page = studio.page
    await studio.go("Responses")
    await expect(page.locator(ROWS)).to_have_count(3)
    await page.locator(ROWS).first.focus()
    await page.keyboard.press("ArrowDown")
    await expect(page.locator(ROWS, has_text="Second")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#response-title")).to_have_text("Second")
    assert await studio.axe() == []
    await page.keyboard.press("Escape")
    await expect(page.locator("#response")).to_be_hidden()
    await expect(page.locator(ROWS, has_text="Second")).to_be_focused()
    await expect(page.locator(f"{ROWS}[tabindex='0']")).to_have_count(1)


async def test_thousands_of_rows_take_few_elements(studio: Studio) -> None:
    page = studio.page
    entry = {"status": "completed", "model": "demo", "preview": "A question", "answer": "An answer", "seconds": 1.0}
    rows = [{**entry, "id": f"resp_{number}", "created_at": 1790000000 - number} for number in range(5000)]

    async def answer(route: Route) -> None:
        after = int((parse_qs(urlsplit(route.request.url).query).get("after") or ["resp_-1"])[0].removeprefix("resp_"))
        data = rows[after + 1 :][:1000]
        more = data[-1]["id"] != "resp_4999"
        await route.fulfill(json={"object": "list", "data": data, "last_id": data[-1]["id"], "has_more": more})

    await page.route("**/v1/antiphon/responses?**", answer)
    await studio.go("Responses")
    await expect(page.locator(ROWS).first).to_be_visible()
    while not await page.get_by_text("5,000 responses").is_visible():
        await page.locator(ROWS).first.focus()
        await page.keyboard.press("End")
    assert await page.locator(ROWS).count() < 100
    await page.keyboard.press("End")
    await expect(page.locator(f"{ROWS}[data-id='resp_4999']")).to_be_focused()
    assert await page.locator(ROWS).count() < 100
    await page.unroute_all()


async def test_filters_and_order_are_in_the_address(studio: Studio) -> None:
    await create(studio.url, "Say hello.", studio.key, metadata={"team": "web"})
    await create(studio.url, "My name is Ada.", studio.key, model="other")
    page = studio.page
    await page.goto(f"{studio.url}/studio#/responses?model=demo&metadata[team]=web&sort=-out")
    rows = page.locator(ROWS)
    await expect(rows).to_have_count(1)
    await expect(page.get_by_role("columnheader", name="Out", exact=True)).to_have_attribute("aria-sort", "descending")
    await page.get_by_role("group", name="Narrow down").get_by_text("Model: demo").click()
    await page.get_by_role("button", name="other 0").or_(page.get_by_role("button", name="Any")).first.click()
    await expect(page).to_have_url(f"{studio.url}/studio#/responses?metadata[team]=web&sort=-out")
    await page.get_by_role("button", name="Clear", exact=True).click()
    await expect(rows).to_have_count(2)
    await page.get_by_role("button", name="Completed 2").click()
    await expect(page).to_have_url(f"{studio.url}/studio#/responses?status=completed&sort=-out")


async def test_background_response_of_another_client_is_followed_and_cancelled(
    studio: Studio, backend: Scripted
) -> None:
    backend.scripts = [[delta(content="It begins, and "), asyncio.Event()]]
    made = await create(studio.url, "Take your time.", studio.key, background=True)
    page = studio.page
    await page.goto(f"{studio.url}/studio#/responses/{made['id']}")
    await expect(page.locator("#response")).to_contain_text("It begins, and")
    await page.locator("#response").get_by_role("button", name="Cancel").click()
    await expect(page.locator("#response .drawer-head")).to_contain_text("Cancelled")
    await expect(page.locator(".log .rows")).to_contain_text("Cancelled")


async def test_background_answer_goes_on_when_its_stream_breaks(studio: Studio, backend: Scripted) -> None:
    go_on = asyncio.Event()
    backend.scripts = [[delta(content="One, "), go_on, delta(content="two.")]]
    page = studio.page
    await page.evaluate(
        """() => {
            const real = window.fetch;
            window.fetch = async (...request) => {
                const answer = await real(...request);
                window.fetch = real;
                const reader = answer.body.getReader();
                const broken = new ReadableStream({
                    async pull(controller) {
                        const { value } = await reader.read();
                        controller.enqueue(value);
                        const text = new TextDecoder().decode(value);
                        if (text.includes("One, ")) controller.error(new TypeError("gone"));
                    },
                });
                return new Response(broken, { status: answer.status, headers: answer.headers });
            };
        }"""
    )
    await page.get_by_label("Message", exact=True).fill("Count")
    await page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("One,")
    go_on.set()
    await studio.ended(1)
    await expect(studio.last).to_contain_text("One, two.")


async def test_responses_of_two_keys_are_seen_by_their_own(browser: Browser) -> None:
    async with antiphon(api_keys="ada-key,bob-key") as url, Studio.open(browser, url, key="ada-key") as studio:
        made = await create(url, "For Ada alone", key="ada-key")
        for key, sees in (("ada-key", 1), ("bob-key", 0)):
            await studio.begin(key)
            studio.refusals = (404,)
            await studio.go("Responses")
            await expect(studio.page.locator(ROWS)).to_have_count(sees)
            await studio.page.get_by_label("Search by text or id").fill(made["id"])
            await studio.page.keyboard.press("Enter")
            heading = "For Ada alone" if sees else "Not found"
            await expect(studio.page.locator("#response-title")).to_have_text(heading)


async def test_key_is_requested_stored_in_the_tab_and_discarded(browser: Browser) -> None:
    async with antiphon(api_keys="right") as url, Studio.open(browser, url, refusals=(401,)) as studio:
        page = studio.page
        dialog = page.get_by_role("dialog", name="API key")
        await expect(dialog).to_be_visible()
        await dialog.get_by_label("Key").fill("right")
        await dialog.get_by_role("button", name="Use this key").click()
        await expect(page.locator("#model option")).to_have_count(1)
        await studio.suggest("Stream some Markdown")
        await expect(studio.last.locator("tbody tr")).to_have_count(3)
        assert await page.evaluate(
            "[sessionStorage['antiphon.key'], JSON.stringify(localStorage), document.cookie]"
        ) == [
            "right",
            "{}",
            "",
        ]
        await studio.inspect("Code")
        assert "right" not in (await page.locator("#panel-code").inner_text()).split('"')

        await page.get_by_role("button", name="API key set").click()
        await dialog.get_by_role("button", name="Remove key").click()
        await expect(page.locator(".turn")).to_have_count(0)
        assert await page.evaluate("sessionStorage['antiphon.key']") is None


async def test_hosted_tools_that_cannot_be_read_are_not_reported_as_none(browser: Browser) -> None:
    async with antiphon(tools={"demo": {}}) as url, Studio.open(browser, url, refusals=(503,)) as studio:
        tools = studio.page.get_by_role("group", name="Hosted tools")
        await studio.open_options()
        await expect(tools.get_by_role("switch")).to_have_count(1)
        error = {"error": {"type": "server_error", "code": "server_error", "message": "Out of order.", "param": None}}
        await studio.page.route("**/v1/antiphon/about", lambda route: route.fulfill(status=503, json=error))
        await studio.page.reload()
        await studio.open_options()
        await expect(tools).to_contain_text("The server's tools could not be loaded: Out of order.")
        await expect(tools.get_by_text("This server has none")).to_be_hidden()


async def test_about_shows_what_is_configured_and_up(studio: Studio) -> None:
    await studio.page.goto(f"{studio.url}/studio#/about")
    about = studio.page.locator("#about-body")
    await expect(about.get_by_role("region", name="Health")).to_contain_text("Backendok")
    await expect(about.get_by_role("region", name="Backends", exact=True).first).to_contain_text("demo")
    await expect(about.get_by_role("region", name="Settings")).to_contain_text("memory, 30 days")
    await expect(about.get_by_role("region", name="Clients")).to_contain_text(f"export OPENAI_BASE_URL={studio.url}/v1")
    links = await about.get_by_role("region", name="Links").get_by_role("link").all()
    assert len(links) >= 3
    for link in links:
        async with httpx.AsyncClient(timeout=60) as http:
            assert (await http.get(await link.get_attribute("href") or "")).status_code == 200


async def test_reference_works_without_the_internet(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url, path="/docs") as studio:
        await expect(studio.page.get_by_text("Create a response").first).to_be_visible()
        await expect(studio.page.get_by_text("List the caller's recent responses").first).to_be_visible()


async def test_pages_answer_head_as_get_without_the_body() -> None:
    async with antiphon() as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        for path, accept in (
            ("/", "text/html"),
            ("/", "*/*"),
            ("/studio", "*/*"),
            ("/docs", "*/*"),
            ("/healthz", "*/*"),
        ):
            got, head = [await http.request(method, path, headers={"Accept": accept}) for method in ("GET", "HEAD")]
            assert head.status_code == got.status_code
            assert head.headers.get("location") == got.headers.get("location")
            assert head.headers.get("content-type") == got.headers.get("content-type")
            assert head.content == b""


async def test_studio_can_be_switched_off() -> None:
    async with antiphon(studio=False) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        for path in ("/", "/studio", "/studio/js/main.js"):
            assert (await http.get(path, headers={"Accept": "text/html"})).status_code == 404
        assert (await http.get("/docs")).status_code == 200
