"""Invalid Messages bodies are refused or answered, never an internal error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings

from app.api.client_apis.messages.hosted import named_types
from app.api.client_apis.messages.reader import read_messages
from tests.support.odd_bodies import odd_bodies, refused_or_answered, refused_or_read

MARK = {"type": "ephemeral", "ttl": "1h"}
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["END"],
    "tools": [
        {"name": "f", "input_schema": {"type": "object"}, "cache_control": MARK},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 1, "user_location": {"type": "approximate"}},
        {"type": "computer_20251124", "name": "computer", "display_width_px": 100, "display_height_px": 100},
        {"type": "mcp_toolset", "mcp_server_name": "lab", "configs": {"add": {"enabled": True}}},
    ],
    "mcp_servers": [{"type": "url", "name": "lab", "url": "https://x", "tool_configuration": {"enabled": True}}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image", "source": PNG}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "antiphon1.AAAA"},
                {"type": "redacted_thinking", "data": "antiphon1.AAAA"},
                {"type": "server_tool_use", "id": "ws_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "ws_1", "content": [{"url": "https://x"}]},
                {"type": "mcp_tool_use", "id": "mcp_1", "name": "add", "server_name": "lab", "input": {}},
                {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [{"type": "text", "text": "2"}]},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "is_error": True,
                    "content": [{"type": "text", "text": "x"}],
                },
                {
                    "type": "document",
                    "title": "T",
                    "source": {"type": "content", "content": [{"type": "text", "text": ""}]},
                },
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
                {"type": "compaction", "content": "They greeted."},
            ],
        },
        {"role": "system", "content": "Now."},
    ],
}


@settings(max_examples=200, deadline=None)
@given(body=odd_bodies(BODY))
def test_odd_body_is_refused_or_read(body: Any) -> None:
    before = copy.deepcopy(body)
    assert named_types(body) <= {"web_search", "code_interpreter", "mcp"}
    assert body == before
    refused_or_read(read_messages, body)


@pytest.mark.parametrize("stream", [False, True])
async def test_odd_bodies_are_never_an_internal_error(stream: bool) -> None:
    await refused_or_answered("/v1/messages", BODY, stream=stream, refusal="invalid_request_error")
