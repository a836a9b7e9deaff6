"""Codex works in a repository: shell, patches, MCP tools and web search."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.clients.answers import calling, saying
from tests.clients.codex.program import Codex, agent_messages
from tests.support.serving import antiphon
from tests.support.upstream import Upstream

PATCH = """\
*** Begin Patch
*** Add File: greeting.txt
+He said "hello" \\ 😀
+	twice
*** End Patch"""


def offered(upstream: Upstream) -> dict[str, Any]:
    """Functions in the last model request, by name."""
    return {tool["function"]["name"]: tool["function"] for tool in upstream.requests[-1].json["tools"]}


def result(upstream: Upstream) -> str:
    """The result of the last call, as the last request contains it."""
    *_, made, tool_message = upstream.requests[-1].json["messages"]
    assert tool_message["role"] == "tool"
    assert tool_message["tool_call_id"] == made["tool_calls"][0]["id"]
    return str(tool_message["content"])


async def test_codex_edits_a_file_in_its_shell(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("exec_command", '{"cmd": "printf ', "hello > greeting.txt && echo ", 'written"}'))
    upstream.say(saying("Done."))
    assert agent_messages(await codex.exec("Write a greeting.")) == ["Done."]
    assert (codex.repository / "greeting.txt").read_text() == "hello"
    assert "written" in result(upstream)


async def test_codex_edits_a_file_by_a_patch(codex: Codex, upstream: Upstream) -> None:
    arguments = json.dumps({"input": PATCH})
    upstream.say(calling("apply_patch", *(arguments[at : at + 3] for at in range(0, len(arguments), 3))))
    upstream.say(saying("Patched."))
    assert agent_messages(await codex.exec("Write a greeting.", codex.catalog)) == ["Patched."]
    assert (codex.repository / "greeting.txt").read_text() == 'He said "hello" \\ 😀\n\ttwice\n'
    assert "start: begin_patch" in offered(upstream)["apply_patch"]["description"]
    assert "Success" in result(upstream)
    made = upstream.requests[-1].json["messages"][-2]["tool_calls"][0]["function"]
    assert json.loads(made["arguments"]) == {"input": PATCH}


async def test_codex_accepts_a_patch_that_the_model_did_not_wrap(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("apply_patch", *PATCH.partition("File")))
    upstream.say(saying("Patched."))
    assert agent_messages(await codex.exec("Write a greeting.", codex.catalog)) == ["Patched."]
    assert (codex.repository / "greeting.txt").exists()


@pytest.mark.parametrize("profile", ["vllm", "sglang", "llama.cpp"])
async def test_codex_patch_grammar_is_enforced_by_backends_that_can(
    codex: Codex, upstream: Upstream, profile: str
) -> None:
    upstream.say(saying("Hello."))
    async with antiphon(backend_url=upstream.url, backend_profile=profile) as url:
        settings = [f'model_providers.lab.base_url="{url}/v1"', codex._replace(server=f"{url}/v1").catalog]
        assert agent_messages(await codex.exec("Say hello.", *settings)) == ["Hello."]
    pattern = offered(upstream)["apply_patch"]["parameters"]["properties"]["input"]["pattern"]
    in_json = json.dumps(PATCH)[1:-1]
    assert re.search(pattern, in_json)
    assert not re.search(pattern, in_json.replace("+", "", 1))


async def test_codex_calls_a_tool_of_an_mcp_server(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("mcp__lab__add", '{"a": 2, "b": 3}'))
    upstream.say(saying("Five."))
    assert agent_messages(await codex.exec("Add 2 and 3.")) == ["Five."]
    assert "The sum is 5." in result(upstream)


async def test_codex_calls_a_tool_found_by_tool_search(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("tool_search", '{"query": "add two numbers"}'))
    upstream.say(calling("mcp__lab__add", '{"a": 2, "b": 3}', id="call_2"))
    upstream.say(saying("Five."))
    assert agent_messages(await codex.exec("Add 2 and 3.", model="gpt-5.5")) == ["Five."]
    first, second, _ = ([tool["function"]["name"] for tool in one.json["tools"]] for one in upstream.requests)
    assert "mcp__lab__add" not in first and "mcp__lab__add" in second
    assert "The sum is 5." in result(upstream)


async def test_codex_runs_code_whose_tools_come_in_an_item(codex: Codex, upstream: Upstream) -> None:
    code = 'await tools.exec_command({cmd: "printf hello > greeting.txt"}); text("made " + 1)'
    upstream.say(calling("functions__exec", json.dumps({"input": code})))
    upstream.say(saying("Done."))
    assert agent_messages(await codex.exec("Write a greeting.", model="gpt-6-sol")) == ["Done."]
    assert (codex.repository / "greeting.txt").read_text() == "hello"
    assert "made 1" in result(upstream)


@pytest.mark.parametrize("provider", ["lab", "openai"])
async def test_codex_at_a_full_context_goes_on_from_a_summary(codex: Codex, upstream: Upstream, provider: str) -> None:
    upstream.say(calling("exec_command", '{"cmd": "echo written"}', tokens=30_000))
    upstream.say(saying("We have written."))
    upstream.say(saying("Done."))
    ended = await codex.exec("Write.", "model_auto_compact_token_limit=20000", model="gpt-5.5", provider=provider)
    assert agent_messages(ended) == ["Done."]
    _, compaction, continued = (one.json for one in upstream.requests)
    assert "tools" not in compaction
    assert "We have written." in continued["messages"][-1]["content"]
    assert "tool" not in [message["role"] for message in continued["messages"]]


async def test_codex_instructions_from_the_catalog_are_one_message(codex: Codex, upstream: Upstream) -> None:
    upstream.say(saying("Hello."))
    assert agent_messages(await codex.exec("Say hello.", codex.catalog)) == ["Hello."]
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles[0] == "system" and roles.count("system") == 1
    assert upstream.requests[-1].json["messages"][0]["content"].startswith("You are a coding agent.")


async def test_codex_instructions_for_one_system_message_are_joined(codex: Codex, upstream: Upstream) -> None:
    upstream.say(calling("functions__exec", '{"input": "text(1)"}'))
    upstream.say(saying("Done."))
    one = {"request.roles.system": "single_first"}
    async with antiphon(backend_url=upstream.url, backend_overrides=one) as url:
        ended = await codex.exec("Write.", f'model_providers.lab.base_url="{url}/v1"', model="gpt-6-sol")
    assert agent_messages(ended) == ["Done."]
    for request in upstream.requests:
        roles = [message["role"] for message in request.json["messages"]]
        assert roles[0] == "system" and roles.count("system") == 1 and "developer" not in roles
