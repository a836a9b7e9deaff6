"""Chat Completions clients with other backends and with a hosted tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.answers import PLACES, asking_for_the_weather, saying
from tests.clients.clients import CLIENTS, Client, Driver
from tests.support.message_events import message_stream, text_block, tool_block
from tests.support.native import Native
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, Step, Upstream, call, chunk, finish, sse

PYTHON = Client("openai_chat/driver.py", "openai-3")
LANGCHAIN = Client("langchain/driver.py", "openai-3", {"API": "chat"})
CHAT_CLIENTS = pytest.mark.parametrize("client", [PYTHON, LANGCHAIN], ids=["openai", "langchain"])
APIS = pytest.mark.parametrize("api", ["chat", "responses", "messages"])
ADA = {"name": "Ada Lovelace", "born": 1815}


class AnyUpstream(Upstream):
    native = True


def words(api: str, *pieces: str) -> list[Step]:
    """An answer in words."""
    match api:
        case "responses":
            return Native().message(*pieces).completed().steps()
        case "messages":
            return message_stream(*text_block(0, *pieces))
    return saying(*pieces)


def calls(api: str) -> list[Step]:
    """An answer with weather calls for two places."""
    match api:
        case "responses":
            answer = Native()
            for place in PLACES:
                answer.call("weather", '{"place": ', f'"{place}"}}', call_id=f"call_{place}")
            return answer.completed().steps()
        case "messages":
            blocks = [
                step
                for index, place in enumerate(PLACES)
                for step in tool_block(index, "weather", {"place": place}, id=f"toolu_{place}")
            ]
            return message_stream(*blocks, stop="tool_use")
    return asking_for_the_weather()


@asynccontextmanager
async def server(api: str, **values: Any) -> AsyncIterator[tuple[Upstream, str]]:
    """A server that translates all chat completions, with a scripted backend; yields backend and base URL."""
    overrides = {"transport.api": api, "transport.passthrough": "never"}
    async with (
        AnyUpstream() as up,
        antiphon(backend_url=up.url, backend_retries=0, backend_overrides=overrides, **values) as url,
    ):
        yield up, f"{url}/v1"


@APIS
@CHAT_CLIENTS
async def test_chat_client_shows_text(client: Client, api: str, tmp_path: Path) -> None:
    async with server(api) as (up, url):
        driver = Driver(client, url, tmp_path)
        up.say(words(api, "Hello", "."))
        assert (await driver.shows("text"))["text"] == "Hello."
        up.say(words(api, "Hello", "."))
        shown = await driver.shows("stream")
        assert (shown["text"], shown["pieces"]) == ("Hello.", ["Hello", "."])
        if client is PYTHON:
            assert (shown["finish"], shown["counted"]) == ("stop", True)


@APIS
@CHAT_CLIENTS
@pytest.mark.parametrize("scenario", ["tools", "tools_streamed"])
async def test_chat_client_calls_two_functions(client: Client, api: str, scenario: str, tmp_path: Path) -> None:
    async with server(api) as (up, url):
        up.say(calls(api))
        up.say(words(api, "Sunny in both."))
        assert await Driver(client, url, tmp_path).shows(scenario) == {"text": "Sunny in both."}
        sent = json.dumps(up.requests[1].json)
        assert all(f"Sunny in {place}." in sent for place in PLACES)


@APIS
@CHAT_CLIENTS
async def test_chat_client_reads_structured_output(client: Client, api: str, tmp_path: Path) -> None:
    async with server(api) as (up, url):
        up.say(words(api, '{"name": "Ada Love', 'lace", "born": 1815}'))
        assert await Driver(client, url, tmp_path).shows("structured") == ADA


@APIS
async def test_tool_runner_of_chat_completions_calls_functions(api: str, tmp_path: Path) -> None:
    async with server(api) as (up, url):
        up.say(calls(api))
        up.say(words(api, "Sunny in both."))
        shown = await Driver(CLIENTS["openai-node"], url, tmp_path).shows("chat_runner")
        assert shown == {"text": "Sunny in both."}


@CHAT_CLIENTS
async def test_chat_client_is_shown_the_answer_after_a_hosted_tool(client: Client, tmp_path: Path) -> None:
    tools = {"lab": {"tool": "tests.support.hosted_lab:LabTool"}}
    async with server("chat", tools=tools) as (up, url):
        up.say(sse(call(id="c1", name="lab__echo", arguments='{"text": "42"}'), finish("tool_calls")))
        up.say(saying("It is 42."))
        shown = await Driver(client, url, tmp_path).shows("hosted_by_chat")
        assert (shown["text"], shown["calls"] or None) == ("It is 42.", None)
        assert "42" in json.dumps(up.requests[1].json["messages"][-1])


@CHAT_CLIENTS
async def test_chat_client_takes_no_broken_stream_for_an_answer(client: Client, tmp_path: Path) -> None:
    async with server("chat") as (up, url):
        up.say(sse(chunk("Hel"), CLOSE))
        failed = await Driver(client, url, tmp_path).fails("stream")
        assert failed["error"] == "APIError"
        up.say(words("chat", "Hello."))
        refused = await Driver(client, url, tmp_path).fails("text", model="")
        assert "Missing required parameter: 'model'." in refused["message"]
