"""Two answers side by side: two models on the same input, and another model on a stored request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.studio.browser import Studio
from tests.support.build import delta, finish, reported
from tests.support.scripted import Scripted, Step
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")


TEXTS = {"small": "An antiphon is a short song.", "large": "An antiphon is a long and solemn song."}


class TwoModels(Scripted):
    """A backend with two models, which answer differently whoever is first; both wait for `pause`."""

    pause: asyncio.Event | None = None

    async def models(self, caller_key: str | None = None) -> list[dict[str, Any]]:
        return [{"id": name, "object": "model", "created": 0, "owned_by": "lab"} for name in TEXTS]

    def open(self, question: Any) -> Any:
        words: list[Step] = [delta(content=word) for word in re.findall(" ?[^ ]+", TEXTS[question.model])]
        if self.pause:
            words.insert(1, self.pause)
        self.scripts = [
            [*words, finish("stop"), {"choices": [], "usage": reported(7, len(TEXTS[question.model].split()))}]
        ]
        return super().open(question)


@asynccontextmanager
async def opened(browser: Browser, backend: Scripted, path: str = "/studio", **options: Any) -> AsyncIterator[Studio]:
    prices = {"*": {"input": 1_000_000, "output": 1_000_000}}
    async with antiphon(backend, prices=prices) as url, Studio.open(browser, url, path=path, **options) as studio:
        yield studio


def figures(studio: Studio, name: str) -> Any:
    return (
        studio.page.locator(".compare-figures > div")
        .filter(has=studio.page.get_by_text(name, exact=True))
        .locator("dd")
    )


async def test_two_models_answer_the_same_input_side_by_side(browser: Browser) -> None:
    async with opened(browser, TwoModels([])) as studio:
        page = studio.page
        await studio.go("Compare")
        await expect(page.get_by_label("First model")).to_have_value("small")
        await expect(page.get_by_label("Second model")).to_have_value("large")
        assert await studio.axe() == []
        await page.get_by_label("Message for all").fill("What is an antiphon?")
        await page.keyboard.press("Enter")
        for name, text in (("First", "small"), ("Second", "large")):
            answer = page.get_by_role("region", name=f"{name} answer").locator(".prose")
            await expect(answer).to_have_text(TEXTS[text])
        await expect(figures(studio, "Input")).to_have_text(["7", "7"])
        await expect(figures(studio, "Output")).to_have_text(["6", "8"])
        await expect(figures(studio, "Cost")).to_have_text(["13.00, the best", "15.00"])
        await page.get_by_role("switch", name="Differences").check()
        difference = page.get_by_role("region", name="Difference of the texts")
        await expect(difference.locator("del")).to_have_text("short")
        added = await difference.locator("ins").all_text_contents()
        assert " ".join(added).split() == ["long", "and", "solemn"]
        assert await studio.axe() == [] and await studio.overflow() <= 0
        await page.get_by_role("switch", name="Differences").uncheck()

        await page.get_by_role("region", name="Second answer").get_by_role("link", name="Continue in Talk").click()
        await studio.ended(1)
        await expect(studio.last).to_contain_text(TEXTS["large"])
        await expect(page.locator("#model")).to_have_value("large")


async def test_comparison_goes_on_and_is_there_after_a_reload(browser: Browser) -> None:
    backend = TwoModels([])
    async with opened(browser, backend) as studio:
        page = studio.page
        await studio.go("Compare")
        await page.get_by_role("button", name="Add model").click()
        await expect(page.get_by_label("Third model")).to_be_focused()
        for number, text in enumerate(("What is an antiphon?", "Are you sure?"), 1):
            await page.get_by_label("Message for all").fill(text)
            await page.get_by_role("button", name="Send to all").click()
            await expect(page.get_by_role("link", name="Continue in Talk")).to_have_count(3 * number)
        await expect(page).to_have_url(re.compile(r"#/compare\?ids=resp_\w+,resp_\w+,resp_\w+$"))
        assert len(backend.received[-1]["messages"]) == 3

        await page.reload()
        for name in ("First", "Second", "Third"):
            await expect(page.get_by_role("region", name=f"{name} answer")).to_have_count(2)
        await expect(page.locator(".compare-turns > .question")).to_have_text(["What is an antiphon?", "Are you sure?"])
        await expect(page.get_by_label("Second model")).to_have_value("large")


async def test_comparison_that_ends_in_another_view_stays_there_and_is_found_again(browser: Browser) -> None:
    backend = TwoModels([])
    async with opened(browser, backend) as studio:
        page = studio.page
        await studio.go("Compare")
        backend.pause = asyncio.Event()
        await page.get_by_label("Message for all").fill("What is an antiphon?")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("region", name="Second answer")).to_be_visible()
        await studio.go("Talk")
        backend.pause.set()
        link = page.get_by_role("navigation").get_by_role("link", name="Compare")
        await expect(link).to_have_attribute("href", re.compile(r"#/compare\?ids=resp_\w+,resp_\w+$"))
        await expect(page).to_have_url(re.compile("#/talk$|studio$"))
        await link.click()
        await expect(page.get_by_role("region", name="First answer")).to_contain_text(TEXTS["small"])


async def test_stopped_comparison_writes_nothing_into_the_next(browser: Browser) -> None:
    waits = asyncio.Event()
    backend = Scripted([delta(content="It begins"), waits])
    async with antiphon(backend) as url, Studio.open(browser, url, path="/studio#/compare") as studio:
        page = studio.page
        await page.get_by_label("Message for all").fill("Hi")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("region", name="First answer")).to_contain_text("It begins")
        await page.get_by_role("link", name="New comparison").click()
        await expect(page.get_by_role("region", name="First answer")).to_have_count(0)
        await page.get_by_label("Message for all").fill("Hi again")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("region", name="Second answer")).to_contain_text("It begins")
        await expect(page.get_by_text("Stopped.")).to_have_count(0)
        await page.get_by_role("button", name="Stop", exact=True).click()
        await expect(page.get_by_text("Stopped.")).to_have_count(2)
        waits.set()


async def test_stored_requests_are_run_with_another_model(browser: Browser) -> None:
    async with opened(browser, TwoModels([])) as studio:
        page = studio.page
        for number in range(3):
            body = {"model": "small", "input": f"Number {number}", "metadata": {"team": "web" if number else "app"}}
            await page.request.post(f"{studio.url}/v1/responses", data=body)
        await page.goto(f"{studio.url}/studio#/responses?metadata[team]=web")
        await page.get_by_role("link", name="Run these with another model").click()
        rows = page.get_by_role("region", name="Stored requests").locator("tbody tr")
        await expect(rows).to_have_count(2)
        await page.get_by_label("requests with").select_option("large")
        await page.get_by_role("button", name="Run", exact=True).click()
        await expect(rows.filter(has_text="other text")).to_have_count(2)
        await expect(page.locator(".tile", has_text="Same")).to_contain_text("0 of 2")
        await expect(page.locator(".tile", has_text="Cost")).to_contain_text("15% more expensive")
        assert await studio.axe() == [] and await studio.overflow() <= 0
        await rows.first.get_by_role("link", name="Compare").click()
        await expect(page.get_by_role("region", name="Second answer")).to_contain_text(TEXTS["large"])


async def test_stored_response_is_run_again_with_another_model(browser: Browser) -> None:
    backend = TwoModels([])
    async with opened(browser, backend) as studio:
        page = studio.page
        await studio.open_options()
        await page.get_by_label("Instructions").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.5")
        await studio.say("What is an antiphon?")
        await studio.last.get_by_role("link", name="Compare").click()
        await expect(page.get_by_role("region", name="First answer")).to_contain_text(TEXTS["small"])
        await expect(page.get_by_label("First model")).to_be_disabled()
        await page.get_by_label("Second model").select_option("large")
        await page.get_by_label("Store the answers").uncheck()
        await page.get_by_role("button", name="Run again").click()
        await expect(page.get_by_role("region", name="Second answer")).to_contain_text(TEXTS["large"])
        await expect(figures(studio, "Output")).to_have_text(["6", "8"])
        await expect(figures(studio, "Cost")).to_have_text(["13.00", "\u2013"])
        listed = (await (await page.request.get(f"{studio.url}/v1/antiphon/responses")).json())["data"]
        assert [entry["model"] for entry in listed] == ["small"]

        await page.reload()
        await expect(page.get_by_role("region", name="First answer")).to_contain_text(TEXTS["small"])

    first, second = backend.received
    assert second["model"] == "large"
    assert {**second, "model": "small"} == first


async def test_stored_response_of_another_client_is_run_again_from_its_page(browser: Browser) -> None:
    async with opened(browser, TwoModels([])) as studio:
        page = studio.page
        body = {"model": "small", "input": "What is an antiphon?"}
        id = (await (await page.request.post(f"{studio.url}/v1/responses", data=body)).json())["id"]
        await page.goto(f"{studio.url}/studio#/responses/{id}")
        await page.get_by_role("link", name="Run with another model").click()
        await expect(page.get_by_role("region", name="First answer")).to_contain_text(TEXTS["small"])
        await page.get_by_label("Second model").select_option("large")
        await page.get_by_role("button", name="Run again").click()
        await expect(page.get_by_role("region", name="Second answer")).to_contain_text(TEXTS["large"])


async def test_failed_answer_does_not_hide_the_other(studio: Studio) -> None:
    await studio.page.set_viewport_size({"width": 390, "height": 900})
    await studio.page.goto(f"{studio.url}/studio#/compare")
    page = studio.page
    await page.get_by_label("Message for all").fill("Fail in the middle.")
    await page.get_by_role("button", name="Send to all").click()
    for name in ("First", "Second"):
        answer = page.get_by_role("region", name=f"{name} answer")
        await expect(answer.get_by_role("group", name="Error")).to_contain_text("The demo was asked to fail")
        await expect(answer).to_contain_text("one, two,")
    assert await studio.overflow() <= 0
    assert await studio.axe() == []
