"""Codex works in a repository: in a shell, by patches, with tools of others, and through what it searches for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.answers import calling, saying
from tests.clients.program import Ended, installed, run
from tests.upstream import Upstream

MCP_SERVER = Path(__file__).parent / "mcp_server.py"

PATCH = """\
*** Begin Patch
*** Add File: greeting.txt
+He said "hello" \\ 😀
+	twice
*** End Patch"""


class Codex(NamedTuple):
    """Codex, with a home and a repository of its own."""

    server: str
    home: Path
    repository: Path

    async def exec(self, prompt: str, *settings: str, model: str = "m", provider: str = "lab") -> Ended:
        """
        Run one task, as scripts do; each line of the output is an event.

        A model that Codex has heard of comes with tools of its own. The provider `lab` is Antiphon as one configures
        it; `openai` is the one that is built in, which may be sent elsewhere.
        """
        options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        for setting in (f'model_provider="{provider}"', *settings):
            options += ["--config", setting]
        program = installed("@openai/codex") / "bin" / "codex.js"
        return await run(
            *("node", str(program), "exec", "--model", model, *options, prompt),
            env={"CODEX_HOME": str(self.home), "CODEX_API_KEY": "lab", "LAB_API_KEY": "lab"},
            cwd=self.repository,
        )

    @property
    def catalog(self) -> str:
        """The setting that makes Antiphon's list of models the catalog."""
        return f'model_providers.lab.model_catalog_url="{self.server}/models"'


@pytest.fixture
def codex(server: str, tmp_path: Path) -> Codex:
    """Codex in front of Antiphon, with a tool server beside it and nothing that needs the world outside."""
    home, repository = tmp_path / "home", tmp_path / "repository"
    home.mkdir()
    repository.mkdir()
    config = f"""
        web_search = "disabled"
        check_for_update_on_startup = false
        openai_base_url = "{server}"
        features.plugins = false

        [model_providers.lab]
        name = "Lab"
        base_url = "{server}"
        wire_api = "responses"
        env_key = "LAB_API_KEY"

        [mcp_servers.lab]
        command = "{sys.executable}"
        args = ["{MCP_SERVER}"]
    """
    (home / "config.toml").write_text(config)
    return Codex(server, home, repository)


def said(ended: Ended) -> list[str]:
    """What the agent said to its user."""
    assert ended.code == 0, ended.err
    items = [event["item"] for event in ended.lines if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def offered(upstream: Upstream) -> dict[str, Any]:
    """The functions that the model was told of in the last request, by name."""
    return {tool["function"]["name"]: tool["function"] for tool in upstream.requests[-1].json["tools"]}


def result(upstream: Upstream) -> str:
    """What the model was told of its last call in the last request."""
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
    assert said(await codex.exec("Write a greeting.", codex.catalog)) == ["Patched."]
    assert (codex.repository / "greeting.txt").read_text() == 'He said "hello" \\ 😀\n\ttwice\n'
    assert "start: begin_patch" in offered(upstream)["apply_patch"]["description"]
    assert "Success" in result(upstream)
    made = upstream.requests[-1].json["messages"][-2]["tool_calls"][0]["function"]
    assert json.loads(made["arguments"]) == {"input": PATCH}


async def test_codex_takes_a_patch_that_the_model_did_not_wrap(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("apply_patch", *PATCH.partition("File")))
    upstream.say(saying("Patched."))
    assert said(await codex.exec("Write a greeting.", codex.catalog)) == ["Patched."]
    assert (codex.repository / "greeting.txt").exists()


async def test_codex_calls_a_tool_of_a_tool_server(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("mcp__lab__add", '{"a": 2, "b": 3}'))
    upstream.say(saying("Five."))
    assert said(await codex.exec("Add 2 and 3.")) == ["Five."]
    assert "The sum is 5." in result(upstream)


async def test_codex_calls_a_tool_that_it_had_to_search_for(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("tool_search", '{"query": "add two numbers"}'))
    upstream.say(calling("mcp__lab__add", '{"a": 2, "b": 3}', id="call_2"))
    upstream.say(saying("Five."))
    assert said(await codex.exec("Add 2 and 3.", model="gpt-5.5")) == ["Five."]
    first, second, _ = ([tool["function"]["name"] for tool in one.json["tools"]] for one in upstream.requests)
    assert "mcp__lab__add" not in first and "mcp__lab__add" in second
    assert "The sum is 5." in result(upstream)


async def test_codex_runs_code_whose_tools_come_in_an_item(codex: Codex, upstream: Upstream) -> None:
    code = 'await tools.exec_command({cmd: "printf hello > greeting.txt"}); text("made " + 1)'
    upstream.say(calling("functions__exec", json.dumps({"input": code})))
    upstream.say(saying("Done."))
    assert said(await codex.exec("Write a greeting.", model="gpt-6-sol")) == ["Done."]
    assert (codex.repository / "greeting.txt").read_text() == "hello"
    assert "made 1" in result(upstream)


@pytest.mark.parametrize("provider", ["lab", "openai"])
async def test_codex_goes_on_from_a_summary_when_there_is_no_more_room(
    codex: Codex, upstream: Upstream, provider: str
) -> None:
    upstream.say(calling("exec_command", '{"cmd": "echo written"}', tokens=30_000))
    upstream.say(saying("We have written."))
    upstream.say(saying("Done."))
    ended = await codex.exec("Write.", "model_auto_compact_token_limit=20000", model="gpt-5.5", provider=provider)
    assert said(ended) == ["Done."]
    _, asked, continued = (one.json for one in upstream.requests)
    assert "tools" not in asked
    assert "We have written." in continued["messages"][-1]["content"]
    assert "tool" not in [message["role"] for message in continued["messages"]]


async def test_codex_gets_its_instructions_from_the_catalog_and_they_are_one_message(
    codex: Codex, upstream: Upstream
) -> None:
    upstream.say(saying("Hello."))
    assert said(await codex.exec("Say hello.", codex.catalog)) == ["Hello."]
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles[0] == "system" and roles.count("system") == 1
    assert upstream.requests[-1].json["messages"][0]["content"].startswith("You are a coding agent.")
