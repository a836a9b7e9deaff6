from __future__ import annotations

from typing import Any

import pytest

from app.api.client_apis import ClientRequest, client_path
from app.api.client_apis.chat.reader import hosted_types, read_chat
from app.api.client_apis.translation import create_request
from app.errors import InvalidRequest

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {}}


def read(**fields: Any) -> ClientRequest:
    """Return a request as it is read, which is also valid as a Responses request."""
    request = read_chat({"model": "m", "messages": HI, **fields}, {})
    create_request(request)
    return request


@pytest.mark.parametrize(
    ("messages", "items"),
    [
        (
            [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Now."}],
            [
                {"type": "message", "role": "system", "content": "Be brief."},
                {"type": "message", "role": "developer", "content": "Now."},
            ],
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": "u"}]}],
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "Hi"}, {"type": "image_url", "image_url": "u"}],
                }
            ],
        ),
        (
            [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}}]}],
            [{"type": "message", "role": "user", "content": [{"type": "input_video", "video_url": "u"}]}],
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"ttl": "1h"}}]}],
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {
                            "type": "input_text",
                            "text": "Hi",
                            "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"},
                        }
                    ],
                }
            ],
        ),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": "A"}], "refusal": "No.", "reasoning": "Hm."}],
            [
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "A"}, {"type": "refusal", "refusal": "No."}],
                },
            ],
        ),
        ([{"role": "assistant", "content": None}, {"role": "assistant", "content": ""}], []),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "c1", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "x"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "1"}]},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
            ],
            [
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
            ],
        ),
        (
            [
                {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": None},
            ],
            [
                {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_0", "output": ""},
            ],
        ),
    ],
)
def test_messages_become_items(messages: list[Any], items: list[Any]) -> None:
    assert read(messages=messages).fields["input"] == items


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        ({"max_tokens": 5}, {"max_output_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_output_tokens": 7}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            {"reasoning_effort": "low", "reasoning": {"summary": "auto"}},
            {"reasoning": {"summary": "auto", "effort": "low"}},
        ),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}},
        ),
        ({"logprobs": True, "top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ({"stop": "END", "seed": 7, "logit_bias": {"5": 1}}, {"stop": ["END"], "seed": 7, "logit_bias": {"5": 1}}),
        ({"top_k": 3, "safety_identifier": "u"}, {"top_k": 3, "safety_identifier": "u"}),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": None}}]},
            {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}]},
        ),
        (
            {"tools": [{"type": "function", "name": "f", "strict": True}, {"type": "web_search"}]},
            {"tools": [{"type": "function", "name": "f", "strict": True}, {"type": "web_search"}]},
        ),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "custom": {
                            "name": "g",
                            "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a"}},
                        },
                    }
                ]
            },
            {
                "tools": [
                    {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "regex", "definition": "a"}}
                ]
            },
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "function", "name": "f"}},
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "g"}}]},
                }
            },
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "g"}]}},
        ),
        (
            {
                "web_search_options": {
                    "search_context_size": "low",
                    "user_location": {"type": "approximate", "approximate": {"city": "Paris"}},
                }
            },
            {
                "tools": [
                    {
                        "type": "web_search",
                        "search_context_size": "low",
                        "user_location": {"type": "approximate", "city": "Paris"},
                    }
                ]
            },
        ),
    ],
)
def test_parameters_become_those_of_responses(sent: dict[str, Any], fields: dict[str, Any]) -> None:
    request = read(**sent)
    assert request.fields == {"model": "m", "stream": False, "input": request.fields["input"], **fields}
    assert not request.warnings


def test_functions_of_the_earlier_form_are_tools() -> None:
    request = read(functions=[{"name": "f"}], function_call={"name": "f"})
    assert request.fields["tools"] == [{"type": "function", "name": "f", "strict": False}]
    assert request.fields["tool_choice"] == {"type": "function", "name": "f"}
    assert request.warnings == ["Calls of 'functions' are returned as 'tool_calls'; declare them as 'tools'."]


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        ({"store": True}, "store"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"instructions": "Be rude."}, "instructions"),
        ({"tools": [{"type": "local_shell"}]}, "local_shell"),
        ({"messages": [{"role": "user", "content": "Hi", "name": "Ada"}]}, "messages[].name"),
        ({"messages": [*HI, {"role": "assistant", "content": "A", "audio": {"id": "a"}}]}, "messages[].audio"),
    ],
)
def test_field_that_is_left_out_is_named_in_a_warning(sent: dict[str, Any], named: str) -> None:
    request = read(**sent)
    assert any(f"'{named}'" in warning for warning in request.warnings)
    known = {"model", "stream", "input", "include"}
    assert request.fields.keys() <= known


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [*HI, {"role": "bot"}]}, "messages[1].role"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[0].tool_calls[0].function"),
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ""}, "stop[0]"),
        ({"function_call": 7}, "function_call"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_invalid_field_is_named(sent: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read(**sent)
    assert error.value.param == param
    assert f"'{param}'" in error.value.message


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("input[0].content", "messages[0].content"),
        ("input[2].arguments", "messages[1].tool_calls[0].function.arguments"),
        ("input[3].output[0].text", "messages[2].content[0].text"),
        ("tools[0].parameters", "tools[1].function.parameters"),
        ("tools[1]", "web_search_options"),
        ("text.format.schema", "response_format.json_schema.schema"),
        ("max_output_tokens", "max_tokens"),
    ],
)
def test_client_paths_lead_back_to_the_clients_fields(field: str, path: str) -> None:
    request = read(
        messages=[
            *HI,
            {"role": "assistant", "content": "A", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]},
        ],
        tools=[{"type": "local_shell"}, {"type": "function", "function": {"name": "f"}}],
        web_search_options={},
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        max_tokens=5,
    )
    assert client_path(field, request.client_paths) == path


@pytest.mark.parametrize(
    ("fields", "types"),
    [
        ({}, set()),
        ({"tools": [{"type": "function"}, {"type": "custom"}, {"type": "mcp"}]}, {"mcp"}),
        ({"web_search_options": {}}, {"web_search"}),
        ({"tools": [7, {}, {"type": []}, {"type": None}]}, set()),
        ({"tools": {}}, set()),
    ],
)
def test_hosted_types_are_those_that_the_client_does_not_run(fields: dict[str, Any], types: set[str]) -> None:
    assert hosted_types(fields) == types
