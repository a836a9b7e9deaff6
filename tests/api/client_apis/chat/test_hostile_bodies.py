"""Invalid chat completion bodies are refused or answered, never an internal error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from app.api.client_apis.chat.reader import hosted_types, read_chat
from tests.support.odd_bodies import odd_bodies, refused_or_answered, refused_or_read

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "user",
            "name": "Ada",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look."}, {"type": "refusal", "refusal": "No."}],
            "refusal": "No.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}},
                {"id": "call_2", "type": "custom", "custom": {"name": "g", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "1"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "function_call": {"name": "h", "arguments": "{}"}},
        {"role": "function", "name": "h", "content": "3"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}},
        {"type": "custom", "custom": {"name": "g", "format": {"type": "grammar", "grammar": {"syntax": "regex"}}}},
        {"type": "web_search"},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
    },
    "functions": [{"name": "h", "parameters": SCHEMA}],
    "function_call": {"name": "h"},
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
    "web_search_options": {"user_location": {"type": "approximate", "approximate": {"city": "Paris"}}},
    "stream_options": {"include_usage": True},
    "stop": ["END"],
    "logit_bias": {"5": 1},
    "reasoning_effort": "low",
    "reasoning": {"summary": "auto"},
    "max_completion_tokens": 100,
    "max_tokens": 100,
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "x"},
    "metadata": {"a": "b"},
    "logprobs": True,
    "top_logprobs": 2,
    "n": 1,
}


@settings(max_examples=200, deadline=None)
@given(body=odd_bodies(BODY))
def test_odd_body_is_refused_or_read(body: Any) -> None:
    before = copy.deepcopy(body)
    assert all(isinstance(type_, str) for type_ in hosted_types(body))
    assert body == before
    refused_or_read(read_chat, body)


@pytest.mark.parametrize("stream", [False, True])
async def test_odd_bodies_are_never_an_internal_error(stream: bool) -> None:
    await refused_or_answered("/v1/chat/completions", BODY, stream=stream, refusal="invalid_request")
