"""The first minute: a model is connected, clients are pointed at the server, and their first request appears."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Browser, expect

from app.backends.server import local_servers
from tests.studio.browser import Studio
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_local_model_server_is_found_and_a_foreign_request_appears(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Upstream() as up:
        port = int(up.url.partition("127.0.0.1:")[2].partition("/")[0])
        monkeypatch.setattr(local_servers, "PORTS", {"Ollama": port})  # a default port may be in use here
        async with antiphon() as url, Studio.open(browser, url) as studio:
            page = studio.page
            connect = page.get_by_role("region", name="Connect a model")
            await expect(connect).to_contain_text("Running on this machine")
            await expect(connect).to_contain_text(f"antiphon serve --backend-url http://127.0.0.1:{port}/v1")
            clients = page.get_by_role("region", name="Point your tools here")
            await expect(clients).to_contain_text(f"antiphon codex --url {url}/v1")
            await expect(clients).to_contain_text(f"ANTHROPIC_BASE_URL={url} ")
            assert await studio.axe() == []
            async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
                await http.post("/responses", json={"model": "demo", "input": "From a client"})
            await expect(page.locator(".start-arrived")).to_contain_text("From a client")
            await page.get_by_role("link", name="See what it sent").click()
            await expect(page.get_by_role("region", name="Responses")).to_be_visible()


async def test_conversations_of_this_page_are_listed_without_those_of_clients(studio: Studio) -> None:
    page = studio.page
    await studio.say("From the studio")
    async with httpx.AsyncClient(base_url=f"{studio.url}/v1", headers=studio.headers, timeout=60) as http:
        await http.post("/responses", json={"model": "demo", "input": "From a client"})
    titles = page.locator(".conversation-title")
    await page.get_by_role("radio", name="This page").check()
    await expect(titles).to_have_text(["From the studio"])
    await page.get_by_role("radio", name="All clients of this key").check()
    await expect(titles).to_have_text(["From a client", "From the studio"])


async def test_shortcuts_lead_to_the_search_the_help_and_a_new_conversation(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await page.locator("#conversation").focus()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search conversations")).to_be_focused()
    await page.locator("#conversation").focus()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert await studio.axe() == []
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+Shift+O")
    await expect(page.locator(".turn")).to_have_count(0)
    await expect(page.get_by_label("Message", exact=True)).to_be_focused()


async def test_closed_dialog_leaves_the_focus_to_a_key_before_its_event(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await page.locator("#conversation").focus()
    await page.keyboard.press("?")
    await page.evaluate(
        """() => {
            document.querySelector("dialog[open]").close();
            const key = { key: "O", ctrlKey: true, shiftKey: true, bubbles: true };
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", key));
        }"""
    )
    await expect(page.locator("dialog:not([id])")).to_have_count(0)
    await expect(page.get_by_label("Message", exact=True)).to_be_focused()


async def test_palette_finds_commands_and_conversations(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await page.keyboard.press("Control+K")
    field = page.get_by_role("combobox", name="Command or conversation")
    await expect(field).to_be_focused()
    await field.fill("usage")
    await expect(page.get_by_role("listbox", name="Choices").get_by_role("option")).to_have_text(["Go to Usage"])
    assert await studio.axe() == []
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Usage", exact=True)).to_be_visible()
    await page.keyboard.press("Control+K")
    await field.fill("ada")
    await expect(page.get_by_role("listbox", name="Choices").get_by_role("option")).to_have_text(["My name is Ada."])
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await studio.ended(1)


async def test_arrow_up_edits_the_last_message_and_escape_cancels(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await page.get_by_label("Message", exact=True).press("ArrowUp")
    await expect(page.get_by_label("Edited message")).to_be_focused()
    await expect(page.get_by_label("Edited message")).to_have_value("My name is Ada.")
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Edited message")).to_have_count(0)


async def test_start_page_in_a_small_window_offers_no_jump_to_the_latest_turn(studio: Studio) -> None:
    await studio.page.set_viewport_size({"width": 390, "height": 500})
    await expect(studio.page.get_by_role("heading", name="Point your tools here")).to_be_attached()
    assert await studio.page.locator("#conversation").evaluate("(node) => node.scrollHeight > 2 * node.clientHeight")
    await expect(studio.page.get_by_role("button", name="Jump to latest")).to_be_hidden()


async def test_list_of_conversations_is_one_stop_of_the_tab_key(studio: Studio) -> None:
    page = studio.page
    for text in ("One", "Two", "Three"):
        await studio.say(text)
        await page.get_by_role("button", name="New conversation").click()
    links = page.locator("#conversation-list a")
    await expect(links).to_have_count(3)
    assert await links.evaluate_all("(links) => links.filter(({ tabIndex }) => tabIndex === 0).length") == 1
    await links.first.focus()
    await page.keyboard.press("ArrowDown")
    await expect(links.nth(1)).to_be_focused()
    await page.keyboard.press("End")
    await expect(links.last).to_be_focused()


async def test_touch_device_begins_a_line_with_enter_and_shows_no_keyboard(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url, width=390, has_touch=True, is_mobile=True) as studio:
        field = studio.page.get_by_label("Message", exact=True)
        await expect(studio.page.get_by_role("button", name="Stream some Markdown")).to_be_visible()
        await expect(field).not_to_be_focused()
        await field.fill("One")
        await field.press("Enter")
        await expect(field).to_have_value("One\n")
        await expect(studio.page.locator(".turn")).to_have_count(0)
