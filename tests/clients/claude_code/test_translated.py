"""Claude Code with a Chat Completions model: its requests are translated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fastapi import FastAPI

from tests.clients.answers import calling, saying
from tests.clients.claude_code.test_claude_code import ClaudeCode, result
from tests.support.serving import antiphon, serving
from tests.support.upstream import CLOSE, DONE, Upstream, chunk, finish, sse, status, usage

FOUND = "https://lovelace.example.org/notes"


@pytest_asyncio.fixture
async def claude(upstream: Upstream, tmp_path: Path) -> AsyncIterator[ClaudeCode]:
    async with antiphon(backend_url=upstream.url, api_keys="lab", backend_retries=0) as url:
        yield ClaudeCode(url, tmp_path)


def using(name: str, **arguments: Any) -> list[Any]:
    return calling(name, *json.dumps(arguments).partition(": "), id=f"call_{name}")


def results(upstream: Upstream) -> list[str]:
    """Call results in the last request."""
    messages = upstream.requests[-1].json["messages"]
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


async def test_claude_code_edits_a_file_with_a_chat_model(claude: ClaudeCode, upstream: Upstream) -> None:
    path = claude.directory / "greeting.txt"
    upstream.say(using("Bash", command=f"echo hello world > {path}"))
    upstream.say(using("Read", file_path=str(path)))
    upstream.say(using("Edit", file_path=str(path), old_string="world", new_string="Ada"))
    upstream.say(sse(chunk("Do"), finish("length"), usage(), DONE))  # the answer is cut, and continued
    upstream.say(saying("ne."))
    shown = result(await claude("Greet Ada.", "--allowedTools", "Bash,Read,Edit"))
    assert (shown["subtype"], shown["result"]) == ("success", "ne.")
    assert path.read_text() == "hello Ada\n"
    assert "hello world" in results(upstream)[1]
    assert len(results(upstream)) == 3 and len(upstream.requests) == 5
    assert {request.path for request in upstream.requests} == {"/v1/chat/completions"}


async def test_claude_code_keeps_the_beginning_of_its_prompt(claude: ClaudeCode, upstream: Upstream) -> None:
    """Each request begins with the previous request, so the server's cache is used."""
    upstream.say(using("Bash", command="echo one"))
    upstream.say(using("Bash", command="echo two"))
    upstream.say(saying("Done."))
    assert result(await claude("Say one and two."))["result"] == "Done."
    first, second, third = (request.json["messages"] for request in upstream.requests)
    assert second[: len(first)] == first and third[: len(second)] == second


async def test_claude_code_sends_thoughts_back(upstream: Upstream, tmp_path: Path) -> None:
    overrides = {"request.reasoning_replay": "always", "request.reasoning_field": "reasoning_content"}
    thought, *rest = using("Bash", command="echo one")
    upstream.say([thought, *sse(chunk(reasoning_content="One first."))[1:-1], *rest])
    upstream.say(saying("Done."))
    async with antiphon(backend_url=upstream.url, backend_overrides=overrides) as url:
        assert result(await ClaudeCode(url, tmp_path)("Say one."))["result"] == "Done."
    thoughts = [message.get("reasoning_content") for message in upstream.requests[-1].json["messages"]]
    assert [thought for thought in thoughts if thought] == ["One first."]


@pytest.mark.parametrize("key", ["lab", "other"])
async def test_claude_code_shows_a_refusal_of_a_chat_model(claude: ClaudeCode, upstream: Upstream, key: str) -> None:
    upstream.always(status(400, {"error": {"message": "The prompt is odd.", "code": "invalid_prompt"}}))
    shown = result(await claude("Say hello.", key=key))
    assert (shown["is_error"], shown["api_error_status"]) == (True, 400 if key == "lab" else 401)
    assert ("The prompt is odd." if key == "lab" else "Incorrect API key provided.") in shown["result"]


async def test_claude_code_asks_again_when_a_chat_stream_breaks_off(claude: ClaudeCode, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), 0.3, CLOSE))
    upstream.say(saying("Hello."))
    assert result(await claude("Say hello."))["result"] == "Hello."
    assert len(upstream.requests) == 2


async def test_claude_code_understands_that_a_chat_prompt_is_too_long(claude: ClaudeCode, upstream: Upstream) -> None:
    words = "This model's maximum context length is 8192 tokens."
    upstream.always(status(400, {"error": {"message": words, "code": "context_length_exceeded"}}))
    shown = result(await claude("Say hello."))
    assert shown["terminal_reason"] == "prompt_too_long"


async def test_claude_code_searches_the_web_on_this_server(upstream: Upstream, tmp_path: Path) -> None:
    searxng = FastAPI()
    searxng.get("/search")(lambda: {"results": [{"url": FOUND, "title": "Notes", "content": "About the Engine."}]})
    upstream.say(using("WebSearch", query="Ada Lovelace"))
    upstream.say(using("web_search", query="Ada Lovelace"))  # a separate request with the server's tool
    upstream.say(saying("She wrote notes."))
    upstream.say(saying("Done."))
    async with (
        serving(searxng) as url,
        antiphon(backend_url=upstream.url, tools={"web_search": {"url": url}}) as server,
    ):
        claude = ClaudeCode(server, tmp_path)
        shown = result(await claude("Search for Ada Lovelace.", "--allowedTools", "WebSearch"))
    assert shown["result"] == "Done."
    assert FOUND in results(upstream)[0]
