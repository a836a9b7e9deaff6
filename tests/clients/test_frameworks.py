"""Features specific to LangChain, pydantic-ai, LlamaIndex, LiteLLM and llm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.answers import asking_for_the_weather, calling, saying, thinking
from tests.clients.clients import CLIENTS, Driver
from tests.clients.program import interpreter, run
from tests.support.upstream import Upstream

ADA = {"name": "Ada Lovelace", "born": 1815}


@pytest.fixture
def client(name: str, server: str, tmp_path: Path) -> Driver:
    return Driver(CLIENTS[name], server, tmp_path)


@pytest.mark.parametrize(("name", "function"), [("langchain", "Person"), ("pydantic-ai", "final_result")])
async def test_framework_output_by_a_function_call_is_read(client: Driver, upstream: Upstream, function: str) -> None:
    upstream.say(calling(function, '{"name": "Ada Love', 'lace", "born": 1815}'))
    assert await client.shows("structured_by_a_function") == ADA
    request = upstream.requests[-1].json
    assert [tool["function"]["name"] for tool in request["tools"]] == [function]
    assert request["tool_choice"] in ("required", {"type": "function", "function": {"name": function}})


@pytest.mark.parametrize("name", ["langchain", "langchain-v1"])
async def test_langchain_sends_results_alone(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather())
    upstream.say(saying("Sunny in both."))
    assert await client.shows("tools_continued") == {"text": "Sunny in both."}
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("name", ["langchain", "langchain-v1"])
async def test_langchain_keeps_encrypted_reasoning(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_sealed") == {"text": "Sunny in both.", "sealed": True}


@pytest.mark.parametrize("name", ["pydantic-ai"])
async def test_pydantic_ai_shows_a_reasoning_summary(client: Driver, upstream: Upstream) -> None:
    upstream.say(thinking("Six times seven.", "42."))
    assert await client.shows("thinking_summarized") == {"text": "42.", "reasoning": "Six times seven."}


@pytest.mark.parametrize("name", ["pydantic-ai"])
async def test_pydantic_ai_sends_reasoning_back_with_the_results(client: Driver, upstream: Upstream) -> None:
    upstream.say(asking_for_the_weather(thought="Ask twice."))
    upstream.say(saying("Sunny in both."))
    assert await client.shows("thinking_again") == {"text": "Sunny in both.", "reasoning": "Ask twice."}
    roles = [message["role"] for message in upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize("name", ["litellm"])
async def test_litellm_shows_reasoning_in_its_chat(client: Driver, upstream: Upstream) -> None:
    upstream.say(thinking("Six times seven.", "42."))
    assert await client.shows("thinking_in_chat") == {"text": "42.", "reasoning": "Six times seven."}


async def test_llm_program_sends_a_prompt_and_continues(server: str, upstream: Upstream, tmp_path: Path) -> None:
    upstream.say(saying("Nice to ", "meet you."))
    upstream.say(saying("Your name is Ada."))
    llm, user = str(interpreter("openai-3") / "llm"), tmp_path / "llm"
    user.mkdir()
    (user / "extra-openai-models.yaml").write_text(
        f"- {{model_id: lab, model_name: m, api_base: '{server}', api_key_name: lab, responses: true}}\n"
    )
    env = {"LLM_USER_PATH": str(user)}
    first = await run(llm, "--model", "lab", "--key", "lab", "My name is Ada.", env=env, cwd=tmp_path)
    assert first.out == "Nice to meet you.\n", first.err
    second = await run(llm, "--continue", "--key", "lab", "What is my name?", env=env, cwd=tmp_path)
    assert second.out == "Your name is Ada.\n", second.err
    contents = [message["content"] for message in upstream.requests[-1].json["messages"]]
    assert contents == ["My name is Ada.", "Nice to meet you.", "What is my name?"]
