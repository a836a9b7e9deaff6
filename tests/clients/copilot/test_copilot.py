"""GitHub Copilot's CLI works in a directory with this server as its provider, and ends where the backend fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from app.main import create_app
from tests.clients.answers import calling, saying
from tests.clients.program import Ended, installed, run
from tests.clients.wire import Wire
from tests.support.serving import serving, settings
from tests.support.upstream import CLOSE, Upstream, chunk, sse, status

# The program for one platform; the package `@github/copilot` chooses among these.
PACKAGE = "@github/copilot-linux-x64"
OPTIONS = ("--allow-all-tools", "--disable-builtin-mcps", "--no-auto-update", "--no-ask-user", "--no-color", "--silent")


class Copilot(NamedTuple):
    """Copilot in a new directory."""

    server: str
    directory: Path

    async def __call__(self, prompt: str, **variables: str) -> Ended:
        """Run a task without interaction."""
        env = {
            "COPILOT_PROVIDER_BASE_URL": self.server,
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "COPILOT_PROVIDER_API_KEY": "lab",
            "COPILOT_MODEL": "m",
            "COPILOT_OFFLINE": "true",
            **variables,
        }
        return await run(str(installed(PACKAGE) / "copilot"), "-p", prompt, *OPTIONS, env=env, cwd=self.directory)


@pytest_asyncio.fixture
async def server(upstream: Upstream, wire: Wire) -> AsyncIterator[str]:
    """An Antiphon without backend retries."""
    app = create_app(settings(backend_url=upstream.url, backend_retries=0, api_keys=["lab"]))
    async with serving(wire.before(app)) as url:
        yield f"{url}/v1"


@pytest.fixture
def copilot(server: str, tmp_path: Path) -> Copilot:
    return Copilot(server, tmp_path)


@pytest.mark.parametrize("transport", ["http", "websockets"])
async def test_copilot_runs_a_command_and_goes_on(
    copilot: Copilot, upstream: Upstream, wire: Wire, transport: str
) -> None:
    command = {"command": "echo Hello > hello.txt", "description": "Write a file"}
    upstream.say(calling("bash", *json.dumps(command).partition(": ")))
    upstream.say(saying("It is ", "written."))
    ended = await copilot("Write a file.", COPILOT_PROVIDER_TRANSPORT=transport)
    assert "It is written." in ended.out, ended.err
    assert (copilot.directory / "hello.txt").read_text() == "Hello\n"
    assert upstream.requests[-1].json["messages"][-1]["role"] == "tool"
    assert {exchange.transport for exchange in wire.responses} == {transport.removesuffix("s")}


async def test_copilot_shows_the_words_of_a_refusal(copilot: Copilot, upstream: Upstream) -> None:
    upstream.always(status(400, {"error": {"message": "The prompt is odd.", "code": "invalid_prompt"}}))
    ended = await copilot("Say hello.")
    assert "The prompt is odd." in ended.out + ended.err
    assert ended.code


async def test_copilot_retries_when_a_stream_breaks_off(copilot: Copilot, upstream: Upstream) -> None:
    upstream.say(sse(chunk("Hel"), 0.3, {"error": {"message": "The GPU is on fire.", "type": "server_error"}}, CLOSE))
    upstream.say(saying("Hello."))
    ended = await copilot("Say hello.")
    assert "Hello." in ended.out, ended.err
    assert len(upstream.requests) == 2
