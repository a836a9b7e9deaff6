"""Dialects by each client's real headers."""

from __future__ import annotations

import re

import pytest

from app.core.dialects import DIALECTS, dialect_of, needs_strings

AGENTS = {
    "OpenAI/Python 3.54.0": "openai-compacting",
    "AsyncOpenAI/Python 4.1.0": "openai-compacting",
    "OpenAI/Python 3.9.0": "openai",
    "OpenAI/Python 2.54.0": "openai",
    "AsyncOpenAI/Python 2.54.0": "openai",
    "OpenAI/JS 7.57.0": "openai",
    "OpenAI/JS 6.49.0": "openai",
    "Agents/Python 0.24.0": "openai",
    "Agents/JavaScript 0.20.0": "openai-summary",
    "pydantic-ai/2.68.0": "openai",
    "langchainjs-openai/1.0.0 ((node/v24.19.0; linux; x64))": "openai-summary",
    "langchainjs-azure-openai/1.0.0 ((node/v24.19.0; linux; x64))": "openai-summary",
    "litellm/1.106.2": "openai-summary",
    "codex_exec/0.169.0 (Debian 12.0.0; x86_64) dumb (codex_exec; 0.169.0)": "openai",
    "codex_exec/0.113.0 (Debian 12.0.0; x86_64) unknown (codex-exec; 0.113.0)": "openai-summary",
    "codex_cli_rs/0.74.0 (Debian 12.0.0; x86_64) unknown": "openai-summary",
    "ai-sdk-openai/4.0.118 ai-sdk-provider-utils/5.0.81 node.js/v20.20.2": "openai-summary",
    "ai-sdk/openai/3.0.141 ai-sdk/provider-utils/4.0.66 runtime/node.js/v20.20.2": "openai-summary",
    "ai-sdk/open-responses/1.0.39 ai-sdk/provider-utils/4.0.50 runtime/node.js/v20.20.2": "openai",
    "ai-sdk/open-responses/2.0.36 ai-sdk/provider-utils/5.0.34 runtime/node.js/v20.20.2": "openai",
    "ai/7.0.173 ai-sdk-provider-utils/5.0.81 node.js/v20.20.2": "openai-both",
    "ai/6.0.326 ai-sdk/provider-utils/4.0.66 runtime/node.js/v20.20.2": "openai-both",
    "opencode/1.18.33 ai-sdk/provider-utils/4.0.40 runtime/bun/1.3.14": "openai-summary",
    "GitHubCopilotChat/0.55.0": "openai-summary",
    "ai-sdk/azure/3.0.128 ai-sdk/provider-utils/4.0.66 runtime/node.js/v20.20.2": "openai-summary",
    "speakeasy-sdk/typescript 1.3.19 2.914.0 1.0.0 @openrouter/sdk": "openai-comments",
    "curl/8.5.0": "openresponses",
    "Bun/1.3.14": "openresponses",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0": "openresponses",
    "python-httpx/0.28.1": "openai-comments",
    "Python/3.12 aiohttp/3.13.5": "openai-comments",
    "Python/3.12 websockets/17.4": "openai-comments",
    "Java-http-client/21.0.9": "openai-comments",
    "Go-http-client/1.1": "openai-comments",
    "node": "openai-comments",
    "undici": "openai-comments",
    "": "openai-comments",
}


def version(agent: str) -> str:
    """Return the first product in a user agent, with its version: others are its platform."""
    found = re.match(r"\D*[\d.]+", agent)
    return found[0] if found else agent


@pytest.mark.parametrize("agent", AGENTS)
def test_client_is_known_by_its_user_agent(agent: str) -> None:
    assert dialect_of({"user-agent": agent}) == DIALECTS[AGENTS[agent]]


def test_sdk_in_a_browser_is_known_by_its_other_headers() -> None:
    assert dialect_of({"user-agent": "Mozilla/5.0", "x-stainless-lang": "js"}) == DIALECTS["openai"]
    assert dialect_of({"originator": "codex_vscode"}) == DIALECTS["openai"]
    assert dialect_of({"user-agent": "Python/3.12 aiohttp/3.13.5", "x-openwebui-user-id": "1"}) == DIALECTS["openai"]


def test_client_without_a_user_agent_gets_openais_names_and_comments() -> None:
    unknown = dialect_of({})
    assert (unknown.content[0].delta, unknown.heartbeat) == ("response.reasoning_text.delta", "comment")


def test_official_suite_on_a_websocket_gets_the_specs_names() -> None:
    handshake = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-key": "c1KpkXkkYieK/MUwZI55Ww=="}
    suite = {**handshake, "content-type": "application/json", "authorization": "Bearer k"}
    assert dialect_of(suite) == DIALECTS["openresponses"]
    for unknown in (handshake, {**suite, "user-agent": "node"}, {"content-type": "application/json"}):
        assert dialect_of(unknown) == DIALECTS["openai-comments"]


@pytest.mark.parametrize("agent", ["OpenAI/Python 3.54.0", "python-httpx/0.28.1", "node"])
def test_client_that_sends_the_version_of_the_spec_gets_its_names(agent: str) -> None:
    headers = {"user-agent": agent, "openresponses-version": "2026-04-24", "x-stainless-lang": "python"}
    assert dialect_of(headers) == DIALECTS["openresponses"]
    assert dialect_of(headers, "openai") == DIALECTS["openai"]


@pytest.mark.parametrize("configured", ["openresponses", "openai", "openai-comments"])
def test_dialect_that_is_configured_holds_for_every_client(configured: str) -> None:
    assert all(dialect_of({"user-agent": agent}, configured) == DIALECTS[configured] for agent in AGENTS)


def test_ai_sdk_gets_strings_wherever_it_may_need_them() -> None:
    agents = {agent.partition(" ")[0] for agent in AGENTS if needs_strings({"user-agent": agent})}
    assert agents == {"ai-sdk/open-responses/2.0.36", "ai-sdk/open-responses/1.0.39", "ai/7.0.173", "ai/6.0.326"}
