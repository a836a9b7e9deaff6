"""Each profile's presets, and their effect on a request."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from app.backends.profiles import load_profile, profile_names
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest

NAMES = """
    openai azure vllm sglang llama.cpp llama-cpp-python ollama tgi lm-studio transformers mlx openrouter groq together
    fireworks deepseek mistral gemini gemini-chat vertex anthropic xai cerebras moonshot dashscope zai minimax copilot
    bedrock perplexity default litellm anthropic-chat bedrock-anthropic vertex-anthropic
"""
TOOL = {"type": "function", "name": "look"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
USER = {"role": "user", "content": "Hi"}


def ask(name: str, *items: Any, **request: Any) -> EncodedRequest:
    parsed_request = CreateResponse.model_validate({"model": "m", "input": list(items or [USER]), **request})
    return to_chat(ModelRequest(parsed_request, parsed_request.items(), "m"), load_profile(name))


def test_profiles_are_all_built_in() -> None:
    assert set(profile_names()) == set(NAMES.split())


@pytest.mark.parametrize("name", profile_names())
def test_profile_knows_its_name_and_serves_a_request(name: str) -> None:
    assert load_profile(name).name == name
    chat = ask(name, USER, CALL, OUTPUT, tools=[TOOL], temperature=0.5, reasoning={"effort": "high"})
    assert chat.body["messages"][0] == USER
    assert chat.body["stream"] is True


def test_default_profile_holds_for_an_unknown_server() -> None:
    assert load_profile("default") == Profile()


def test_profile_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="profile 'vlm' not found; available: default, openai, azure"):
        load_profile("vlm")


def test_options_other_than_a_table_are_refused() -> None:
    with pytest.raises(ValidationError, match="request"):
        Profile().override({"request.strict": "drop", "request": 5})


def test_azure_profile_is_that_of_openai_at_another_path() -> None:
    azure, openai = load_profile("azure"), load_profile("openai")
    assert (azure.request, azure.response) == (openai.request, openai.response)
    assert (azure.transport.auth_header, azure.transport.auth_scheme) == ("api-key", "")
    assert "api-version" in azure.transport.query


def test_openai_profile_sends_what_its_own_api_has() -> None:
    sent = ask(
        "openai",
        {"role": "developer", "content": "Be brief."},
        USER,
        user="u",
        metadata={"a": "b"},
        prompt_cache_key="k",
        max_output_tokens=20,
    ).body
    assert sent == {
        "model": "m",
        "messages": [{"role": "developer", "content": "Be brief."}, USER],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 20,
        "user": "u",
        "store": False,
        "prompt_cache_key": "k",
    }


@pytest.mark.parametrize(
    ("name", "id", "kept"),
    [
        ("openai", "fc_" + "0" * 37, True),
        ("openai", "ws_" + "0" * 48, False),
        ("anthropic-chat", "toolu_01A09q90qw90lq917835lq9", True),
        ("anthropic-chat", "functions.look:0", False),
        ("moonshot", "functions.look:0", True),
        ("default", "functions.look:0", True),
    ],
)
def test_call_ids_of_other_servers_are_changed_where_they_are_refused(name: str, id: str, kept: bool) -> None:
    called, answered = ask(name, USER, {**CALL, "call_id": id}, {**OUTPUT, "call_id": id}).body["messages"][1:]
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert (answered["tool_call_id"] == id) is kept
    assert len(answered["tool_call_id"]) <= 40


def test_mistral_gets_call_ids_of_nine_characters_and_no_user_after_a_tool() -> None:
    sent = ask("mistral", USER, CALL, OUTPUT, USER, tools=[TOOL], tool_choice="required", seed=1).body
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert sent["messages"][1]["content"] == ""
    assert len(sent["messages"][2]["tool_call_id"]) == 9
    assert sent["tool_choice"] == "any"
    assert "seed" not in sent and "stream_options" not in sent


def test_deepseek_gets_reasoning_with_each_call_and_a_switch_with_an_effort() -> None:
    sent = ask("deepseek", USER, CALL, OUTPUT, reasoning={"effort": "xhigh"}).body
    assert sent["messages"][1]["reasoning_content"] == " "
    assert (sent["thinking"], sent["reasoning_effort"]) == ({"type": "enabled"}, "high")


@pytest.mark.parametrize("effort, sent", [("none", None), ("minimal", "low"), ("xhigh", "high"), ("medium", "medium")])
def test_groq_gets_efforts_that_it_knows(effort: str, sent: Any) -> None:
    assert ask("groq", reasoning={"effort": effort}).body.get("reasoning_effort") == sent


def test_llama_cpp_python_gets_only_what_it_does_not_lose() -> None:
    chat = ask("llama-cpp-python", USER, CALL, OUTPUT, tools=[TOOL], top_logprobs=2, max_output_tokens=16)
    assert chat.body["messages"][1]["content"] == ""
    assert not {"logprobs", "top_logprobs", "max_completion_tokens"} & chat.body.keys()
    assert len(chat.warnings) == 2
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}
    with pytest.raises(InvalidRequest, match="does not support images"):
        ask("llama-cpp-python", picture)


def test_minimax_gets_one_system_message() -> None:
    first, *rest = ask("minimax", {"role": "system", "content": "B"}, USER, instructions="A").body["messages"]
    assert (first, rest) == ({"role": "system", "content": "A\n\nB"}, [USER])


def test_moonshot_is_instructed_to_call_instead_of_forced() -> None:
    chat = ask("moonshot", tools=[TOOL], tool_choice={"type": "function", "name": "look"}, temperature=0.5)
    assert "tool_choice" not in chat.body and "temperature" not in chat.body
    assert chat.body["messages"][-1]["content"] == "Call the tool `look` now. Do not answer with text."
    assert chat.allowed == {"look"}


def test_gemini_gets_schemas_without_the_keywords_that_it_refuses() -> None:
    parameters = {"$schema": "x", "type": "object", "properties": {}, "additionalProperties": False}
    chat = ask("gemini-chat", tools=[{**TOOL, "parameters": parameters}])
    assert chat.body["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
