"""opencode works in a directory, thinks aloud, and ends: also where the backend does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from app.core.dialects import DIALECTS, dialect_of
from app.main import create_app
from tests.clients.answers import calling, saying, thinking
from tests.clients.program import Ended, installed, run
from tests.clients.wire import Wire
from tests.core.test_dialects import AGENTS, version
from tests.support.serving import serving, settings
from tests.support.upstream import CLOSE, DONE, Upstream, chunk, finish, sse, status, usage

# The program for one platform; the package `opencode-ai` chooses among these.
PACKAGE = "opencode-linux-x64-baseline"
# It asks the network for nothing: models, itself, and a package for plugins, which it would install in each directory.
OFFLINE = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "npm_config_offline": "true"}


class Opencode(NamedTuple):
    """opencode in a new directory."""

    directory: Path

    async def __call__(self, prompt: str) -> Ended:
        """Run a task without interaction; each output line is an event."""
        return await run(
            str(installed(PACKAGE) / "bin" / "opencode"),
            *("run", "--pure", "--auto", "--thinking", "--format", "json", "--title", "A task", prompt),
            env=OFFLINE,
            cwd=self.directory,
        )


@pytest_asyncio.fixture
async def server(upstream: Upstream, wire: Wire) -> AsyncIterator[str]:
    """An Antiphon without backend retries."""
    app = create_app(settings(backend_url=upstream.url, backend_retries=0, api_keys=["lab"]))
    async with serving(wire.before(app)) as url:
        yield f"{url}/v1"


@pytest.fixture(params=["lab"])
def opencode(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> Opencode:
    """opencode, configured for Antiphon, with a key."""
    provider = {
        "npm": "@ai-sdk/openai",
        "name": "Antiphon",
        "options": {"baseURL": server, "apiKey": request.param},
        "models": {"m": {"tool_call": True, "reasoning": True, "limit": {"context": 32_000, "output": 4_000}}},
    }
    config = {"provider": {"antiphon": provider}, "model": "antiphon/m", "share": "disabled"}
    (tmp_path / "opencode.json").write_text(json.dumps(config))
    return Opencode(tmp_path)


def parts(ended: Ended, kind: str) -> list[Any]:
    return [event["part"] for event in ended.lines if event["type"] == kind]


def troubles(ended: Ended) -> list[str]:
    return [event["error"]["data"]["message"] for event in ended.lines if event["type"] == "error"]


async def test_opencode_writes_a_file_and_goes_on(opencode: Opencode, upstream: Upstream) -> None:
    path = opencode.directory / "greeting.txt"
    upstream.say(calling("write", json.dumps({"filePath": str(path), "content": "hello"})))
    upstream.say(thinking("It is done.", "Done", "."))
    ended = await opencode("Write a greeting.")
    assert ended.code == 0, ended.err
    assert path.read_text() == "hello"
    assert [part["text"] for part in parts(ended, "text")] == ["Done."]
    assert [part["text"] for part in parts(ended, "reasoning")] == ["It is done."]
    assert [part["tokens"]["input"] for part in parts(ended, "step_finish")] == [5, 5]
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    assert len(upstream.requests) == 2


async def test_opencode_sends_its_user_agent(opencode: Opencode, upstream: Upstream, wire: Wire) -> None:
    upstream.always(saying("Hello."))
    await opencode("Say hello.")
    assert wire.responses
    for exchange in wire.responses:
        assert dialect_of(exchange.request_headers) == DIALECTS["openai-summary"]
        assert version(exchange.request_headers["user-agent"]) in map(version, AGENTS)


@pytest.mark.parametrize(("code", "headers"), [(429, {"Retry-After": "1"}), (503, {"Retry-After": "1"}), (500, {})])
async def test_opencode_at_a_429_waits(
    opencode: Opencode, upstream: Upstream, code: int, headers: dict[str, str]
) -> None:
    upstream.say(status(code, {"error": {"message": "Slow down."}}, headers))
    upstream.say(saying("Hello."))
    ended = await opencode("Say hello.")
    assert [part["text"] for part in parts(ended, "text")] == ["Hello."]
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("opencode", "words"),
    [("lab", "The model 'm' does not exist."), ("other", "Incorrect API key provided.")],
    indirect=["opencode"],
)
async def test_opencode_at_a_refusal_shows_its_message(opencode: Opencode, upstream: Upstream, words: str) -> None:
    upstream.always(status(404, {"error": {"message": "The model 'm' does not exist."}}))
    ended = await opencode("Say hello.")
    assert ended.code == 1
    assert words in troubles(ended)[-1]


async def test_opencode_at_an_incomplete_answer_shows_its_text(opencode: Opencode, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), finish("length"), usage(), DONE))
    ended = await opencode("Say hello.")
    assert [part["text"] for part in parts(ended, "text")] == ["Hel"]
    assert len(upstream.requests) == 1


async def test_opencode_at_a_stream_that_breaks_off_retries(opencode: Opencode, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), 0.3, {"error": {"message": "The GPU is on fire."}}, CLOSE))
    upstream.say(saying("Hello."))
    ended = await opencode("Say hello.")
    assert [part["text"] for part in parts(ended, "text")][-1] == "Hello."
    assert len(upstream.requests) == 2


async def test_opencode_at_a_full_context_summarizes(opencode: Opencode, upstream: Upstream) -> None:
    error = {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"}
    upstream.say(status(400, {"error": error}))
    upstream.say(saying("The user wants to be greeted."))
    upstream.say(saying("Hello."))
    ended = await opencode("Say hello.")
    assert troubles(ended) == [error["message"]]
    assert [part["text"] for part in parts(ended, "text")][-1] == "Hello."
    assert "The user wants to be greeted." in str(upstream.requests[-1].json["messages"])
