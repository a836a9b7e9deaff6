"""The studio in a real Chromium: `async with Studio.open(browser, url) as studio`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Browser, ConsoleMessage, Page, ViewportSize, async_playwright, expect

# Names in distributions. The shell is Chromium without windows, which costs the tests a fifth less CPU.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",  # nothing but this machine is asked
)
PATIENCE = 30_000  # ms; a machine may be busy
DESKTOP: ViewportSize = {"width": 1400, "height": 900}
AXE = AXE_FILE_PATH.read_text(encoding="utf-8")
# Chromium's warning for pages with a late layout, as on a busy machine; test_shell.py checks the file's use.
LATE = "was preloaded using link preload but not used within a few seconds"
# Policy violations and external requests of the page become console errors.
WATCHED = """
addEventListener("securitypolicyviolation", (event) =>
    console.error(`violates the policy: ${event.violatedDirective} ${event.blockedURI}`));
new PerformanceObserver((list) => {
    for (const { name } of list.getEntries()) {
        if (![`${location.origin}/`, "data:", "blob:"].some((start) => name.startsWith(start)))
            console.error(`asked another host: ${name}`);
    }
}).observe({ type: "resource", buffered: true });
"""
# Start as after a reload, with a new key and nothing stored. Ends when the server's features are known.
ANEW = """async (key) => {
    const byId = (id) => document.getElementById(id);
    while (!byId("compare-prompt")) await new Promise((done) => setTimeout(done, 10));  // the other views are loaded
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    location.hash = "#/talk";
    await new Promise((done) => setTimeout(done));
    byId("new").click();
    byId("prompt").value = "";
    byId("prompt").dispatchEvent(new Event("input"));
    while (byId("attached").children.length) byId("attached").querySelector("button").click();
    if (byId("talk").dataset.panel) byId(`${byId("talk").dataset.panel}-close`).click();
    if (!byId("options-reset").hidden) byId("options-reset").click();
    byId("inspector-tabs").querySelector("[role=tab]").click();
    byId("event-filter").value = "";
    byId("event-fold").checked = true;
    byId("search-text").value = "";
    byId("compare-prompt").value = "";
    for (const id of ["model", "suggestions"]) byId(id).replaceChildren();
    for (const kept of ["model", "drafts"]) sessionStorage.removeItem(`antiphon.${kept}`);
    localStorage.clear();
    byId("key").value = key;
    byId("key-dialog").showModal();
    byId("key-dialog").close("set");
    while (!byId("model").children.length || !byId("suggestions").children.length)
        await new Promise((done) => setTimeout(done, 10));
    document.activeElement.blur();
}"""

expect.set_options(timeout=PATIENCE)


def chromium_path() -> str | None:
    """Return where Chromium is, if it is installed."""
    return os.environ.get("ANTIPHON_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.asynccontextmanager
async def chromium(path: str) -> AsyncIterator[Browser]:
    """Start a headless Chromium with a new profile."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


class Studio:
    """A tab with the page and its errors. `open` fails at its end if there are any."""

    def __init__(self, page: Page, url: str, answers_with: tuple[int, ...]) -> None:
        self.page = page
        self.url = url
        self.trouble: list[str] = []
        self.refusals = answers_with
        self.key = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        browser: Browser,
        url: str,
        *,
        path: str = "/studio",
        key: str = "",
        width: int = DESKTOP["width"],
        height: int = DESKTOP["height"],
        theme: str = "light",
        refusals: tuple[int, ...] = (),
        **options: Any,
    ) -> AsyncIterator[Studio]:
        """Open the page, optionally with a key in its tab; `refusals` are expected error statuses."""
        context = await browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce", **options
        )
        context.set_default_timeout(PATIENCE)
        page = await context.new_page()
        studio = cls(page, url, refusals)
        page.on("console", studio._hear)
        page.on("pageerror", lambda error: studio.trouble.append(f"uncaught: {error}"))
        await page.add_init_script(WATCHED)
        if key:
            await page.add_init_script(
                f"if (location.hostname && self === top) sessionStorage['antiphon.key'] ??= {key!r}"
            )
        try:
            await page.goto(url + path)
            yield studio
            assert studio.trouble == [], studio.trouble
        finally:
            await context.close()

    def _hear(self, message: ConsoleMessage) -> None:
        expected = (LATE, *(f"the server responded with a status of {status} " for status in self.refusals))
        if message.type in ("error", "warning") and not any(part in message.text for part in expected):
            self.trouble.append(f"console: {message.text} {message.location.get('url', '')}")

    async def begin(self, key: str) -> None:
        """Reset the page: another key, a new conversation, and default options."""
        self.key = key
        self.refusals = ()
        if self.page.viewport_size != DESKTOP:
            await self.page.set_viewport_size(DESKTOP)
        await self.page.evaluate(ANEW, key)

    async def say(self, text: str) -> None:
        """Send a message, and wait until its answer is over."""
        turns = await self.page.locator(".turn").count()
        await self.page.get_by_label("Message", exact=True).fill(text)
        await self.page.get_by_role("button", name="Send", exact=True).click()
        await self.ended(turns + 1)

    async def suggest(self, label: str) -> None:
        """Use a suggestion, and wait for its answer's end."""
        await self.page.get_by_role("button", name=label, exact=True).click()
        await self.ended(1)

    async def ended(self, turns: int) -> None:
        """Wait until there are so many turns, and the last of them is over."""
        await expect(self.page.locator(".turn")).to_have_count(turns)
        await expect(self.last.get_by_role("button", name="Retry")).to_be_visible()

    async def inspect(self, tab: str) -> None:
        """Show the last turn in the inspector."""
        await self.last.get_by_role("button", name="Inspect").click()
        await self.page.get_by_role("tab", name=tab).click()

    async def go(self, view: str) -> None:
        """Show another view."""
        await self.open_menu()
        await self.page.get_by_role("navigation").get_by_role("link", name=view).click()

    async def open_options(self) -> None:
        """Open the options beside the thread."""
        await self.page.get_by_role("button", name="Options", exact=True).click()

    async def open_menu(self) -> None:
        """Open the side where the window is too narrow to show it always."""
        if await self.page.get_by_role("button", name="Menu", exact=True).is_visible():
            await self.page.get_by_role("button", name="Menu", exact=True).click()

    @property
    def headers(self) -> dict[str, str]:
        """Headers for another client with the same key."""
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def last(self) -> Any:
        """The last turn."""
        return self.page.locator(".turn").last

    async def axe(self, within: str = "html", **options: Any) -> list[str]:
        """Return the findings of axe-core in the element with a selector, a line each."""
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(AXE)  # by the debugger's protocol, which the page's policy is not for
        found = await self.page.evaluate(
            "([within, options]) => axe.run(within, options)", [within, {"resultTypes": ["violations"], **options}]
        )
        return [
            f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]

    async def axe_in_both_themes(self, within: str = "html") -> list[str]:
        """Return all findings in the light theme, and color findings in the dark theme."""
        light = await self.axe(within)
        await self.page.emulate_media(color_scheme="dark")
        dark = await self.axe(within, runOnly=["color-contrast", "link-in-text-block"])
        await self.page.emulate_media(color_scheme="light")
        return [*light, *(f"dark: {finding}" for finding in dark)]

    async def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        wider: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wider
