"""Span content matches the JSON schemas in OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app.core.types.deltas import Finished, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta
from app.observability.content import OutputMessage, input_messages

TEXT = {"type": "string"}
# Required fields per part type in `gen-ai-input-messages.json` and `gen-ai-output-messages.json`; null where allowed.
FIELDS: dict[str, dict[str, Any]] = {
    "text": {"content": TEXT},
    "reasoning": {"content": TEXT},
    "tool_call": {
        "name": TEXT,
        "id": {"type": ["string", "null"]},
        "arguments": {"type": ["object", "null", "string"]},
    },
    "tool_call_response": {"response": {}, "id": {"type": ["string", "null"]}},
    "blob": {"modality": TEXT, "content": TEXT, "mime_type": {"type": ["string", "null"]}},
    "uri": {"modality": TEXT, "uri": TEXT},
    "file": {"modality": TEXT, "file_id": TEXT},
}
PARTS = [
    {"properties": {"type": {"const": type}, **fields}, "required": ["type", *fields]}
    for type, fields in FIELDS.items()
]
ROLE = {"enum": ["system", "developer", "user", "assistant", "tool"]}
MESSAGE = {"role": ROLE, "parts": {"type": "array", "items": {"type": "object", "oneOf": PARTS}}}
FINISH = {"enum": ["stop", "length", "content_filter", "tool_call", "error"]}
INPUT = {"type": "array", "items": {"type": "object", "properties": MESSAGE, "required": [*MESSAGE]}}
OUTPUT_MESSAGE = {**MESSAGE, "role": {"const": "assistant"}, "finish_reason": FINISH}
OUTPUT = {"type": "array", "items": {"type": "object", "properties": OUTPUT_MESSAGE, "required": [*OUTPUT_MESSAGE]}}

DATA = "data:image/png;base64,aGk="
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def check(schema: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    Draft202012Validator(schema).validate(messages)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"type": "text", "text": "Hi"}, {"type": "text", "content": "Hi"}),
        ({"type": "refusal", "refusal": "No."}, {"type": "text", "content": "No."}),
        (
            {"type": "image_url", "image_url": {"url": DATA}},
            {"type": "blob", "modality": "image", "mime_type": "image/png", "content": ""},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            {"type": "uri", "modality": "image", "uri": "https://x/y.png"},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
            {"type": "blob", "modality": "audio", "mime_type": None, "content": ""},
        ),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
            {"type": "blob", "modality": "file", "mime_type": "application/pdf", "content": ""},
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, {"type": "file", "modality": "file", "file_id": "file-1"}),
    ],
)
def test_prompt_part_has_its_shape_and_no_data(content: dict[str, Any], part: dict[str, Any]) -> None:
    messages = input_messages({"messages": [{"role": "user", "content": [content]}]})
    check(INPUT, messages)
    assert messages == [{"role": "user", "parts": [part]}]


def test_conversation_with_calls_has_the_shapes_of_the_conventions() -> None:
    messages = input_messages(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "system", "content": "You are a test."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}],
                },
            ]
        }
    )
    check(INPUT, messages)
    assert messages[3]["parts"][1] == {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": 1}}
    assert messages[5]["parts"] == [{"type": "tool_call", "id": None, "name": "f", "arguments": "{broken"}]


@pytest.mark.parametrize(
    ("reason", "recorded"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_call"),
        (None, "error"),
    ],
)
def test_answer_has_the_shape_and_finish_reason_of_the_conventions(reason: str | None, recorded: str) -> None:
    output = OutputMessage()
    for delta in (
        ReasoningDelta(["H", "m."]),
        TextDelta(["Hi"]),
        ToolCallDelta(0, "c1", "f", ['{"a"']),
        ToolCallDelta(0, arguments=[": ", "1}"]),
        Finished(FinishReason.STOP),
    ):
        output.feed(delta)
    messages = output.messages(reason)
    check(OUTPUT, messages)
    (message,) = messages
    assert message["finish_reason"] == recorded
    assert message["parts"][-1] == {"type": "tool_call", "id": "c1", "name": "f", "arguments": {"a": 1}}


def test_request_items_have_the_shapes_of_the_conventions() -> None:
    body = {
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "secret"},
            {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "sh", "input": "ls"},
            {"type": "function_call_output", "call_id": "call_1", "output": "3"},
        ],
    }
    blob = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": ""}
    assert input_messages(body) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "user", "parts": [blob]},
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "call_1", "name": "add", "arguments": {"a": 1}}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "call_2", "name": "sh", "arguments": {"input": "ls"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": "3"}]},
    ]


def test_request_of_another_api_is_one_message_without_the_data_of_media() -> None:
    contents = [
        {"role": "user", "parts": [{"text": "Look."}, {"inline": {"mime": "image/png", "data": "aGk="}, "link": DATA}]}
    ]
    made = [input_messages({"model": "m", **fields})[0] for fields in ({"contents": contents}, {"input": "Hi"})]
    check(INPUT, made)
    assert [part["content"] for part in made[0]["parts"]] == ["user", "Look.", "image/png"]
    assert made[1] == {"role": "user", "parts": [{"type": "text", "content": "Hi"}]}
