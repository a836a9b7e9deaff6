"""
Print Talk's speed: opening a conversation with 200 turns, a fast stream, a burst.

    python -m tests.studio.speed_talk
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from playwright.async_api import Browser, Page

from tests.studio.browser import Studio, chromium, chromium_path
from tests.support.build import delta
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

TURNS = 200
DELTAS_PER_SECOND = 1000
SECONDS = 8
BURST = 7750  # deltas at once
ANSWER = (
    "An **answer** with some words, and `code`.\n\n" + "- item of a list\n" * 6 + "\n| a | b |\n|---|--:|\n| x | 1 |\n"
)
# Collects durations of blocking tasks and frames, in ms.
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map(({ duration }) => duration)))
    .observe({ type: "longtask", buffered: true });
"""
FRAMES = """() => {
    window.frames_ = [];
    let last = performance.now();
    const tick = (now) => { frames_.push(now - last); last = now; requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
}"""


async def long_conversation(url: str) -> str:
    """Make a conversation with many turns; returns its last response id."""
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60) as http:
        last = None
        for number in range(TURNS):
            body = {"model": "demo", "input": f"Question {number}", "previous_response_id": last}
            last = (await http.post("/responses", json=body)).json()["id"]
    return str(last)


async def opened(browser: Browser, url: str, response: str) -> None:
    """Print the longest task while a long conversation opens, and the time until its end is shown."""
    async with Studio.open(browser, url) as studio:
        page = studio.page
        await page.evaluate(WATCH)
        await page.wait_for_timeout(1000)
        await page.evaluate("() => { tasks.length = 0; }")
        began = await page.evaluate("performance.now()")
        await page.evaluate(f"location.hash = '#/talk/{response}'")
        await page.locator(".turn").last.locator(".prose table").wait_for()
        shown = await page.evaluate("performance.now()") - began
        await page.wait_for_function(f"() => document.querySelectorAll('.turn').length === {TURNS}")
        built = await page.evaluate("performance.now()") - began
        await page.wait_for_timeout(1500)
        longest = await page.evaluate("Math.max(0, ...tasks)")
        print(f"{TURNS} turns: longest task {longest:.0f} ms; end shown after {shown:.0f} ms, all after {built:.0f} ms")


async def streamed(page: Page, name: str) -> None:
    """Send a message, and print how smooth the page was until the answer has ended."""
    await page.evaluate("() => { tasks.length = 0; frames_.length = 0; }")
    await page.get_by_label("Message", exact=True).fill("Go")
    await page.keyboard.press("Enter")
    await page.wait_for_function(
        "() => !document.getElementById('send').hidden && document.querySelector('.turn-line')"
    )
    await page.wait_for_timeout(300)
    found: dict[str, Any] = await page.evaluate(
        "() => ({ frames: frames_.slice(), longest: Math.max(0, ...tasks), length: document.body.innerText.length })"
    )
    quick = sum(frame < 50 for frame in found["frames"]) / max(1, len(found["frames"]))
    print(
        f"{name}: {quick:.0%} of {len(found['frames'])} frames under 50 ms, "
        f"longest frame {max(found['frames']):.0f} ms, longest task {found['longest']:.0f} ms "
        f"({found['length']:,} characters)"
    )


async def main() -> None:
    """Measure, and print a line for each figure."""
    path = chromium_path()
    if path is None:
        raise SystemExit("Chromium is not installed")
    words = "twelve chars"
    batches: list[Step] = []
    for number in range(DELTAS_PER_SECOND * SECONDS // 20):
        texts = [words + ("\n\n" if (number * 20 + index) % 40 == 39 else " ") for index in range(20)]
        batches += [[delta(content=text) for text in texts], 20 / DELTAS_PER_SECOND]
    burst: list[Step] = [[delta(content=words + ("\n\n" if n % 40 == 39 else " ")) for n in range(BURST)]]
    async with chromium(path) as browser:
        backend = Scripted([delta(content=ANSWER)])
        async with antiphon(backend) as url:
            await opened(browser, url, await long_conversation(url))
        for name, script, slower in (
            ("1,000 deltas/s", batches, 1),
            (f"burst of {BURST:,} deltas", burst, 1),
            (f"burst of {BURST:,} deltas, CPU slowed four times", burst, 4),
        ):
            async with antiphon(Scripted(script)) as url, Studio.open(browser, url) as studio:
                await studio.page.get_by_label("Message", exact=True).wait_for()
                await studio.page.wait_for_timeout(1000)
                session = await studio.page.context.new_cdp_session(studio.page)
                await session.send("Emulation.setCPUThrottlingRate", {"rate": slower})
                await studio.page.evaluate(WATCH)
                await studio.page.evaluate(FRAMES)
                await streamed(studio.page, name)


if __name__ == "__main__":
    asyncio.run(main())
