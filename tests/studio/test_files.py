"""Files and vector stores in the studio: upload, index, search, delete."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, Route, expect

from tests.studio.browser import Studio
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")


def file_search(folder: Path) -> dict[str, Any]:
    return {"file_search": {"store_url": f"sqlite:///{folder}/files.db"}}


def text_file(name: str, text: str) -> Any:
    return {"name": name, "mimeType": "text/plain", "buffer": text.encode()}


async def test_files_are_uploaded_into_a_new_vector_store_indexed_searched_and_removed(
    studio: Studio,
) -> None:
    page = studio.page
    await studio.go("Files")
    await page.get_by_role("button", name="New vector store").click()
    await page.get_by_label("Name", exact=True).fill("Handbook")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("heading", name="Handbook")).to_be_visible()
    files = [text_file("guide.txt", "Bread needs yeast."), text_file("notes.txt", "Thirty days of vacation.")]
    await page.locator("#files-input").set_input_files(files)
    table = page.get_by_role("region", name="Files of this vector store")
    for name in ("guide.txt", "notes.txt"):
        row = table.get_by_role("row").filter(has_text=name)
        await expect(row).to_contain_text("completed")
    await expect(page.locator("#uploads li")).to_have_count(0)

    await page.get_by_label("Search in this vector store").fill("vacation")
    await page.keyboard.press("Enter")
    await expect(page.locator(".result")).to_have_count(1)
    await expect(page.locator(".result")).to_contain_text("Thirty days of vacation.")
    await expect(page.locator(".result")).to_contain_text("score 0.")

    await page.get_by_role("button", name="Remove guide.txt").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(table.get_by_role("row")).to_have_count(2)
    await page.get_by_role("link", name="All files").click()
    await expect(page.get_by_role("region", name="Vector stores").get_by_role("row")).to_have_count(2)
    listed = page.get_by_role("region", name="Uploaded files")
    await expect(listed.get_by_role("row")).to_have_count(3)
    await page.get_by_role("button", name="Delete guide.txt").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(listed.get_by_role("row")).to_have_count(2)
    await page.get_by_role("button", name="Delete Handbook").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No vector stores yet.", exact=True)).to_be_visible()


async def test_store_that_was_left_while_it_loads_asks_for_no_more(studio: Studio) -> None:
    page = studio.page
    async with httpx.AsyncClient(base_url=f"{studio.url}/v1", headers=studio.headers, timeout=60) as http:
        store = (await http.post("/vector_stores", json={"name": "Handbook"})).json()["id"]
        sent = {"file": ("guide.txt", b"Bread needs yeast.", "text/plain")}
        file = (await http.post("/files", data={"purpose": "assistants"}, files=sent)).json()["id"]
        await http.post(f"/vector_stores/{store}/files", json={"file_id": file})
    left = asyncio.Event()
    urls: list[str] = []

    async def hold(route: Route) -> None:
        await left.wait()
        await route.continue_()

    await page.route(f"**/v1/vector_stores/{store}/files?*", hold)
    page.on("request", lambda request: urls.append(request.url))
    async with page.expect_response(f"**/v1/vector_stores/{store}/files?*"):
        await page.goto(f"{studio.url}/studio#/files/{store}")
        await studio.go("Talk")
        left.set()
    await studio.say("Say hello.")  # whatever followed the response would have been requested by now
    assert f"{studio.url}/v1/files/{file}" not in urls and any("/responses" in url for url in urls)


async def test_upload_that_is_refused_says_why_and_can_be_dismissed(browser: Browser, tmp_path: Path) -> None:
    tools = {"file_search": {**file_search(tmp_path)["file_search"], "max_file_bytes": 10}}
    async with antiphon(tools=tools) as url, Studio.open(browser, url, refusals=(400, 413)) as studio:
        await studio.go("Files")
        await studio.page.locator("#files-input").set_input_files([text_file("large.txt", "More than ten bytes.")])
        await expect(studio.page.locator("#uploads")).to_contain_text("large.txt")
        await expect(studio.page.locator("#uploads .problem")).not_to_be_empty()
        await studio.page.get_by_role("button", name="Dismiss large.txt").click()
        await expect(studio.page.locator("#uploads li")).to_have_count(0)


async def test_server_without_files_says_how_to_switch_them_on(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url, refusals=(404,)) as studio:
        await studio.go("Files")
        await expect(studio.page.locator("#files-body")).to_contain_text("[tools.file_search]")
        await expect(studio.page.get_by_role("button", name="Upload")).to_be_disabled()


async def test_name_with_markup_is_shown_as_text(studio: Studio) -> None:
    name = "<img src=x onerror=alert(1)>"
    async with httpx.AsyncClient(base_url=f"{studio.url}/v1", headers=studio.headers, timeout=60) as http:
        await http.post("/vector_stores", json={"name": name})
    await studio.go("Files")
    await expect(studio.page.get_by_role("link", name=name)).to_be_visible()
