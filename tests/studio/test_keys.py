"""The studio's page of keys: an admin creates, limits, rotates and revokes them, and sees their use."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from app.core.access import hash_of
from tests.studio.browser import Studio
from tests.studio.test_operation import DRAWN, HELLO, PRICES
from tests.support.scripted import Scripted
from tests.support.serving import antiphon

pytestmark = pytest.mark.asyncio(loop_scope="package")

KEYS = {"boss": {"hash": hash_of("boss"), "admin": True}, "user": {"hash": hash_of("user")}}
SECRET = re.compile(r"sk-antiphon-[\w-]{43}")


async def call(url: str, method: str, path: str, key: str = "boss", **body: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=60, trust_env=False) as http:
        headers = {"authorization": f"Bearer {key}"}
        return await http.request(method, path, headers=headers, json=body or None)


async def status_of(url: str, key: str) -> int:
    return (await call(url, "POST", "/responses", key, model="m", input="Hi.")).status_code


async def shown_secret(page: Page) -> str:
    secret = await page.get_by_role("dialog").locator("code").inner_text()
    assert SECRET.fullmatch(secret)
    await page.get_by_role("button", name="Done").click()
    return secret


async def test_key_is_created_limited_rotated_and_revoked(browser: Browser) -> None:
    served = antiphon(Scripted(HELLO), keys=KEYS, prices=PRICES)
    async with served as url, Studio.open(browser, url, key="boss") as studio:
        page = studio.page
        await studio.go("Keys")
        table = page.get_by_role("region", name="API keys")
        await expect(table.get_by_role("row")).to_have_count(3)
        await expect(table.get_by_role("row", name="boss")).to_contain_text("admin, in the settings")

        await page.get_by_role("button", name="New key").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("alice")
        await dialog.get_by_label("Owner").fill("research")
        await dialog.get_by_label("Models").fill("m, qwen*")
        await dialog.get_by_label("Requests per minute").fill("60")
        await dialog.get_by_label("Tokens per day").fill("30000")
        assert await studio.axe() == []
        await dialog.get_by_role("button", name="Create").click()
        await expect(dialog).to_contain_text("It is not shown again")
        first = await shown_secret(page)
        await expect(page.get_by_role("heading", name="alice")).to_be_visible()
        fields = page.get_by_role("region", name="Key fields")
        await expect(fields).to_contain_text("research")
        await expect(fields).to_contain_text("m, qwen*")
        await expect(fields).to_contain_text("Requests per minute: 60, Tokens per day: 30,000")
        assert await status_of(url, first) == 200

        await page.get_by_role("button", name="Rotate").click()
        await page.get_by_label("Grace period").select_option("0")
        await page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
        second = await shown_secret(page)
        assert (await status_of(url, first), await status_of(url, second)) == (401, 200)

        await page.get_by_role("button", name="Change").click()
        await expect(dialog.get_by_label("Models")).to_have_value("m, qwen*")
        await dialog.get_by_label("Models").fill("none")
        await dialog.get_by_role("button", name="Save").click()
        changes = page.get_by_role("region", name="Key changes")
        await expect(changes).to_contain_text('models: ["m","qwen*"] → []')
        await expect(changes.get_by_role("row")).to_have_count(4)
        assert await status_of(url, second) == 403

        await page.get_by_role("button", name="Revoke").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(fields).to_contain_text("revoked")
        await expect(page.get_by_role("button", name="Rotate")).to_have_count(0)
        assert await status_of(url, second) == 401
        await page.get_by_role("link", name="All keys").click()
        await expect(table.get_by_role("row")).to_have_count(3)
        await page.get_by_label("Revoked keys").check()
        await expect(table.get_by_role("link", name="alice")).to_be_visible()


async def test_only_changed_fields_are_sent(browser: Browser) -> None:
    async with antiphon(Scripted(HELLO), keys=KEYS) as url, Studio.open(browser, url, key="boss") as studio:
        made = (await call(url, "POST", "/antiphon/keys", name="alice", tools=[], budgets={"tokens_per_day": 5})).json()
        page = studio.page
        await page.goto(f"{url}/studio#/keys/{made['id']}")
        await page.get_by_role("button", name="Change").click()
        await page.get_by_label("Tokens per minute").fill("7")
        async with page.expect_request(lambda request: request.method == "PATCH") as sent:
            await page.get_by_role("dialog").get_by_role("button", name="Save").click()
        assert (await sent.value).post_data_json == {"tokens_per_minute": 7}
        await expect(page.get_by_role("region", name="Key fields")).to_contain_text("Tokens per minute: 7")


async def test_use_of_a_key_is_drawn_and_listed(browser: Browser) -> None:
    served = antiphon(Scripted(HELLO), keys=KEYS, prices=PRICES)
    async with served as url, Studio.open(browser, url, key="boss") as studio:
        body = {"name": "alice", "budgets": {"tokens_per_day": 3000}}
        made = (await call(url, "POST", "/antiphon/keys", **body)).json()
        assert await status_of(url, made["secret"]) == 200
        page = studio.page
        await studio.go("Keys")
        row = page.get_by_role("row", name="alice")
        await expect(row).to_contain_text("1.5K")
        await expect(row).to_contain_text("now")
        await row.get_by_role("link").click()
        await expect(page.get_by_role("meter", name="Tokens per day")).to_have_attribute("aria-valuenow", "50")
        for title in ("Tokens by day", "Cost by day"):
            canvas = page.get_by_role("figure", name=title, exact=True).locator("canvas")
            await expect(canvas).to_be_visible()
            assert await canvas.evaluate(DRAWN)
        assert await studio.axe_in_both_themes() == []
        await page.set_viewport_size({"width": 360, "height": 700})
        assert await studio.overflow() <= 0


async def test_refused_field_is_named_in_the_dialog_and_focused(browser: Browser) -> None:
    served = antiphon(Scripted(HELLO), keys=KEYS)
    async with served as url, Studio.open(browser, url, key="boss", refusals=(400, 409)) as studio:
        page = studio.page
        await studio.go("Keys")
        await page.get_by_role("button", name="New key").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Name").fill("user")
        await dialog.get_by_role("button", name="Create").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("a key named 'user' exists already")
        await expect(dialog.get_by_label("Name")).to_be_focused()
        await dialog.get_by_label("Name").fill("alice")
        await dialog.get_by_label("Cost per day").fill("5")
        await dialog.get_by_role("button", name="Create").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("money requires prices")
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("button", name="New key")).to_be_focused()


@pytest.mark.parametrize("key", ["user", "plain"])
async def test_key_without_the_right_is_shown_what_it_takes(browser: Browser, key: str) -> None:
    served = antiphon(Scripted(HELLO), keys=KEYS, api_keys="plain")
    async with served as url, Studio.open(browser, url, key=key, refusals=(403,)) as studio:
        await studio.go("Keys")
        await expect(studio.page.locator("#keys-body")).to_contain_text("admin = true")
        await expect(studio.page.get_by_role("button", name="New key")).to_be_disabled()
        assert await studio.axe() == []


async def test_names_of_keys_with_markup_are_shown_as_text(browser: Browser) -> None:
    served = antiphon(Scripted(HELLO), keys=KEYS)
    async with served as url, Studio.open(browser, url, key="boss") as studio:
        markup = "<img src=x onerror=alert(1)>"
        await call(url, "POST", "/antiphon/keys", name="alice", owner=markup, models=[markup])
        await studio.go("Keys")
        await expect(studio.page.get_by_role("row", name="alice")).to_contain_text(markup)
