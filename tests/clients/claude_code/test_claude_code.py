"""Claude Code works in a directory: its requests are passed through to an Anthropic server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.clients.program import Ended, installed, run
from tests.support.message_events import (
    MessagesUpstream,
    counts,
    message,
    message_start,
    message_stream,
    text_block,
    tool_block,
)
from tests.support.messages_server import frame
from tests.support.serving import antiphon
from tests.support.upstream import CLOSE, Step, sse, status

COUNTED = counts(10, 7, cached=100, written=5)


class ClaudeCode(NamedTuple):
    """Claude Code in a new directory."""

    url: str
    directory: Path

    async def __call__(self, prompt: str, *options: str, key: str = "lab") -> Ended:
        """Run a task without interaction."""
        return await run(
            str(installed("@anthropic-ai/claude-code") / "bin" / "claude.exe"),
            *("--print", prompt, "--output-format", "json", "--allowedTools", "Bash,Read", *options),
            env={
                "ANTHROPIC_BASE_URL": self.url,
                "ANTHROPIC_API_KEY": key,
                "ANTHROPIC_MODEL": "m",
                "ANTHROPIC_SMALL_FAST_MODEL": "m",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "CLAUDE_CODE_MAX_RETRIES": "1",
            },
            cwd=self.directory,
        )


@pytest_asyncio.fixture
async def up() -> AsyncIterator[MessagesUpstream]:
    async with MessagesUpstream() as upstream:
        yield upstream


@pytest_asyncio.fixture
async def claude(up: MessagesUpstream, tmp_path: Path) -> AsyncIterator[ClaudeCode]:
    """Claude Code with an Antiphon without backend retries."""
    options: dict[str, Any] = {"backend_overrides": {"transport.messages": True}, "backend_retries": 0}
    async with antiphon(backend_url=up.url, backend_api_key="sk-backend", api_keys="lab", **options) as url:
        yield ClaudeCode(url, tmp_path)


def result(ended: Ended) -> Any:
    assert ended.out, ended.err
    return json.loads(ended.out.splitlines()[-1])


def bash(command: str) -> list[Step]:
    return message_stream(*tool_block(0, "Bash", {"command": command}), usage=COUNTED, stop="tool_use")


def saying(*pieces: str) -> list[Step]:
    return message_stream(*text_block(0, *pieces), usage=COUNTED)


async def test_claude_code_runs_commands_and_reads_files(claude: ClaudeCode, up: MessagesUpstream) -> None:
    path = claude.directory / "greeting.txt"
    up.say(bash(f"echo hello > {path}"))
    up.say(message_stream(*tool_block(0, "Read", {"file_path": str(path)}, id="toolu_2"), stop="tool_use"))
    up.say(saying("Do", "ne."))
    shown = result(await claude("Write a greeting."))
    assert (shown["subtype"], shown["result"], shown["num_turns"]) == ("success", "Done.", 3)
    assert path.read_text() == "hello\n"
    results = [request.json["messages"][-1]["content"][-1] for request in up.requests[1:]]
    assert [one["type"] for one in results] == ["tool_result"] * 2 and "hello" in str(results[1]["content"])
    for request in up.requests:
        assert request.headers["authorization"] == "Bearer sk-backend" and "x-api-key" not in request.headers
        assert request.headers["anthropic-version"] and request.headers["anthropic-beta"]


async def test_claude_code_shows_the_tokens_that_the_server_counted(claude: ClaudeCode, up: MessagesUpstream) -> None:
    up.say(saying("Hello."))
    usage = result(await claude("Say hello."))["usage"]
    assert {name: usage[name] for name in COUNTED} == COUNTED


async def test_claude_code_goes_on_after_its_own_tokens_are_used_up(claude: ClaudeCode, up: MessagesUpstream) -> None:
    up.say(message_stream(*text_block(0, "Hel"), stop="max_tokens"))
    up.say(saying("lo."))
    assert result(await claude("Say hello."))["result"] == "lo."


@pytest.mark.parametrize("key", ["lab", "other"])
async def test_claude_code_shows_a_refusal(claude: ClaudeCode, up: MessagesUpstream, key: str) -> None:
    up.always(status(404, {"type": "error", "error": {"type": "not_found_error", "message": "model: m"}}))
    shown = result(await claude("Say hello.", key=key))
    assert (shown["is_error"], shown["api_error_status"]) == (True, 404 if key == "lab" else 401)
    assert ("selected model (m)" if key == "lab" else "Incorrect API key provided.") in shown["result"]
    assert bool(up.requests) == (key == "lab")


async def test_claude_code_waits_for_what_may_pass(claude: ClaudeCode, up: MessagesUpstream) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    up.say(status(529, overloaded, {"Retry-After": "1"}))
    up.say(saying("Hello."))
    assert result(await claude("Say hello."))["result"] == "Hello."
    assert len(up.requests) == 2


@pytest.mark.parametrize("cut", ["cut", "error"])
async def test_claude_code_asks_without_a_stream_when_one_breaks_off(
    claude: ClaudeCode, up: MessagesUpstream, cut: str
) -> None:
    error = frame({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    up.say(sse(message_start(), *text_block(0, "Hel")[:-1], *([CLOSE] if cut == "cut" else [error])))
    up.say(message("Hello."))
    assert result(await claude("Say hello."))["result"] == "Hello."
    assert [request.json.get("stream") for request in up.requests] == [True, False]


async def test_claude_code_understands_that_a_prompt_is_too_long(up: MessagesUpstream, tmp_path: Path) -> None:
    options: dict[str, Any] = {"backend_overrides": {"transport.messages": True}, "max_input_tokens": 100}
    async with antiphon(backend_url=up.url, **options) as url:
        shown = result(await ClaudeCode(url, tmp_path)("Say hello."))
    assert shown["terminal_reason"] == "prompt_too_long" and shown["result"].startswith("Prompt is too long")
    assert not up.requests


async def test_session_of_claude_code_stays_with_one_replica(tmp_path: Path) -> None:
    async with MessagesUpstream() as one, MessagesUpstream() as two:
        for server in (one, two):
            server.say(bash("echo one"))
            server.say(bash("echo two"))
            server.always(saying("Done."))
        backends = {"pool": {"url": one.url, "replicas": [two.url], "overrides": {"transport.messages": True}}}
        async with antiphon(backends=backends) as url:
            shown = result(await ClaudeCode(url, tmp_path)("Say one and two."))
        assert shown["result"] == "Done."
        assert sorted((len(one.requests), len(two.requests))) == [0, 3]
