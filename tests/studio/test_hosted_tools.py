"""Hosted tools in an answer: code and its output, images, files, a shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from app.tools.code_interpreter.bubblewrap import Bubblewrap
from tests.responses.test_tool_loop import made
from tests.studio.browser import Studio
from tests.support.build import delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.tools.code_interpreter.conftest import bubblewrap as bubblewrap

pytestmark = pytest.mark.asyncio(loop_scope="package")

TOOLS = {"code_interpreter": {"provider": "bubblewrap", "call_seconds": 20, "max_containers": 2, "disk": "4MiB"}}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CODE = f"""
import base64, pathlib
print("counted")
pathlib.Path("table.csv").write_text("name,age\\nAda,36\\n")
pathlib.Path("dot.png").write_bytes(base64.b64decode("{PIXEL}"))
"""


async def test_code_shows_what_it_printed_its_images_and_its_files(
    browser: Browser, bubblewrap: Bubblewrap, tmp_path: Path
) -> None:
    backend = Scripted(made(("code_interpreter", {"code": CODE})), [delta(content="It is done.")])
    async with antiphon(backend, tools=TOOLS) as url, Studio.open(browser, url, accept_downloads=True) as studio:
        page = studio.page
        await studio.open_options()
        await page.get_by_label("Code interpreter").check()
        await studio.say("Count")
        shown = studio.last.get_by_role("group", name="Code interpreter")
        await expect(shown.get_by_role("region", name="Code output")).to_contain_text("counted")
        image = shown.get_by_role("img", name="Image from the code")
        await expect(image).to_be_visible()
        assert await image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1

        await shown.get_by_text("Container files").click()
        await shown.get_by_role("button", name="Preview table.csv").click()
        await expect(shown.get_by_role("region", name="Content of table.csv")).to_have_text("name,age\nAda,36\n")
        await shown.get_by_role("button", name="Preview dot.png").click()
        await expect(shown.get_by_role("img", name="dot.png")).to_be_visible()
        assert await studio.axe() == []
        async with page.expect_download() as started:
            await shown.get_by_role("button", name="Download table.csv").click()
        download = await started.value
        assert download.suggested_filename == "table.csv"
        await download.save_as(tmp_path / "table.csv")
        assert (tmp_path / "table.csv").read_text() == "name,age\nAda,36\n"


async def test_files_that_an_answer_cites_are_listed_under_it(browser: Browser, bubblewrap: Bubblewrap) -> None:
    code = 'open("table.csv", "w").write("name,age\\nAda,36")'
    answer = [delta(content="It is in table.csv \u3010900001\u3011.")]  # the model's mark
    backend = Scripted(made(("code_interpreter", {"code": code})), answer)
    async with antiphon(backend, tools=TOOLS) as url, Studio.open(browser, url) as studio:
        page = studio.page
        await studio.open_options()
        await page.get_by_label("Code interpreter").check()
        await studio.say("Make a table")
        message = studio.last.locator(".message.assistant")
        preview = message.get_by_role("button", name="Preview table.csv")
        await preview.click()
        await expect(message.get_by_role("region", name="Content of table.csv")).to_contain_text("Ada,36")
        await preview.click()
        await expect(message.get_by_role("region", name="Content of table.csv")).to_be_hidden()


async def test_shell_is_shown_as_a_terminal(browser: Browser, bubblewrap: Bubblewrap) -> None:
    commands = {"commands": ["echo out; echo wrong >&2; exit 3"]}
    backend = Scripted(made(("shell", commands)), [delta(content="It failed.")])
    async with antiphon(backend, tools=TOOLS) as url, Studio.open(browser, url) as studio:
        page = studio.page
        await studio.open_options()
        await page.get_by_label("Shell").check()
        await studio.say("Run it")
        commands_shown = studio.last.get_by_role("region", name="Commands")
        await expect(commands_shown).to_have_text("$ echo out; echo wrong >&2; exit 3\n")
        output = studio.last.get_by_role("region", name="Output", exact=True)
        await expect(output).to_have_text("out\nwrong\n[exit code 3]\n")
        assert await studio.axe() == []


async def test_turn_that_approves_a_call_has_a_title(studio: Studio) -> None:
    await studio.open_options()
    await studio.page.get_by_label("demo (MCP)", exact=True).check()
    await studio.say("Now send it")
    await studio.last.get_by_role("button", name="Approve").click()
    await studio.ended(2)
    listed = (
        await (await studio.page.request.get(f"{studio.url}/v1/antiphon/responses", headers=studio.headers)).json()
    )["data"]
    assert [entry["preview"] for entry in listed] == ["Approved.", "Now send it"]
