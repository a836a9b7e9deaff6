"""`antiphon codex` runs Codex with the server of the settings, and leaves Codex's own configuration alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clients.answers import calling, saying
from tests.clients.codex.program import agent_messages, troubles
from tests.clients.program import PACKAGES, Ended, installed, run
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

ROOT = Path(__file__).parents[3]
EXEC = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An empty directory to work in, with Codex's home in it."""
    installed("@openai/codex")
    (tmp_path / "home").mkdir()
    return tmp_path


async def command(server: str, directory: Path, *arguments: str, **variables: str) -> Ended:
    """Run `antiphon codex` with the server's address in the settings."""
    env = {
        "PATH": f"{PACKAGES / '.bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CODEX_HOME": str(directory / "home"),
        "ANTIPHON_PORT": str(urlsplit(server).port),
        **variables,
    }
    return await run(sys.executable, "-m", "app", "codex", *arguments, env=env, cwd=directory)


def tools(upstream: Upstream) -> list[str]:
    return [tool["function"]["name"] for tool in upstream.requests[0].json["tools"]]


async def test_antiphon_codex_works_in_a_directory_with_the_first_model(
    server: str, upstream: Upstream, directory: Path
) -> None:
    upstream.say(calling("exec_command", '{"cmd": "printf hello > greeting.txt"}'))
    upstream.say(saying("Done."))
    assert agent_messages(await command(server, directory, "--", *EXEC, "Write a greeting.")) == ["Done."]
    assert (directory / "greeting.txt").read_text() == "hello"
    assert upstream.requests[0].json["model"] == "m"
    assert "apply_patch" in tools(upstream)  # the catalog was read
    assert not (directory / "home" / "config.toml").exists()


async def test_antiphon_codex_with_another_model_uses_it(server: str, upstream: Upstream, directory: Path) -> None:
    upstream.say(saying("Hello."))
    assert agent_messages(await command(server, directory, *EXEC, "--model", "other", "Say hello.")) == ["Hello."]
    assert upstream.requests[0].json["model"] == "other"


async def test_antiphon_codex_sends_the_key_of_the_settings(upstream: Upstream, directory: Path) -> None:
    upstream.say(saying("Hello."))
    async with antiphon(backend_url=upstream.url, api_keys=["hush", "other"]) as server:
        ended = await command(server, directory, *EXEC, "Say hello.", ANTIPHON_API_KEYS="hush,other")
        assert agent_messages(ended) == ["Hello."]
        assert "apply_patch" in tools(upstream)
        assert "hush" not in ended.out + ended.err

        # The key is only sent to the server in the settings.
        refused = await command(
            "http://x:1", directory, "--url", f"{server}/v1", *EXEC, "Hi.", ANTIPHON_API_KEYS="hush"
        )
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("Send your API key") and "401 invalid_api_key" in refused.err


async def test_antiphon_codex_prints_lines_that_are_a_configuration(
    server: str, upstream: Upstream, directory: Path
) -> None:
    upstream.say(saying("Hello."))
    printed = await command(server, directory, "--print")
    assert printed.out.startswith('model = "m"\nmodel_provider = "antiphon"\n')
    (directory / "home" / "config.toml").write_text(printed.out)
    env = {"CODEX_HOME": str(directory / "home")}
    codex = str(PACKAGES / ".bin" / "codex")
    ended = await run(codex, *EXEC, "Say hello.", env=env, cwd=directory)
    assert agent_messages(ended) == ["Hello."]
    assert "apply_patch" in tools(upstream)
    assert not troubles(ended)


async def test_antiphon_codex_names_what_is_missing(server: str, directory: Path) -> None:
    nowhere: dict[str, Any] = {"PATH": str(directory)}
    missing = await command(server, directory, *EXEC, "Say hello.", **nowhere)
    assert (missing.code, missing.err) == (127, "Codex is not installed: npm install --global @openai/codex\n")
