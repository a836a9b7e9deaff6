"""
Print how fast the studio is: its first load, also over a slow line, and a refresh of a long log.

    python -m tests.studio.speed
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from playwright.async_api import Browser, Page

from tests.studio.browser import Studio, chromium, chromium_path
from tests.support.serving import antiphon

SLOW = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}  # 400 kbit/s
ROWS = 1000
# Milliseconds of a refresh with a new response.
REFRESHES = """async () => {
    const { Log } = await import("/studio/js/responses/log.js");
    const { LogTable } = await import("/studio/js/responses/table.js");
    const entry = (number) => ({ id: `resp_${number}`, created_at: number, status: "completed", model: "demo",
        preview: "A question", answer: "An answer", seconds: 1, first_token_seconds: 0.2, steps: [], tools: [] });
    const log = new Log();
    const table = new LogTable({ address: (id) => id, sort() {}, end() {}, release() {} });
    document.getElementById("responses-body").prepend(table.node);
    table.node.style.height = "800px";
    const rows = Array.from({ length: ROWS }, (_, index) => entry(ROWS - index));
    log.refresh({ data: rows, has_more: false, last_id: null });
    table.show(log.sorted(), 0);
    const times = [];
    for (let number = 1; number <= 20; number++) {
        await new Promise((done) => setTimeout(done, 30));
        rows.unshift(entry(ROWS + number));
        const page = { data: rows.slice(), has_more: false, last_id: null };
        const began = performance.now();
        log.refresh(page);
        table.show(log.sorted(), 0);
        document.body.offsetHeight;
        times.push(performance.now() - began);
    }
    return times.sort((one, other) => one - other);
}""".replace("ROWS", str(ROWS))


async def load(browser: Browser, url: str, *, slow: bool) -> dict[str, Any]:
    """Open the page with an empty cache; the time is until a message can be sent and the models are listed."""
    async with Studio.open(browser, "about:blank", path="") as studio:
        page: Page = studio.page
        session = await page.context.new_cdp_session(page)
        await session.send("Network.enable")
        urls: dict[str, str] = {}
        sizes: dict[str, int] = {}
        session.on(
            "Network.requestWillBeSent", lambda event: urls.update({event["requestId"]: event["request"]["url"]})
        )
        session.on(
            "Network.loadingFinished", lambda event: sizes.update({event["requestId"]: int(event["encodedDataLength"])})
        )
        if slow:
            await session.send("Network.emulateNetworkConditions", SLOW)
        began = time.perf_counter()
        await page.goto(f"{url}/studio", wait_until="commit")
        await page.locator("#model option").first.wait_for(state="attached")
        seconds = time.perf_counter() - began
        await page.wait_for_load_state("networkidle")
        found = {urls[id]: size for id, size in sizes.items() if urls[id].startswith("http")}
        return {"sizes": found, "seconds": seconds}


async def main() -> None:
    """Measure, and print a line for each figure."""
    path = chromium_path()
    if path is None:
        raise SystemExit("Chromium is not installed")
    async with chromium(path) as browser, antiphon() as url:
        for name, slow in (("warm-up", False), ("first load", False), ("400 ms, 400 kbit/s", True)):
            found = await load(browser, url, slow=slow)
            if name != "warm-up":
                sizes = found["sizes"]
                size = sum(sizes.values()) / 1000
                print(f"{name}: {len(sizes)} requests, {size:.0f} KB, usable after {found['seconds']:.2f} s")
                if not slow:
                    for address, each in sizes.items():
                        print(f"  {each / 1000:6.1f} KB  {address.removeprefix(url)}")
        async with Studio.open(browser, url, path="/studio#/responses") as studio:
            times = await studio.page.evaluate(REFRESHES)
            print(f"refresh of {ROWS} rows: median {times[len(times) // 2]:.1f} ms, longest {times[-1]:.1f} ms")


if __name__ == "__main__":
    asyncio.run(main())
