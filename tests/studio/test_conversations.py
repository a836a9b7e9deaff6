"""A conversation has an address, and the list beside the thread leads to it."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.studio.browser import Studio
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_conversation_is_opened_again_by_its_address_and_goes_on(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await studio.say("Say hello.")
    await expect(page).to_have_url(re.compile("/studio#/talk/resp_"))
    address = page.url

    await page.reload()
    await studio.ended(2)
    await expect(page.locator(".turn").first).to_contain_text("My name is Ada.")
    await studio.say("What is my name?")
    await expect(studio.last).to_contain_text("Your name is Ada.")
    await expect(page).to_have_url(re.compile("/studio#/talk/resp_"))
    await expect(page).not_to_have_url(address)

    await page.goto("about:blank")
    await page.goto(address)
    await studio.ended(2)
    await expect(studio.last).to_contain_text("Hello there, friend!")
    await expect(page).to_have_url(address)


async def test_view_beside_does_not_end_the_conversation(studio: Studio) -> None:
    await studio.say("My name is Ada.")
    await expect(studio.page).to_have_url(re.compile("/talk/resp_"))
    address = studio.page.url
    await studio.go("About")
    await studio.go("Talk")
    await studio.ended(1)
    await expect(studio.page).to_have_url(address)


async def begin_in_background(studio: Studio) -> None:
    """Request a background answer from a script that waits after `It begins`."""
    await studio.page.get_by_label("Message", exact=True).fill("Take your time.")
    await studio.page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("It begins")


async def test_background_response_that_runs_is_followed_after_a_reload(studio: Studio, backend: Scripted) -> None:
    goes_on = asyncio.Event()
    backend.scripts = [[delta(content="It begins"), goes_on, delta(content=" and ends.")]]
    page = studio.page
    await begin_in_background(studio)
    await page.reload()
    await expect(studio.last.locator(".question")).to_contain_text("Take your time.")
    await expect(studio.last.locator(".answer")).to_contain_text("It begins")
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    await expect(page.locator("#conversation-list .conversation")).to_contain_text("running")

    goes_on.set()
    await studio.ended(1)
    await expect(studio.last.locator(".answer")).to_have_text("It begins and ends.")
    await expect(page.locator("#conversation-list .conversation")).not_to_contain_text("running")


async def test_new_conversation_leaves_a_background_response_running(studio: Studio, backend: Scripted) -> None:
    goes_on = asyncio.Event()
    backend.scripts = [[delta(content="It begins"), goes_on, delta(content=" and ends.")], [delta(content="Other.")]]
    page = studio.page
    await begin_in_background(studio)
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".turn")).to_have_count(0)
    await studio.say("Something else")
    await expect(studio.last).to_contain_text("Other.")

    goes_on.set()
    await page.get_by_role("link", name="Take your time.").click()
    await expect(studio.last.locator(".answer")).to_have_text("It begins and ends.")


async def test_conversations_are_listed_found_opened_and_deleted(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await studio.say("What is my name?")
    await page.get_by_role("button", name="New conversation").click()
    await studio.say("Say hello.")
    titles = page.locator(".conversation-title")
    await expect(titles).to_have_text(["Say hello.", "My name is Ada."])
    await expect(page.get_by_role("link", name="Say hello.")).to_have_attribute("aria-current", "true")

    await page.get_by_label("Search conversations").fill("what is MY")
    await expect(titles).to_have_text(["My name is Ada."])
    await page.get_by_label("Search conversations").fill("nothing like it")
    await expect(page.locator("#conversations-empty")).to_have_text("No conversation contains this text.")
    await page.get_by_label("Search conversations").fill("")
    await expect(titles).to_have_count(2)

    await page.get_by_role("link", name="My name is Ada.").click()
    await studio.ended(2)
    await expect(studio.last).to_contain_text("Your name is Ada.")
    await expect(page.get_by_role("link", name="My name is Ada.")).to_have_attribute("aria-current", "true")

    await page.get_by_role("link", name="My name is Ada.").press("ArrowRight")
    await page.keyboard.press("Enter")
    await page.keyboard.press("End")
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete this conversation?")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(titles).to_have_text(["Say hello."])
    await expect(page.locator(".turn")).to_have_count(0)
    async with httpx.AsyncClient(base_url=f"{studio.url}/v1", headers=studio.headers, timeout=60) as http:
        assert len((await http.get("/antiphon/responses")).json()["data"]) == 1


async def test_conversation_that_another_client_continued_is_shown(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    last = page.url.rpartition("/")[2]
    async with httpx.AsyncClient(base_url=f"{studio.url}/v1", headers=studio.headers, timeout=60) as http:
        body = {"model": "demo", "input": "What is my name?", "previous_response_id": last}
        await http.post("/responses", json=body)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.get_by_role("link", name="Show the newest turn").click()
    await studio.ended(2)
    await expect(studio.last).to_contain_text("Your name is Ada.")
    await expect(page.locator("#elsewhere")).to_be_hidden()


async def test_list_of_conversations_has_pages(browser: Browser) -> None:
    async with antiphon() as url:
        async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
            for number in range(35):
                await http.post("/responses", json={"model": "demo", "input": f"Number {number}"})
        async with Studio.open(browser, url) as studio:
            titles = studio.page.locator(".conversation-title")
            await expect(titles).to_have_count(30)
            await studio.page.get_by_role("button", name="Show more").click()
            await expect(titles).to_have_text([f"Number {number}" for number in range(34, -1, -1)])
            await expect(studio.page.get_by_role("button", name="Show more")).to_be_hidden()


async def test_conversation_that_is_not_there_is_reported_as_missing(studio: Studio) -> None:
    studio.refusals = (404,)
    await studio.page.goto(f"{studio.url}/studio#/talk/resp_{'0' * 40}")
    await expect(studio.page.get_by_role("heading", name="This conversation cannot be opened")).to_be_visible()
    assert await studio.axe() == []
    await studio.page.get_by_role("button", name="New conversation").click()
    await studio.say("Say hello.")
    await expect(studio.last).to_contain_text("Hello there, friend!")
