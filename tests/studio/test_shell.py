"""The studio around its views: sidebar, theme, and styled controls that work like native ones."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from tests.studio.browser import Studio
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")

# WCAG 2 luminance of an element's background, whatever the browser's color notation.
LUMINANCE = """(element) => {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.fillStyle = getComputedStyle(element).backgroundColor;
    context.fillRect(0, 0, 1, 1);
    const [red, green, blue] = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
        const part = value / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}"""

# The typeface after layout: its used parts, and each fetched file.
TYPEFACE = """async () => {
    document.body.getBoundingClientRect();
    const parts = [...await document.fonts.ready].filter(({ family }) => family === 'Geist');
    const files = performance.getEntriesByType('resource').map((entry) => entry.name.split('/').at(-1));
    return {
        used: parts.map(({ status }) => status).filter((status) => status !== 'unloaded'),
        fetched: files.filter((name) => name.startsWith('geist-latin-')),
    };
}"""


async def test_user_message_stands_out_from_the_page(studio: Studio) -> None:
    await studio.say("Say hello.")
    for theme in ("light", "dark"):
        await studio.page.emulate_media(color_scheme=theme)
        bubble = await studio.last.locator(".message.given").evaluate(LUMINANCE)
        page = await studio.page.locator("body").evaluate(LUMINANCE)
        lighter, darker = max(bubble, page), min(bubble, page)
        assert (page < 0.5) == (theme == "dark") and (lighter + 0.05) / (darker + 0.05) >= 1.2


async def test_theme_is_chosen_by_keyboard_and_kept(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url) as studio:
        page = studio.page
        await page.get_by_role("radio", name="System theme").focus()
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("ArrowRight")
        await expect(page.get_by_role("radio", name="Dark")).to_be_checked()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.reload()
        await expect(page.get_by_role("radio", name="Dark")).to_be_checked()
        assert await page.locator("body").evaluate(LUMINANCE) < 0.05


async def test_typeface_and_icons_are_loaded_from_the_server(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url) as studio:
        typeface = await studio.page.evaluate(TYPEFACE)
        assert typeface == {"used": ["loaded"], "fetched": ["geist-latin-wght-normal.woff2"]}  # once: the preload
        await expect(studio.page.locator("#nav .icon").first).to_have_css("mask-image", re.compile("^url.*svg"))
        named, used = await studio.page.evaluate(ICONS)
        assert len(named) > 50 and set(used) <= set(named)
        assert [name for name, width in named.items() if width != 24] == []


# Icons in the style sheet with their drawn widths, and icons shown by elements on the page.
ICONS = """async () => {
    const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
    const names = rules.map((rule) => /^\\[data-icon="(.+)"\\]$/.exec(rule.selectorText)?.[1]).filter(Boolean);
    const named = await Promise.all(names.map(async (name) => {
        const image = new Image();
        const value = getComputedStyle(document.documentElement).getPropertyValue(`--icon-${name}`);
        image.src = /url\\("(.+)"\\)/.exec(value)[1];
        await image.decode();
        return [name, image.width];
    }));
    return [Object.fromEntries(named), [...document.querySelectorAll("[data-icon]")].map((node) => node.dataset.icon)];
}"""


async def test_view_that_cannot_be_loaded_offers_to_reload_the_page(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, "about:blank", path="", refusals=(503,)) as studio:
        page = studio.page
        await page.route("**/js/views.js", lambda route: route.fulfill(status=503))
        await page.goto(f"{url}/studio#/about")
        await expect(page.get_by_role("heading", name="This view could not be loaded")).to_be_visible()
        await page.unroute("**/js/views.js")
        await page.get_by_role("button", name="Reload the page").click()
        await expect(page.get_by_role("heading", name="Clients")).to_be_visible()
        await expect(page.get_by_role("heading", name="This view could not be loaded")).to_be_hidden()


async def test_menu_of_a_narrow_page_is_a_drawer_for_the_keyboard(studio: Studio) -> None:
    await studio.page.set_viewport_size({"width": 390, "height": 900})
    page = studio.page
    menu = page.get_by_role("button", name="Menu", exact=True)
    link = page.get_by_role("navigation").get_by_role("link", name="About")
    await expect(link).to_be_hidden()
    await menu.press("Enter")
    await expect(page.get_by_role("button", name="Close the menu")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(menu).to_be_focused()
    await expect(link).to_be_hidden()
    await menu.press("Enter")
    await link.press("Enter")
    await expect(page.get_by_role("heading", name="Clients")).to_be_visible()
    await expect(link).to_be_hidden()


async def test_select_is_opened_and_chosen_from_by_keyboard(studio: Studio) -> None:
    page = studio.page
    await studio.open_options()
    effort = page.get_by_label("Reasoning effort")
    await effort.press("Enter")
    await expect(page.get_by_role("option", name="medium")).to_be_visible()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(effort).to_have_value("none")
    await expect(effort).to_be_focused()


async def test_skip_link_to_the_content_stays_in_the_view(studio: Studio) -> None:
    await studio.page.goto(f"{studio.url}/studio#/about")
    page = studio.page
    await expect(page.get_by_role("heading", name="Clients")).to_be_visible()
    await page.get_by_role("link", name="Skip to the content").press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()
    await expect(page.get_by_role("heading", name="Clients")).to_be_visible()


async def test_action_that_cannot_be_undone_is_confirmed_first(studio: Studio) -> None:
    await studio.say("Say hello.")
    await studio.go("Responses")
    page = studio.page
    await page.locator(".log .rows a").first.click()
    delete = page.get_by_role("button", name="Delete")
    await delete.click()
    dialog = page.get_by_role("dialog", name="Delete this response?")
    assert await studio.axe() == []
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(delete).to_be_focused()
    await expect(page.locator(".log .rows a")).to_have_count(1)
