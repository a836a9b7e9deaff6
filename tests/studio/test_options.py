"""Request options: parameters, presets, prompt templates, hosted tools, and their warnings."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from tests.responses.test_tool_loop import made
from tests.studio.browser import Studio
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_options_that_are_set_are_seen_above_the_message_and_kept_over_a_reload(studio: Studio) -> None:
    page = studio.page
    chips = page.get_by_label("Switched on").get_by_role("listitem")
    await studio.open_options()
    await page.get_by_label("Instructions", exact=True).fill("Be brief.")
    await page.get_by_label("Reasoning effort", exact=True).select_option("high")
    await page.get_by_label("demo (MCP)", exact=True).check()
    await page.get_by_label("Store the response").uncheck()
    await page.get_by_role("button", name="Close the options").click()
    await expect(chips).to_have_text(["demo (MCP)", "instructions", "reasoning: high", "not stored"])
    assert await studio.axe() == []

    await page.reload()
    await expect(chips).to_have_text(["demo (MCP)", "instructions", "reasoning: high", "not stored"])
    await chips.nth(2).get_by_role("button").first.click()
    await expect(page.get_by_label("Reasoning effort", exact=True)).to_be_focused()

    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator("#welcome-kept")).to_contain_text("demo (MCP), instructions, reasoning: high, not stored")
    await page.get_by_role("button", name="Reset", exact=True).click()
    await expect(chips).to_have_count(0)
    await expect(page.get_by_label("Instructions", exact=True)).to_have_value("")
    await expect(page.get_by_label("Store the response")).to_be_checked()


async def test_options_are_saved_as_a_preset_chosen_and_deleted(studio: Studio) -> None:
    page = studio.page
    preset = page.get_by_label("Preset", exact=True)
    await studio.open_options()
    await page.get_by_label("Instructions", exact=True).fill("Answer in verse.")
    await page.get_by_role("button", name="Save\u2026").click()
    await page.get_by_label("Name of the preset").fill("Poet")
    assert await studio.axe() == []
    await page.keyboard.press("Enter")
    await expect(preset).to_have_value("Poet")
    await page.get_by_role("button", name="Reset", exact=True).click()
    await expect(page.get_by_label("Instructions", exact=True)).to_have_value("")

    await page.reload()
    await studio.open_options()
    await preset.select_option("Poet")
    await expect(page.get_by_label("Instructions", exact=True)).to_have_value("Answer in verse.")

    await page.get_by_role("button", name="Delete the preset").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(preset.get_by_role("option", include_hidden=True)).to_have_count(1)


async def test_prompt_template_is_filled_in_and_sent(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "greeting").mkdir()
    (tmp_path / "greeting" / "1.md").write_text("Greet {{name}}.")
    (tmp_path / "greeting" / "2.toml").write_text(
        'instructions = "Greet {{name}} in {{language}}."\nvariables.language = "Latin"'
    )
    backend = Scripted([delta(content="Salve!")])
    async with antiphon(backend, prompts=tmp_path) as url, Studio.open(browser, url) as studio:
        page = studio.page
        await studio.open_options()
        await page.get_by_label("Prompt template").select_option("greeting")
        await expect(page.get_by_label("language")).to_have_attribute("placeholder", "Latin")
        await page.get_by_label("name", exact=True).fill("Ada")
        await studio.say("Hello")
        await page.get_by_label("Version").select_option("1")
        await expect(page.get_by_label("language")).to_have_count(0)
        await page.get_by_label("name", exact=True).fill("Bob")
        await studio.say("And now?")
        await expect(page.get_by_label("Switched on")).to_contain_text("prompt greeting")

    assert [chat_body["messages"][0]["content"] for chat_body in backend.received] == [
        "Greet Ada in Latin.",
        "Greet Bob.",
    ]


async def test_tools_of_a_server_are_switched_on_one_by_one(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="Hello.")]]
    page = studio.page
    await studio.open_options()
    await page.get_by_label("demo (MCP)", exact=True).check()
    await page.get_by_text("Tools", exact=True).click()
    await expect(page.locator(".tool-list .check", has_text="send")).to_contain_text("needs approval")
    boxes = page.locator(".tool-list input")
    await expect(boxes.first).to_be_checked()
    for name in await boxes.evaluate_all("(boxes) => boxes.map(({ value }) => value)"):
        if name not in ("echo", "add"):
            await page.locator(f".tool-list input[value='{name}']").uncheck()
    await expect(page.get_by_label("Switched on")).to_contain_text("demo (MCP): 2 tools")
    assert await studio.axe() == []
    await studio.say("Hello")

    names = {tool["function"]["name"] for tool in backend.received[0]["tools"]}
    assert {"demo__echo", "demo__add"} <= names and "demo__send" not in names


async def test_files_are_uploaded_into_a_new_vector_store_and_searched(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [made(("file_search", {"queries": ["choirs"]})), [delta(content="By two choirs.")]]
    page = studio.page
    await studio.open_options()
    await page.get_by_label("File search").check()
    await page.get_by_role("button", name="New store").click()
    await page.get_by_label("Name of the store").fill("Music")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Vector store", exact=True)).to_contain_text("Music (0 files)")
    text = b"An antiphon is sung by two choirs in turn."
    file = {"name": "choir.txt", "mimeType": "text/plain", "buffer": text}
    await page.get_by_label("Files for the vector store").set_input_files([file])  # type: ignore[list-item]
    await expect(page.get_by_label("Uploads").first).to_contain_text("ready")
    await expect(page.get_by_label("Vector store", exact=True)).to_contain_text("Music (1 file)")
    await expect(page.get_by_label("Switched on")).to_contain_text("File search: Music")
    assert await studio.axe() == []

    await studio.say("How is an antiphon sung?")
    found = studio.last.get_by_role("group", name="File search")
    await found.get_by_text("choir.txt").click()
    await expect(found).to_contain_text("An antiphon is sung by two choirs in turn.")


async def test_under_an_answer_are_its_time_tokens_cost_and_backend(browser: Browser) -> None:
    prices = {"*": {"input": 100_000, "output": 1_000_000}}
    async with antiphon(prices=prices) as url, Studio.open(browser, url) as studio:
        await studio.say("Say hello.")
        facts = studio.last.locator(".facts")
        await expect(facts).to_contain_text("default")
        shown = await facts.locator("span").all_inner_texts()
        usage = (await studio.page.request.get(f"{url}/v1/antiphon/responses")).json
        entry = (await usage())["data"][0]
        counts = f"{entry['usage']['input_tokens']} tokens in, {entry['usage']['output_tokens']} out"
        assert shown[0] == "demo" and counts in shown and any(text.startswith("cost ") for text in shown)
        assert any(text.endswith((" ms", " s")) for text in shown)

        await studio.page.reload()
        await studio.ended(1)
        await expect(facts).to_contain_text("default")
        await expect(facts).to_contain_text("cost ")
        await expect(facts).to_contain_text(counts)
