"""Codex works in a repository: in a shell, by patches, with tools of others, and through what it searches for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.program import Ended, installed, run
from tests.upstream import DONE, Upstream, call, chunk, finish, sse, usage

MCP_SERVER = Path(__file__).parent / "mcp_server.py"

PATCH = """\
*** Begin Patch
*** Add File: greeting.txt
+He said "hello" \\ 😀
+	twice
*** End Patch"""


class Codex(NamedTuple):
    """Codex with a home and a repository of its own."""

    home: Path
    repository: Path

    async def exec(self, prompt: str) -> Ended:
        """Run one task, as scripts do; each line of the output is an event."""
        program = installed("@openai/codex") / "bin" / "codex.js"
        return await run(
            "node",
            str(program),
            "exec",
            "--json",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
            prompt,
            env={"CODEX_HOME": str(self.home), "LAB_API_KEY": "lab"},
            cwd=self.repository,
        )


@pytest.fixture
def codex(server: str, tmp_path: Path) -> Codex:
    """Codex, told of Antiphon as its provider, whose list of models is also its catalog."""
    home, repository = tmp_path / "home", tmp_path / "repository"
    home.mkdir()
    repository.mkdir()
    config = f"""
        model = "m"
        model_provider = "lab"
        web_search = "disabled"
        check_for_update_on_startup = false

        [model_providers.lab]
        name = "Lab"
        base_url = "{server}"
        model_catalog_url = "{server}/models"
        wire_api = "responses"
        env_key = "LAB_API_KEY"

        [mcp_servers.lab]
        command = "{sys.executable}"
        args = ["{MCP_SERVER}"]
    """
    (home / "config.toml").write_text(config)
    return Codex(home, repository)


def calling(name: str, *pieces: str) -> list[Any]:
    """An answer that calls one function, its arguments in pieces."""
    start = call(id="call_1", name=name)
    return sse(start, *(call(arguments=piece) for piece in pieces), finish("tool_calls"), usage(), DONE)


def saying(text: str) -> list[Any]:
    return sse(chunk(text), finish(), usage(), DONE)


def said(ended: Ended) -> list[str]:
    """What the agent said to its user."""
    assert ended.code == 0, ended.err
    items = [event["item"] for event in ended.lines if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def offered(upstream: Upstream) -> dict[str, Any]:
    """The functions that the model was told of in the last request, by name."""
    return {tool["function"]["name"]: tool["function"] for tool in upstream.requests[-1].json["tools"]}


def result(upstream: Upstream) -> str:
    """What the model was told of its call in the last request."""
    *_, made, told = upstream.requests[-1].json["messages"]
    assert told["role"] == "tool"
    assert told["tool_call_id"] == made["tool_calls"][0]["id"]
    return str(told["content"])


async def test_codex_edits_a_file_in_its_shell(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("exec_command", '{"cmd": "printf ', "hello > greeting.txt && echo ", 'written"}'))
    upstream.say(saying("Done."))
    assert said(await codex.exec("Write a greeting.")) == ["Done."]
    assert (codex.repository / "greeting.txt").read_text() == "hello"
    assert "written" in result(upstream)


async def test_codex_edits_a_file_by_a_patch(codex: Codex, upstream: Upstream) -> None:
    arguments = json.dumps({"input": PATCH})
    upstream.say(calling("apply_patch", *(arguments[at : at + 3] for at in range(0, len(arguments), 3))))
    upstream.say(saying("Patched."))
    assert said(await codex.exec("Write a greeting.")) == ["Patched."]
    assert (codex.repository / "greeting.txt").read_text() == 'He said "hello" \\ 😀\n\ttwice\n'
    assert "start: begin_patch" in offered(upstream)["apply_patch"]["description"]
    assert "Success" in result(upstream)
    made = upstream.requests[-1].json["messages"][-2]["tool_calls"][0]["function"]
    assert json.loads(made["arguments"]) == {"input": PATCH}


async def test_codex_takes_a_patch_that_the_model_did_not_wrap(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("apply_patch", *PATCH.partition("File")))
    upstream.say(saying("Patched."))
    assert said(await codex.exec("Write a greeting.")) == ["Patched."]
    assert (codex.repository / "greeting.txt").exists()


async def test_codex_calls_a_tool_of_a_tool_server(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("mcp__lab__add", '{"a": 2, "b": 3}'))
    upstream.say(saying("Five."))
    assert said(await codex.exec("Add 2 and 3.")) == ["Five."]
    assert "mcp__lab__add" in offered(upstream)
    assert "The sum is 5." in result(upstream)


async def test_codex_knows_the_models_and_their_contexts(codex: Codex, upstream: Upstream) -> None:
    upstream.say(saying("Hello."))
    ended = await codex.exec("Say hello.")
    assert said(ended) == ["Hello."]
    system, *_ = upstream.requests[-1].json["messages"]
    assert system["role"] == "system" and system["content"].startswith("You are a coding agent.")
    assert [message["role"] for message in upstream.requests[-1].json["messages"]].count("system") == 1
