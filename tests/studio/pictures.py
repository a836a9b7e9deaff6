"""
Pictures of the studio, of the real page in front of the real server.

    python -m tests.studio.pictures                    # docs/studio.png and docs/studio-dark.png, which README shows
    python -m tests.studio.pictures --all DIRECTORY    # every view, at 390 and 1280 px, light and dark
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from playwright.async_api import Browser

from tests.studio.browser import Studio, chromium, chromium_path
from tests.support.serving import antiphon

DOCS = Path(__file__).parents[2] / "docs"


async def for_readme(browser: Browser, url: str) -> None:
    """Take the pictures that README shows."""
    for theme, name in (("light", "studio.png"), ("dark", "studio-dark.png")):
        async with Studio.open(browser, url, theme=theme, width=1280, height=880) as studio:
            await studio.suggest("Stream some Markdown")
            await studio.inspect("Events")
            await studio.page.mouse.move(0, 0)
            await studio.page.screenshot(path=DOCS / name)


async def of_all(browser: Browser, url: str, place: Path) -> None:
    """Take a picture of each view, to be looked at."""
    for theme in ("light", "dark"):
        for width in (390, 1280):
            async with Studio.open(browser, url, theme=theme, width=width, refusals=(404, 503)) as studio:
                await _tour(studio, place / f"{theme}-{width}")


async def _tour(studio: Studio, start: Path) -> None:
    page = studio.page

    async def take(name: str) -> None:
        await page.mouse.move(0, 0)
        await page.screenshot(path=f"{start}-{name}.png")

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
    for view, shown in (("Usage", ".figures canvas"), ("Now", "#now-body .tile"), ("Files", "#files-body > *")):
        await studio.go(view)
        await page.locator(shown).first.wait_for()
        await take(view.lower())
    await studio.go("About")
    await page.get_by_role("heading", name="Clients").wait_for()
    await take("about")


async def main(place: Path | None) -> None:
    path = chromium_path()
    if path is None:
        raise SystemExit("Chromium is not installed: on Debian, apt install chromium")
    async with chromium(path) as browser, antiphon() as url:
        await (of_all(browser, url, place) if place else for_readme(browser, url))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", type=Path)
    place = parser.parse_args().all
    if place:
        place.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(place))
