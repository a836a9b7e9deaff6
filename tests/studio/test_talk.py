"""Talking to a model in the studio, each feature as a story, in a real browser in front of the real server."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from app.backends.demo.showcase import PICTURE
from app.errors import BackendError
from tests.studio.browser import Studio
from tests.support.build import call, delta
from tests.support.scripted import Scripted
from tests.support.serving import antiphon
from tests.support.upstream import DONE, Upstream, chunk, finish, sse

pytestmark = pytest.mark.asyncio(loop_scope="package")

PNG = base64.b64decode(PICTURE.partition("base64,")[2].partition(")")[0])


async def test_browser_at_the_root_is_redirected_to_the_studio(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url, path="/") as studio:
        await expect(studio.page).to_have_title("Antiphon studio")
        assert studio.page.url == f"{url}/studio"


async def test_markdown_is_streamed_and_rendered(studio: Studio) -> None:
    await studio.suggest("Stream some Markdown")

    await expect(studio.last.locator("strong")).to_have_text("antiphon")
    await expect(studio.last.locator(".prose li")).to_have_count(3)
    await expect(studio.last.locator("tbody tr")).to_have_count(3)
    await expect(studio.last.locator("pre .hljs-keyword").first).to_have_text("with")
    await expect(studio.page.locator("#status")).to_contain_text("The answer is complete")


async def test_reasoning_is_folded(studio: Studio) -> None:
    await studio.suggest("Think first")

    thoughts = studio.last.locator("details.reasoning")
    await expect(thoughts.locator(".plain")).to_be_hidden()
    await thoughts.locator("summary").click()
    await expect(thoughts.locator(".plain")).to_contain_text("The user says")


async def test_function_is_called_and_answered(studio: Studio) -> None:
    await studio.suggest("Call a function")
    made = studio.last.get_by_role("group", name="Function call")
    await expect(made).to_contain_text("get_weather")
    await expect(made.get_by_role("region", name="Arguments")).to_contain_text('"location"')

    await made.get_by_label("Result to send back").fill("Sunny in Paris.")
    await made.get_by_role("button", name="Send result").click()
    await studio.ended(2)

    await expect(studio.last.locator(".answer")).to_contain_text("Here is what I found: Sunny in Paris.")


async def test_calls_side_by_side_are_answered_together(studio: Studio, backend: Scripted) -> None:
    two = [call(0, id="a", name="one", arguments="{}"), call(1, id="b", name="two", arguments="{}")]
    backend.scripts = [two, [delta(content="Done.")]]
    await studio.open_options()
    await studio.page.get_by_label("Functions, as JSON").fill('[{"name": "one"}, {"name": "two"}]')
    await studio.say("Both, please")
    forms = studio.last.locator(".call-output")
    await expect(forms).to_have_count(2)
    for index, output in enumerate(("first", "second")):
        await forms.nth(index).locator("textarea").fill(output)
        await forms.nth(index).get_by_role("button").click()
    await studio.ended(2)

    assert [message["content"] for message in backend.received[1]["messages"][-2:]] == ["first", "second"]


async def test_answer_with_a_schema_is_structured(studio: Studio) -> None:
    await studio.suggest("Answer in JSON")

    assert set(json.loads(await studio.last.locator(".prose").inner_text())) == {"name", "age", "likes"}


async def test_image_is_shown(studio: Studio) -> None:
    await studio.suggest("Draw an image")

    image = studio.last.get_by_role("img", name="Hills under a sun")
    await expect(image).to_be_visible()
    assert await image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 240


async def test_image_is_attached_and_sent(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="I see.")]]
    files = [
        {"name": "hills.png", "mimeType": "image/png", "buffer": PNG},
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"Some notes."},
    ]
    await studio.page.locator("#file").set_input_files(files)  # type: ignore[arg-type]
    await expect(studio.page.get_by_label("Attached files").locator("li")).to_have_count(2)
    await studio.page.get_by_role("button", name="Remove notes.txt").click()
    await studio.say("What is this?")
    await expect(studio.page.get_by_role("img", name="Attached image")).to_be_visible()
    await expect(studio.page.get_by_label("Attached files").locator("li")).to_have_count(0)

    image, text = backend.received[0]["messages"][-1]["content"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert text["text"] == "What is this?"


async def test_files_can_be_dropped(studio: Studio) -> None:
    await studio.page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["Hello"], "hello.txt", { type: "text/plain" }));
            const dropped = new DragEvent("drop", { dataTransfer: data, bubbles: true });
            document.getElementById("talk").dispatchEvent(dropped);
        }"""
    )
    await expect(studio.page.get_by_label("Attached files")).to_contain_text("hello.txt")


async def test_error_explains_what_to_do_and_a_retry_succeeds(studio: Studio, backend: Scripted) -> None:
    refusal = BackendError("Too many requests.", code="rate_limit_exceeded", error_type="too_many_requests", status=429)
    backend.scripts = [[refusal], [delta(content="Here it is.")]]
    studio.refusals = (429,)
    await studio.say("Hello")
    error = studio.last.get_by_role("group", name="Error")
    await expect(error).to_contain_text("Too many requests.")
    await expect(error).to_contain_text(re.compile("Retry (in 1 s|now)"))
    await expect(error).to_contain_text("rate_limit_exceeded")
    await expect(studio.page.locator("#status")).to_have_text("The answer failed.")

    await studio.last.get_by_role("button", name="Retry").click()
    await expect(studio.last).to_contain_text("Here it is.")
    await expect(studio.page.locator(".turn")).to_have_count(1)


async def test_answer_that_breaks_off_keeps_what_there_is(studio: Studio) -> None:
    await studio.say("Fail in the middle.")

    await expect(studio.last).to_contain_text("one, two,")
    await expect(studio.last.get_by_role("group", name="Error")).to_contain_text("The demo was asked to fail")


async def test_answer_is_stopped(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="It begins"), asyncio.Event()]]
    await studio.page.get_by_label("Message", exact=True).fill("Go on for ever")
    await studio.page.keyboard.press("Enter")
    await expect(studio.last).to_contain_text("It begins")
    await studio.page.get_by_role("button", name="Stop").click()
    await expect(studio.last).to_contain_text("Stopped.")
    await expect(studio.last).to_contain_text("It begins")
    await expect(studio.page.get_by_role("button", name="Send", exact=True)).to_be_visible()


async def test_conversation_is_edited_and_forked(studio: Studio) -> None:
    await studio.say("My name is Ada.")
    await studio.say("What is my name?")
    await expect(studio.last).to_contain_text("Your name is Ada.")

    page = studio.page
    first = page.locator(".turn").first
    await first.get_by_role("button", name="Fork here").click()
    await expect(page.locator(".turn")).to_have_count(1)
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.locator(".turn")).to_have_count(2)
    await first.get_by_role("button", name="Fork here").click()
    await studio.say("Say hello.")
    await expect(studio.last).to_contain_text("Hello there, friend!")
    await expect(studio.last.locator(".branches")).to_have_text("Branch 2/2")

    await first.get_by_role("button", name="Edit").click()
    field = first.get_by_label("Edited message")
    await expect(field).to_have_value("My name is Ada.")
    await field.press("Escape")
    await expect(first.locator(".question")).to_have_text("My name is Ada.")
    await expect(page.locator(".turn")).to_have_count(2)
    await first.get_by_role("button", name="Edit").click()
    await field.fill("My name is Bob.")
    await field.press("Enter")
    await studio.ended(1)
    await studio.say("What is my name?")
    await expect(studio.last).to_contain_text("Your name is Bob.")

    await first.get_by_role("button", name="Previous branch").click()
    await expect(page.locator(".turn")).to_have_count(2)
    await expect(first.locator(".question")).to_have_text("My name is Ada.")
    await expect(page.get_by_label("Edited message")).to_have_count(0)
    await expect(studio.last).to_contain_text("Hello there, friend!")
    await studio.last.get_by_role("button", name="Previous branch").click()
    await expect(studio.last).to_contain_text("Your name is Ada.")

    await page.reload()
    await studio.ended(2)
    await expect(studio.last).to_contain_text("Your name is Ada.")
    await studio.last.get_by_role("button", name="Next branch").click()
    await expect(studio.last).to_contain_text("Hello there, friend!")


async def test_response_with_store_false_is_continued_by_the_page(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="Hello.")], [delta(content="Again.")], [delta(content="And again.")]]
    await studio.open_options()
    await studio.page.get_by_label("Store the response").uncheck()
    for text in ("One", "Two", "Three"):
        await studio.say(text)

    turns = [(message["role"], message["content"]) for message in backend.received[2]["messages"]]
    assert [text for _, text in turns] == ["One", "Hello.", "Two", "Again.", "Three"]


async def test_options_are_sent_with_the_message(studio: Studio, backend: Scripted) -> None:
    backend.scripts = [[delta(content="Hello.")]]
    page = studio.page
    await studio.open_options()
    await page.get_by_label("Instructions", exact=True).fill("Be brief.")
    await page.get_by_role("button", name="Example").first.click()
    await page.get_by_label("Tool choice").select_option("none")
    await page.get_by_label("Temperature").fill("0.5")
    await page.get_by_label("Top p").fill("0.9")
    await page.get_by_label("Max output tokens").fill("100")
    await page.get_by_label("Reasoning effort").select_option("high")
    await page.get_by_label("Other parameters").fill('{"seed": 7}')
    await studio.say("Hello")

    chat_body = backend.received[0]
    assert chat_body["messages"][0]["content"] == "Be brief."
    assert {name: chat_body[name] for name in ("temperature", "top_p", "seed", "reasoning_effort", "tool_choice")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "reasoning_effort": "high",
        "tool_choice": "none",
    }


async def test_field_that_is_not_json_is_marked(studio: Studio) -> None:
    page = studio.page
    await studio.open_options()
    await page.get_by_label("Structured output: a JSON Schema", exact=True).fill("{")
    await page.get_by_label("Message", exact=True).fill("Hello")
    await page.keyboard.press("Enter")

    await expect(page.locator("#composer-problem")).to_contain_text("must be a JSON Schema")
    await expect(page.get_by_label("Structured output: a JSON Schema", exact=True)).to_have_attribute(
        "aria-invalid", "true"
    )
    await expect(page.get_by_label("Structured output: a JSON Schema", exact=True)).to_be_focused()
    assert await page.locator(".turn").count() == 0
    await expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")


async def test_events_are_a_timeline(studio: Studio) -> None:
    await studio.say("Count from 1 to 50.")
    await studio.inspect("Events")
    page = studio.page
    rows = page.locator(".event-name")
    await expect(rows).to_have_text(
        [
            "created", "queued", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
            "output_text.done", "content_part.done", "output_item.done", "completed",
        ]
    )  # fmt: skip
    await expect(page.locator(".event-count")).to_have_text("\u00d7 50")
    await expect(page.locator("#stats")).to_contain_text("Output tokens50")

    await page.get_by_label("Filter", exact=True).fill("item")
    await expect(rows).to_have_text(["output_item.added", "output_item.done"])
    await rows.last.click()
    shown = json.loads(await page.get_by_role("region", name="The event as JSON").inner_text())
    assert shown["type"] == "response.output_item.done"
    await page.get_by_role("button", name="Close", exact=True).last.click()
    await expect(page.locator(".event-detail")).to_be_hidden()

    await page.get_by_label("Filter", exact=True).fill("delta")
    await page.get_by_label("Fold deltas").uncheck()
    await expect(rows.nth(10)).to_have_text("output_text.delta")


async def test_translation_stands_beside_the_request(studio: Studio) -> None:
    page = studio.page
    await studio.open_options()
    await page.get_by_label("Max output tokens").fill("100")
    await page.get_by_label("Other parameters").fill('{"wonders": true}')
    await page.get_by_label("Message", exact=True).fill("Say hello.")
    await page.get_by_role("button", name="Preview request").click()

    chat = page.get_by_role("table", name="Client request and backend request")
    pair = chat.get_by_role("row").filter(has_text="messages[0]")
    await expect(pair).to_contain_text("translated")
    await expect(chat).to_contain_text("max_tokens")
    await expect(chat.locator(".pair.dropped")).to_contain_text("'wonders' is not supported")
    assert await page.locator(".turn").count() == 0

    await page.get_by_role("button", name="Send", exact=True).click()
    await studio.ended(1)
    await studio.inspect("Request")
    await expect(chat).to_contain_text("Say hello.")
    await expect(chat.locator(".pair.dropped")).to_contain_text("'wonders' is not supported")


async def test_resource_and_code_are_shown(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url) as studio:
        await studio.say('It\'s "here".')
        await studio.inspect("JSON")
        raw = json.loads(await studio.page.get_by_role("region", name="The response as JSON").inner_text())
        assert raw["object"] == "response" and raw["status"] == "completed"

        await studio.page.get_by_role("tab", name="Code").click()
        code: Any = {}
        for language in ("curl", "Python", "JavaScript"):
            await studio.page.get_by_role("radio", name=language, exact=True).check()
            code[language] = await studio.page.get_by_role("region", name=f"The request in {language}").inner_text()
            assert f"{url}/v1" in code[language]
        compile(code["Python"], "example.py", "exec")
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", code["curl"], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await shell.communicate()
        assert b"response.completed" in output


async def test_keyboard_alone_is_enough(browser: Browser) -> None:
    async with antiphon() as url, Studio.open(browser, url) as studio:
        page = studio.page
        await expect(page.get_by_role("button", name="Stream some Markdown")).to_be_visible()
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()
        await page.keyboard.type("Say hello.")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.press("Enter")
        await studio.ended(1)
        await expect(page.get_by_label("Message", exact=True)).to_be_focused()

        await studio.last.get_by_role("button", name="Inspect").press("Enter")
        await page.get_by_role("tab", name="Events").press("ArrowRight")
        await expect(page.get_by_role("tab", name="Request")).to_be_focused()
        await expect(page.get_by_role("tabpanel", name="Request")).to_be_visible()
        await page.get_by_role("button", name="Close the inspector").press("Enter")
        await expect(page.get_by_role("button", name="Inspector")).to_be_focused()


async def test_hosted_tools_are_switched_on_shown_and_approved(studio: Studio) -> None:
    page = studio.page
    await studio.open_options()
    await page.get_by_label("demo (MCP)", exact=True).check()
    await studio.say("Please echo: hello")
    made = studio.last.get_by_role("group", name="MCP call")
    await expect(made).to_contain_text("echo")
    await expect(made.locator(".chip")).to_have_text("completed")
    await expect(made.get_by_role("region", name="Output")).to_be_visible()
    await expect(studio.last.get_by_text("tools", exact=False).first).to_be_visible()

    await studio.say("Now send it")
    wanted = studio.last.get_by_role("group", name="Approval needed")
    await expect(wanted).to_contain_text("send")
    await expect(page.locator("#status")).to_have_text("The model is waiting for you: 1 call.")
    await wanted.get_by_role("button", name="Approve").click()
    await studio.ended(3)
    await expect(studio.last.locator(".question")).to_have_text("Approved.")
    await expect(studio.last.get_by_role("group", name="MCP call")).to_contain_text("Sent:")

    await studio.say("Now send it once more")
    await studio.last.get_by_role("button", name="Deny").click()
    await studio.ended(5)
    await expect(studio.last.locator(".question")).to_have_text("Denied.")
    await expect(studio.last.get_by_role("group", name="MCP call")).to_have_count(0)


async def test_citations_of_an_answer_are_linked(studio: Studio, backend: Scripted) -> None:
    cited = {"url": "https://example.com/a", "title": "An example", "start_index": 4, "end_index": 10}
    evil = {"url": "javascript:alert(1)", "title": "Not a link", "start_index": 0, "end_index": 3}
    annotations = [{"type": "url_citation", "url_citation": one} for one in (cited, evil)]
    script = [delta(content="See this."), delta(annotations=annotations)]
    backend.scripts = [script]
    await studio.say("Where?")
    sources = studio.last.locator(".sources")
    await expect(sources.get_by_role("link", name="An example")).to_have_attribute("href", "https://example.com/a")
    await expect(sources.locator("li")).to_have_text(["An example", "Not a link"])
    await expect(sources.get_by_role("link")).to_have_count(1)


async def test_model_is_typed_where_the_backend_lists_none(browser: Browser) -> None:
    async with Upstream() as up:
        up.models = []
        up.say(sse(chunk("Hello."), finish(), DONE))
        async with antiphon(backend_url=up.url) as url, Studio.open(browser, url) as studio:
            await studio.page.get_by_label("Model name").fill("qwen3")
            await studio.say("Hello")
            await expect(studio.last).to_contain_text("Hello.")
        assert up.requests[-1].json["model"] == "qwen3"
