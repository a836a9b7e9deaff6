"""Breakpoints of the prompt cache in chat requests, for gateways to Claude."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.request import CreateResponse

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "A cat."}
MARK = {"cache_control": {"type": "ephemeral"}}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def ask(profile: Profile, model: str = "anthropic/claude-opus-5", **fields: Any) -> EncodedRequest:
    request = CreateResponse.model_validate({"model": model, "input": "Hi", **fields})
    return to_chat(ModelRequest(request, request.items(), model), profile)


def marked(encoded: EncodedRequest) -> list[tuple[str, str]]:
    """Role and text of messages with a breakpoint."""
    return [
        (message["role"], part["text"])
        for message in encoded.body["messages"]
        for part in (message["content"] if isinstance(message.get("content"), list) else ())
        if "cache_control" in part
    ]


@pytest.mark.parametrize("name", ["openrouter", "litellm"])
def test_gateways_to_claude_get_breakpoints_behind_system_and_history(name: str) -> None:
    items = [{"role": "user", "content": "Look."}, CALL, OUTPUT]
    encoded = ask(load_profile(name), instructions="Be kind.", tools=[LOOK], input=items)
    assert marked(encoded) == [("system", "Be kind."), ("tool", "A cat.")]
    assert encoded.body["messages"][-1]["content"] == [{"type": "text", "text": "A cat.", **MARK}]


@pytest.mark.parametrize(
    ("profile", "model"),
    [
        (load_profile("openrouter"), "openai/gpt-5"),
        (load_profile("openrouter").override({"request.cache": "off"}), "anthropic/claude-opus-5"),
        (Profile(), "claude-opus-5"),
        (load_profile("vllm"), "claude-opus-5"),
    ],
)
def test_other_models_and_servers_get_no_breakpoints(profile: Profile, model: str) -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hi", **BREAKPOINT}]}]
    encoded = ask(profile, model, instructions="Be kind.", input=items)
    assert encoded.body["messages"][-1]["content"] == "Hi"
    assert any("prompt_cache_breakpoint" in warning for warning in encoded.warnings)


def test_breakpoints_of_the_caller_replace_ours() -> None:
    items = [
        {"role": "system", "content": [{"type": "input_text", "text": "Be kind.", **BREAKPOINT}]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "One", **BREAKPOINT}, {"type": "input_text", "text": "Two"}],
        },
        CALL,
        {**OUTPUT, "output": [{"type": "input_text", "text": "A cat.", **BREAKPOINT}]},
    ]
    encoded = ask(load_profile("openrouter"), input=items, tools=[LOOK], prompt_cache_options={"ttl": "30m"})
    assert marked(encoded) == [("system", "Be kind."), ("user", "One"), ("tool", "A cat.")]
    assert encoded.body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert encoded.warnings == ()
