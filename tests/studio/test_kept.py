"""No work is lost: running answers, drafts, options, keys and branches."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.studio.browser import Studio
from tests.support.build import call, delta
from tests.support.build import finish as finished
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_answer_goes_on_while_another_conversation_is_shown(studio: Studio, backend: Scripted) -> None:
    goes_on = asyncio.Event()
    backend.scripts = [[delta(content="It begins"), goes_on, delta(content=" and ends.")]]
    page = studio.page
    await page.get_by_label("Message", exact=True).fill("Take your time.")
    await page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("It begins")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".turn")).to_have_count(0)
    goes_on.set()
    await page.go_back()
    await studio.ended(1)
    await expect(studio.last.locator(".answer")).to_have_text("It begins and ends.")


async def test_answer_that_is_not_stored_goes_on_while_another_conversation_is_shown(
    studio: Studio, backend: Scripted
) -> None:
    goes_on = asyncio.Event()
    backend.scripts = [[delta(content="It begins"), goes_on, delta(content=" and ends.")]]
    page = studio.page
    await studio.open_options()
    await page.get_by_label("Store the response").uncheck()
    await page.get_by_label("Message", exact=True).fill("Take your time.")
    await page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("It begins")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".turn")).to_have_count(0)
    await page.get_by_role("link", name="Take your time.").click()
    await expect(studio.last).to_contain_text("It begins")
    goes_on.set()
    await studio.ended(1)
    await expect(studio.last.locator(".answer")).to_have_text("It begins and ends.")


async def test_stopped_answer_is_kept_over_a_reload(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="It begins"), asyncio.Event()], [delta(content="Second.")]]
    page = studio.page
    await page.get_by_label("Message", exact=True).fill("Go on for ever")
    await page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("It begins")
    await page.keyboard.press("Escape")
    await expect(studio.last).to_contain_text("Stopped.")
    await page.reload()
    await studio.ended(1)
    await expect(studio.last).to_contain_text("It begins")
    await studio.last.get_by_role("button", name="Continue").click()
    await studio.ended(2)
    assert [message["content"] for message in backend.received[1]["messages"]] == [
        "Go on for ever",
        "It begins",
        "Continue where you stopped.",
    ]


async def test_drafts_belong_to_their_conversation_and_survive_a_reload(studio: Studio) -> None:
    page = studio.page
    field = page.get_by_label("Message", exact=True)
    await studio.say("My name is Ada.")
    await field.fill("Draft of Ada")
    file = {"name": "ada.txt", "mimeType": "text/plain", "buffer": b"Ada"}
    await page.locator("#file").set_input_files([file])  # type: ignore[list-item]
    await expect(page.get_by_label("Attached files")).to_contain_text("ada.txt")
    await page.get_by_role("button", name="New conversation").click()
    await expect(field).to_have_value("")
    await expect(page.get_by_label("Attached files").locator("li")).to_have_count(0)
    await field.fill("Draft of a new one")
    await page.reload()
    await expect(field).to_have_value("Draft of a new one")
    await page.get_by_role("link", name="My name is Ada.").click()
    await expect(field).to_have_value("Draft of Ada")
    await expect(page.get_by_label("Attached files")).to_contain_text("ada.txt")
    await field.press("Enter")
    await studio.ended(2)
    await page.reload()
    await studio.ended(2)
    await expect(field).to_have_value("")
    await expect(page.get_by_label("Attached files").locator("li")).to_have_count(0)


async def test_edit_that_was_not_sent_survives_a_reload(studio: Studio) -> None:
    await studio.say("Say hello.")
    await studio.say("Say it again.")
    page = studio.page
    first = page.locator(".turn").first
    await first.get_by_role("button", name="Edit").click()
    await page.get_by_label("Edited message").fill("Say good evening.")
    await page.reload()
    await expect(page.get_by_label("Edited message")).to_have_value("Say good evening.")
    await page.get_by_role("button", name="Cancel").click()
    await expect(first.locator(".question")).to_have_text("Say hello.")
    await page.reload()
    await expect(studio.last.locator(".question")).to_have_text("Say it again.")
    await expect(first.get_by_role("button", name="Edit")).to_be_visible()
    await expect(page.get_by_label("Edited message")).to_have_count(0)


async def test_options_belong_to_their_conversation(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="Arr.")], [delta(content="Plain.")], [delta(content="Arr again.")]]
    page = studio.page
    chips = page.get_by_label("Switched on").get_by_role("listitem")
    await studio.open_options()
    await page.get_by_label("Instructions", exact=True).fill("You are a pirate.")
    await page.get_by_label("Temperature").fill("0.5")
    await studio.say("Who are you?")
    await page.get_by_role("button", name="New conversation").click()
    await page.get_by_role("button", name="Reset", exact=True).click()
    await studio.say("And you?")
    await page.reload()
    await page.get_by_role("link", name="Who are you?").click()
    await studio.ended(1)
    await expect(chips).to_have_text(["instructions", "temperature: 0.5"])
    await studio.say("Still?")
    await page.get_by_role("link", name="And you?").click()
    await expect(chips).to_have_count(0)

    received = backend.received
    assert received[2]["messages"][0]["content"] == "You are a pirate." and received[2]["temperature"] == 0.5
    assert received[1]["messages"][0]["content"] == "And you?"


async def test_retry_sends_the_options_and_the_model_that_are_shown(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="One.")], [delta(content="Two.")]]
    page = studio.page
    await studio.say("Hello")
    await studio.open_options()
    await page.get_by_label("Instructions", exact=True).fill("Be brief.")
    await studio.last.get_by_role("button", name="Retry").click()
    await expect(studio.last.locator(".answer")).to_have_text("Two.")
    await expect(page.locator(".turn")).to_have_count(1)
    assert backend.received[1]["messages"][0]["content"] == "Be brief."
    await expect(studio.last.locator(".branches")).to_have_text("Branch 2/2")
    await studio.last.get_by_role("button", name="Previous branch").click()
    await expect(studio.last.locator(".answer")).to_have_text("One.")


async def test_chip_of_an_option_is_dismissed(studio: Studio) -> None:
    page = studio.page
    await studio.open_options()
    await page.get_by_label("Temperature").fill("0.5")
    await page.get_by_role("button", name="Remove temperature: 0.5").click()
    await expect(page.get_by_label("Switched on").get_by_role("listitem")).to_have_count(0)
    await expect(page.get_by_label("Temperature")).to_have_value("")


async def test_new_key_after_a_refusal_keeps_the_thread_and_the_message(browser: Browser) -> None:
    async with (
        antiphon(api_keys="good,better") as url,
        Studio.open(browser, url, key="good", refusals=(401, 404)) as studio,
    ):
        page = studio.page
        await studio.say("My name is Ada.")
        await page.evaluate("sessionStorage['antiphon.key'] = 'revoked'")
        await page.get_by_label("Message", exact=True).fill("What is my name?")
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="API key")
        await expect(dialog).to_contain_text("The API key was not accepted.")
        await dialog.get_by_label("Key").fill("good")
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn")).to_have_count(2)
        await studio.last.get_by_role("button", name="Retry").click()
        await expect(studio.last).to_contain_text("Your name is Ada.")

        await page.get_by_role("button", name="API key set").click()
        await dialog.get_by_label("Key").fill("better")
        await page.keyboard.press("Enter")
        await expect(page.locator(".turn")).to_have_count(0)  # of another owner


async def test_answered_approval_and_result_cannot_be_given_again(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[call(0, id="a", name="one", arguments="{}")], [delta(content="Done.")]]
    page = studio.page
    await studio.open_options()
    await page.get_by_label("Functions, as JSON").fill('[{"name": "one"}]')
    await studio.say("Call it")
    await studio.last.get_by_label("Result to send back").fill("1")
    await studio.last.get_by_role("button", name="Send result").click()
    await studio.ended(2)
    await page.reload()
    await studio.ended(2)
    made = page.locator(".turn").first.get_by_role("group", name="Function call")
    await expect(made).to_contain_text("Answered below.")
    await expect(page.get_by_label("Result to send back")).to_have_count(0)


async def test_question_that_did_not_reach_the_server_is_a_draft_after_a_reload(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url) as studio:
        page = studio.page
        await page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('offline')); }")
        await page.get_by_label("Message", exact=True).fill("Important words")
        await page.keyboard.press("Enter")
        await expect(studio.last.get_by_role("group", name="Error")).to_contain_text("cannot be reached")
        await page.reload()
        await expect(page.get_by_label("Message", exact=True)).to_have_value("Important words")


async def test_answers_to_parallel_calls_are_all_repeated_without_a_store(studio: Studio, backend: Scripted) -> None:
    two = [call(0, id="a", name="one", arguments="{}"), call(1, id="b", name="two", arguments="{}")]
    backend.scripts = [two, [delta(content="Done.")], [delta(content="Again.")]]
    await studio.open_options()
    await studio.page.get_by_label("Store the response").uncheck()
    await studio.page.get_by_label("Functions, as JSON").fill('[{"name": "one"}, {"name": "two"}]')
    await studio.say("Both, please")
    forms = studio.last.locator(".call-output")
    await expect(forms).to_have_count(2)
    for index, output in enumerate(("first", "second")):
        await forms.nth(index).locator("textarea").fill(output)
        await forms.nth(index).get_by_role("button").click()
    await studio.ended(2)
    await studio.say("Once more")

    results = [message["content"] for message in backend.received[2]["messages"] if message["role"] == "tool"]
    assert results == ["first", "second"]


async def test_new_conversation_is_an_entry_of_the_history_with_a_title(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    await expect(page).to_have_title("My name is Ada. \u2013 Antiphon studio")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page).to_have_title("Antiphon studio")
    await page.go_back()
    await studio.ended(1)
    await expect(page).to_have_title("My name is Ada. \u2013 Antiphon studio")


async def test_page_says_that_it_reconnects_to_a_background_answer(studio: Studio, backend: Scripted) -> None:
    goes_on = asyncio.Event()
    backend.scripts = [[delta(content="It begins"), goes_on, delta(content=" and ends.")]]
    page = studio.page
    await page.evaluate(
        """() => {
            const real = window.fetch;
            window.broken = true;
            window.fetch = async (url, options) => {
                if (!window.broken || !String(url).includes('/responses')) return real(url, options);
                if (options.method !== 'POST') throw new TypeError('offline');
                const answer = await real(url, options);
                const reader = answer.body.getReader();
                const body = new ReadableStream({ async pull(controller) {
                    const { value } = await reader.read();
                    controller.enqueue(value);
                    const text = new TextDecoder().decode(value);
                    if (text.includes('It begins')) controller.error(new TypeError('broken'));
                } });
                return new Response(body, { status: answer.status, headers: answer.headers });
            };
        }"""
    )
    await page.get_by_label("Message", exact=True).fill("Take your time.")
    await page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("Reconnecting…")
    await page.evaluate("window.broken = false")
    goes_on.set()
    await studio.ended(1)
    await expect(studio.last.locator(".answer")).to_have_text("It begins and ends.")


async def test_conversation_is_renamed_pinned_and_exported(studio: Studio) -> None:
    page = studio.page
    await studio.say("My name is Ada.")
    link = page.get_by_role("link", name="My name is Ada.")

    async def choose(action: str) -> None:
        await page.locator("#conversation-list a").first.press("ArrowRight")
        await page.keyboard.press("Enter")
        await page.get_by_role("menuitem", name=action).click()

    await choose("Rename")
    await page.get_by_role("dialog").get_by_label("Name").fill("About Ada")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("link", name="About Ada")).to_be_visible()
    await expect(link).to_have_count(0)
    await expect(page).to_have_title("About Ada \u2013 Antiphon studio")
    await choose("Pin")
    await expect(page.locator("#conversation-list .day")).to_have_text(["Pinned"])
    exports: dict[str, Any] = {}
    for kind in ("Markdown", "JSON"):
        async with page.expect_download() as download:
            await choose(f"Export as {kind}")
        exports[kind] = (await (await download.value).path()).read_text()
    assert exports["Markdown"].startswith("# About Ada\n\n## You\n\nMy name is Ada.\n\n## demo\n\n")
    assert json.loads(exports["JSON"])[0]["input"][0]["content"][0]["text"] == "My name is Ada."


async def test_names_pins_and_branches_of_the_first_turn_are_shown_by_another_browser(browser: Browser) -> None:
    async with antiphon() as url:
        async with Studio.open(browser, url) as studio:
            page = studio.page
            await studio.say("My name is Ada.")
            await studio.say("What is my name?")
            await page.locator(".turn").first.get_by_role("button", name="Edit").click()
            await page.get_by_label("Edited message").fill("My name is Grace.")
            await page.keyboard.press("Enter")
            await studio.ended(1)
            await expect(studio.last.locator(".branches")).to_have_text("Branch 2/2")
            await page.locator("#conversation-list a").first.press("ArrowRight")
            await page.keyboard.press("Enter")
            await page.get_by_role("menuitem", name="Rename").click()
            await page.get_by_role("dialog").get_by_label("Name").fill("About Grace")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("link", name="About Grace")).to_be_visible()
            await page.locator("#conversation-list a").first.press("ArrowRight")
            await page.keyboard.press("Enter")
            await page.get_by_role("menuitem", name="Pin").click()
            await expect(page.locator("#conversation-list .day")).to_have_text(["Pinned", "Today"])
        async with Studio.open(browser, url) as studio:
            page = studio.page
            await expect(page.locator("#conversation-list .day")).to_have_text(["Pinned", "Today"])
            await page.get_by_role("link", name="About Grace").click()
            await expect(page).to_have_title("About Grace \u2013 Antiphon studio")
            await expect(studio.last.locator(".branches")).to_have_text("Branch 2/2")
            await page.get_by_role("button", name="Previous branch").click()
            await expect(page.locator(".question")).to_have_text(["My name is Ada.", "What is my name?"])
            await expect(page.locator(".turn").first.locator(".branches")).to_have_text("Branch 1/2")


async def test_retry_asks_another_model(browser: Browser) -> None:
    async with Upstream() as up:
        up.models = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in ("one", "two")]
        up.say(sse(chunk("From one."), finish("stop"), DONE))
        up.say(sse(chunk("From two."), finish("stop"), DONE))
        async with antiphon(backend_url=up.url) as url, Studio.open(browser, url) as studio:
            await studio.say("Hello")
            await studio.last.get_by_role("button", name="Ask another model").click()
            assert await studio.axe() == []
            await studio.page.get_by_role("menuitem", name="two").click()
            await expect(studio.last.locator(".answer")).to_have_text("From two.")
            await expect(studio.last.locator(".branches")).to_have_text("Branch 2/2")
        assert [request.json["model"] for request in up.requests if request.method == "POST"] == ["one", "two"]


async def test_answer_that_reached_the_output_limit_is_continued(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="It begins"), finished("length")], [delta(content=" and ends.")]]
    page = studio.page
    await studio.say("Tell me")
    await expect(studio.last).to_contain_text("Stopped at the output limit.")
    await studio.last.get_by_role("button", name="Raise limit").click()
    await expect(page.get_by_label("Max output tokens")).to_be_focused()
    await studio.last.get_by_role("button", name="Continue").click()
    await studio.ended(2)
    await expect(studio.last.locator(".answer")).to_have_text("and ends.")
