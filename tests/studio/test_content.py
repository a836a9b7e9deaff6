"""Answers with more than text: formulas, diagrams, previews, pictures, right-to-left and long texts."""

from __future__ import annotations

import asyncio
import base64
import re

import httpx
import pytest
from playwright.async_api import expect

from app.backends.demo.showcase import PICTURE
from tests.studio.browser import Studio
from tests.support.build import delta
from tests.support.scripted import Scripted

pytestmark = pytest.mark.asyncio(loop_scope="package")

# Tries to reach the page around the frame, storage and the network, and to navigate; then writes its successes.
PROBE = """<!doctype html><p id="out">started</p><script>
const found = [];
const attempt = (name, work) => { try { work(); found.push(name); } catch {} };
attempt("parent", () => parent.document.body);
attempt("storage", () => localStorage.length);
attempt("cookie", () => document.cookie);
attempt("popup", () => { if (!open("about:blank")) throw 0; });
fetch("/v1/models").then(() => found.push("fetch"), () => {}).finally(() => {
    document.getElementById("out").textContent = `reached: ${found.join(" ") || "nothing"}`;
});
</script>"""


async def test_formulas_are_drawn_as_mathml(studio: Studio, backend: Scripted) -> None:
    text = (
        r"Euler: $e^{i\pi} = -1$, or \(a^2\). It costs $5, not $6." + "\n\n$$\n\\frac{1}{2}\n$$\n\nBroken: $\\frac{$."
    )
    backend.scripts = [[delta(content=text)]]
    await studio.say("Math, please")
    await expect(studio.last.locator("math")).to_have_count(3)
    await expect(studio.last.locator("math[display=block] mfrac")).to_have_count(1)
    await expect(studio.last.locator(".prose")).to_contain_text("It costs $5, not $6.")
    await expect(studio.last.locator(".prose")).to_contain_text(r"\frac{")
    assert await studio.axe("main") == []


async def test_preview_of_html_reaches_nothing(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content=f"```html\n{PROBE}\n```")]]
    page = studio.page
    await studio.say("A page, please")
    await expect(studio.last.locator("iframe")).to_have_count(0)
    await studio.last.get_by_role("button", name="Preview").click()
    frame = studio.last.frame_locator("iframe")
    await expect(frame.locator("#out")).to_have_text("reached: nothing")
    assert any("connect-src" in line for line in studio.trouble)  # the browser reports the blocked request
    studio.trouble.clear()
    await studio.last.get_by_role("button", name="Preview").click()
    await expect(studio.last.locator("iframe")).to_have_count(0)
    assert await page.evaluate("window.harm") is None


async def test_preview_has_a_policy_without_network_and_only_the_studio_frames_it(studio: Studio) -> None:
    async with httpx.AsyncClient(base_url=studio.url, timeout=60) as http:
        preview = await http.get("/studio/preview")
        page = await http.get("/studio")
    policy = preview.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "sandbox allow-scripts" in policy and "connect-src" not in policy
    assert "frame-ancestors 'self'" in policy and preview.headers["x-frame-options"] == "SAMEORIGIN"
    assert "frame-src 'self'" in page.headers["content-security-policy"]


async def test_diagram_is_drawn_and_an_svg_previewed(studio: Studio, backend: Scripted) -> None:
    text = "```mermaid\ngraph LR; A-->B\n```\n\n```svg\n<svg viewBox='0 0 9 9'><circle r='4' cx='4' cy='4'/></svg>\n```"
    backend.scripts = [[delta(content=text)]]
    await studio.say("A diagram, please")
    shown = studio.last.locator(".code").nth(0).frame_locator("iframe")
    await expect(shown.locator("svg .node")).to_have_count(2)
    await studio.last.locator(".code").nth(1).get_by_role("button", name="Preview").click()
    await expect(studio.last.locator(".code").nth(1).frame_locator("iframe").locator("circle")).to_have_count(1)


async def test_picture_keeps_its_shape_and_is_enlarged(studio: Studio) -> None:
    page = studio.page
    await studio.suggest("Draw an image")
    image = studio.last.get_by_role("img", name="Hills under a sun")
    width, height, natural_width, natural_height = await image.evaluate(
        "(image) => [image.clientWidth, image.clientHeight, image.naturalWidth, image.naturalHeight]"
    )
    assert width <= natural_width and abs(width / height - natural_width / natural_height) < 0.02
    await studio.last.get_by_role("button", name="Enlarge: Hills under a sun").click()
    await expect(page.get_by_role("dialog", name="Hills under a sun")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    async with page.expect_download() as download:
        await studio.last.get_by_role("button", name="Download: Hills under a sun").click()
    content = (await (await download.value).path()).read_bytes()
    assert content == base64.b64decode(PICTURE.partition("base64,")[2].partition(")")[0])


async def test_attached_picture_keeps_its_shape(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="I see.")]]
    content = base64.b64decode(PICTURE.partition("base64,")[2].partition(")")[0])
    file = {"name": "hills.png", "mimeType": "image/png", "buffer": content}
    await studio.page.locator("#file").set_input_files([file])  # type: ignore[list-item]
    await expect(studio.page.get_by_label("Attached files").locator("li")).to_have_count(1)
    await studio.say("What is this?")
    sizes = await studio.last.get_by_role("img", name="Attached image").evaluate(
        "(image) => [image.clientWidth / image.clientHeight, image.naturalWidth / image.naturalHeight]"
    )
    assert abs(sizes[0] - sizes[1]) < 0.02


async def test_text_from_right_to_left_is_laid_out_so(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="مرحبا بالعالم.\n\n- واحد\n- اثنان\n\nAnd English.")]]
    await studio.say("قل مرحبا")
    directions = await studio.last.locator(".prose > *").evaluate_all(
        "(blocks) => blocks.map((block) => getComputedStyle(block).direction)"
    )
    assert directions == ["rtl", "rtl", "ltr"]
    assert await studio.last.locator(".given .plain").evaluate("(e) => getComputedStyle(e).direction") == "rtl"


async def test_long_answer_is_shown_when_it_is_opened_again(studio: Studio, backend: Scripted) -> None:
    text = "\n\n".join(f"Paragraph {number}: " + "word " * 40 for number in range(1000))
    assert len(text) > 200_000
    backend.scripts = [[delta(content=text)]]
    await studio.say("A huge text, please")
    await studio.page.reload()
    await studio.ended(1)
    await expect(studio.last.locator(".prose > p")).to_have_count(1000)
    await expect(studio.last.locator(".prose > p").last).to_contain_text("Paragraph 999")


async def test_long_question_is_folded(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="Long.")]]
    # Typing all these lines takes the browser seconds.
    await studio.page.get_by_label("Message", exact=True).evaluate(
        "(field) => (field.value = 'line of text\\n'.repeat(2000))"
    )
    await studio.page.get_by_role("button", name="Send", exact=True).click()
    await studio.ended(1)
    question = studio.last.locator(".question")
    assert len(await question.inner_text()) < 1000
    await question.get_by_role("button", name="Show all 25,999 characters").click()
    assert len(await question.inner_text()) >= 25_000


async def test_table_is_aligned_and_headings_are_larger_than_text(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="# One\n\n### Three\n\nText\n\n| a | b |\n|---|---:|\n| x | 1 |")]]
    await studio.say("A table, please")
    assert await studio.last.locator("td").nth(1).evaluate("(cell) => getComputedStyle(cell).textAlign") == "right"
    sizes = await studio.last.locator(".prose > :is(h2, h3, p)").evaluate_all(
        "(blocks) => blocks.map((block) => parseFloat(getComputedStyle(block).fontSize))"
    )
    assert sizes[0] > sizes[1] > sizes[2]
    assert await studio.axe("main", runOnly=["heading-order"]) == []


async def test_code_is_wrapped_and_downloaded(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="```python\nx = 1\n```")]]
    await studio.say("Code, please")
    wrap = studio.last.get_by_role("button", name="Wrap lines")
    await wrap.click()
    await expect(wrap).to_have_attribute("aria-pressed", "true")
    async with studio.page.expect_download() as download:
        await studio.last.get_by_role("button", name="Download code").click()
    saved = await download.value
    assert saved.suggested_filename == "code.py" and (await saved.path()).read_text() == "x = 1\n"


async def test_reasoning_tells_its_time_and_its_last_line(studio: Studio, backend: Scripted) -> None:
    goes_on, ends = asyncio.Event(), asyncio.Event()
    backend.scripts = [
        [delta(reasoning_content="First thought.\nSecond thought."), goes_on, delta(content="It begins"), ends]
    ]
    page = studio.page
    await page.get_by_label("Message", exact=True).fill("Think")
    await page.keyboard.press("Enter")
    thoughts = studio.last.locator("details.reasoning > summary")
    await expect(thoughts).to_contain_text(re.compile(r"Thinking, \d+ s"))
    await expect(thoughts.locator(".thought")).to_have_text("Second thought.")
    goes_on.set()
    await expect(thoughts).to_contain_text("Thought for ")
    await expect(thoughts.locator(".thought")).to_have_text("")
    await expect(studio.last.locator(".turn-foot")).to_contain_text("Answering…")
    ends.set()
    await studio.ended(1)


async def test_image_call_tells_its_action(studio: Studio) -> None:
    shown = await studio.page.evaluate(
        """async () => {
            const { itemViews } = await import("/studio/js/parts/items.js?modules");
            const [node] = itemViews([{ type: "image_generation_call", action: "generate", status: "completed" }]);
            return node.textContent;
        }"""
    )
    assert "A new image" in shown


async def test_thread_stays_at_its_end_when_a_panel_opens(studio: Studio) -> None:
    page = studio.page
    for _ in range(3):
        await studio.say("Show me some Markdown.")
    at_end = """() => {
        const { scrollHeight, scrollTop, clientHeight } = document.getElementById("conversation");
        return scrollHeight - scrollTop - clientHeight <= 2;
    }"""
    await studio.inspect("Events")
    await page.wait_for_function(at_end)
    await page.locator("#conversation").hover()
    await page.mouse.wheel(0, -2000)
    jump = page.get_by_role("button", name="Jump to latest")
    await jump.click()
    await page.wait_for_function(at_end)
    await expect(jump).to_be_hidden()
