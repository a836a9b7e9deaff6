"""Client libraries and how to run them: a row and a driver each, with the same scenarios."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clients.program import HERE, node, python


class Client(NamedTuple):
    """A client."""

    driver: str
    package: str  # for Node, or the environment for Python
    variables: Mapping[str, str] = {}
    without: frozenset[str] = frozenset()  # unsupported scenarios


LOCAL_COSTS = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # LiteLLM asks nobody for prices

CLIENTS = {
    "openai-python": Client("openai_python/driver.py", "openai-3"),
    "openai-python-2": Client("openai_python/driver.py", "openai-2"),
    "openai-node": Client("openai_node/driver.mjs", "openai", {"PACKAGE": "openai"}),
    "openai-node-6": Client("openai_node/driver.mjs", "openai-6", {"PACKAGE": "openai-6"}),
    "agents-python": Client("agents_python/driver.py", "openai-3"),
    "agents-node": Client("agents_node/driver.mjs", "@openai/agents"),
    "langchain": Client("langchain/driver.py", "openai-3"),
    "langchain-v1": Client("langchain/driver.py", "openai-3", {"OUTPUT_VERSION": "v1"}),
    "pydantic-ai": Client("pydantic_ai/driver.py", "openai-3"),
    "llama-index": Client("llama_index/driver.py", "openai-2", without=frozenset({"structured_streamed"})),
    "litellm": Client("litellm/driver.py", "openai-2", LOCAL_COSTS),
    "llm": Client("llm/driver.py", "openai-3", without=frozenset({"turns"})),
    **{
        name: Client("ai_sdk/driver.mjs", package, {"PACKAGE": package, "PROVIDER": f"@ai-sdk/{provider}"})
        for name, package, provider in (
            ("ai-sdk-openai", "ai", "openai"),
            ("ai-sdk-6-openai", "ai-6", "openai-3"),
            ("ai-sdk-open-responses", "ai", "open-responses"),
            ("ai-sdk-6-open-responses", "ai-6", "open-responses-1"),
        )
    },
}


_STREAMS = frozenset({"stream", "tools_streamed"})

# Frameworks with their own client: they play the supported scenarios.
FRAMEWORKS = {
    "agent-framework": Client("agent_framework/driver.py", "openai-3"),
    "ai-sdk-anthropic": Client("ai_sdk/driver.mjs", "ai", {"PACKAGE": "ai", "PROVIDER": "@ai-sdk/anthropic"}),
    "agno": Client("agno/driver.py", "openai-3", {"KIND": "openai"}, frozenset({"thinking"})),
    "agno-open-responses": Client("agno/driver.py", "openai-3", {"KIND": "open-responses"}, frozenset({"thinking"})),
    "anthropic-python": Client("anthropic_python/driver.py", "openai-3"),
    "dspy": Client("dspy/driver.py", "openai-2", LOCAL_COSTS, _STREAMS | {"tools", "structured", "turns"}),
    "google-adk": Client("google_adk/driver.py", "openai-2", LOCAL_COSTS, _STREAMS | {"structured", "thinking"}),
    "haystack": Client("haystack/driver.py", "openai-3"),
    "inspect": Client("inspect_ai/driver.py", "openai-3", without=_STREAMS),
    "instructor": Client(
        "instructor/driver.py", "openai-2", without=_STREAMS | {"text", "tools", "structured", "turns", "thinking"}
    ),
    "langchain-anthropic": Client("langchain_anthropic/driver.py", "openai-3"),
    "langchain-node": Client("langchain_node/driver.mjs", "@langchain/openai"),
    "mastra": Client("mastra/driver.mjs", "@mastra/core"),
    "semantic-kernel": Client("semantic_kernel/driver.py", "openai-2-agents", without=frozenset({"thinking"})),
    "strands": Client("strands/driver.py", "openai-2-agents", without=frozenset({"tools_streamed"})),
}

# Voice agents, which use the WebSocket and play a scenario of their own.
VOICE = {
    "livekit": Client("livekit/driver.py", "openai-3-voice"),
    "pipecat": Client("pipecat/driver.py", "openai-3-voice"),
}


def playing(*scenarios: str, clients: Mapping[str, Client] = CLIENTS) -> list[tuple[str, str]]:
    """Return pairs of client and scenario."""
    return [(name, one) for name, client in clients.items() for one in scenarios if one not in client.without]


class Driver(NamedTuple):
    """A client and a server's base URL, which ends in `/v1`."""

    client: Client
    server: str
    directory: Path  # an empty directory
    key: str = "lab"

    async def shows(self, scenario: str, model: str = "m", **variables: str) -> Any:
        """Play a scenario, and return the client's output."""
        shown, stderr = await self._play(scenario, model, variables)
        if isinstance(shown, dict) and "error" in shown:
            pytest.fail(f"{shown['error']}: {shown['message']}\n{stderr}")
        return shown

    async def fails(self, scenario: str, model: str = "m", **variables: str) -> Any:
        """Play a failing scenario, and return the client's `error`, `message` and `status`."""
        shown, _ = await self._play(scenario, model, variables)
        assert isinstance(shown, dict) and "error" in shown, shown
        return shown

    async def _play(self, scenario: str, model: str, variables: Mapping[str, str]) -> tuple[Any, str]:
        driver, package, own, _ = self.client
        program = python if driver.endswith(".py") else node
        env = {"OPENAI_BASE_URL": self.server, "OPENAI_API_KEY": self.key, "MODEL": model, **own, **variables}
        ended = await program(HERE / driver, package, scenario, env=env, cwd=self.directory)
        assert ended.out, ended.err
        return json.loads(ended.out.splitlines()[-1]), ended.err
