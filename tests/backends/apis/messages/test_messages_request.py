"""Translation of requests to Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.apis.messages.encoder import to_messages_request
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.request.reasoning import bound
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.support.messages_server import check, signature_of

PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0xLjQK"
LOOK = {"type": "function", "name": "look", "description": "See.", "parameters": {"type": "object", "properties": {}}}
HEAR = {"type": "function", "name": "hear", "parameters": None}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "A cat."}
CLAUDE = load_profile("anthropic").override({"transport.base_url": "https://claude.test/v1"})
MARK = {"type": "ephemeral"}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def encode(
    profile: Profile = CLAUDE, upstream: dict[str, Any] | None = None, model: str = "claude-opus-5", **fields: Any
) -> EncodedRequest:
    request = CreateResponse.model_validate({"model": model, "input": "Hi", **fields})
    encoded = to_messages_request(ModelRequest(request, request.items(), model, upstream or {}), profile)
    check(encoded.body, by_budget="4-5" in model)
    return encoded


def ask(profile: Profile = CLAUDE, **fields: Any) -> dict[str, Any]:
    return encode(profile.override({"request.cache": "off"}), **fields).body


def thought(text: str, profile: Profile = CLAUDE) -> dict[str, Any]:
    return bound(profile, thinking={"type": "thinking", "thinking": text, "signature": signature_of(text)})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def test_question_becomes_a_message_with_a_limit() -> None:
    body = {"model": "claude-opus-5", "max_tokens": 32000, "messages": [user("Hi")], "stream": True}
    assert ask() == body
    assert ask(max_output_tokens=77)["max_tokens"] == 77


def test_instructions_and_leading_system_messages_become_the_system_prompt() -> None:
    leading = [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "It is noon."}]
    body = ask(instructions="Be kind.", input=[*leading, {"role": "user", "content": "Hi"}])
    assert [block["text"] for block in body["system"]] == ["Be kind.", "Be brief.", "It is noon."]
    assert body["messages"] == [user("Hi")]


def test_later_developer_message_is_a_note_in_place_after_results() -> None:
    note = {"role": "developer", "content": "The image was resized."}
    body = ask(input=[{"role": "user", "content": "Look."}, CALL, note, OUTPUT, {"role": "user", "content": "So?"}])
    assert "system" not in body
    result, *others = body["messages"][-1]["content"]
    assert result["type"] == "tool_result"
    assert [block["text"] for block in others] == [
        "<system-reminder>\nThe image was resized.\n</system-reminder>",
        "So?",
    ]


def test_messages_of_one_role_become_one() -> None:
    items = [{"role": role, "content": text} for role, text in (("user", "a"), ("user", "b"), ("assistant", "c"))]
    contents = [[block["text"] for block in message["content"]] for message in ask(input=items)["messages"]]
    assert contents == [["a", "b"], ["c"], ["Continue."]]


def test_results_of_all_calls_are_in_one_message_before_other_content() -> None:
    second = {**CALL, "id": "fc_2", "call_id": "functions.look:2"}
    image = {
        "type": "function_call_output",
        "call_id": "functions.look:2",
        "output": [{"type": "input_image", "image_url": PNG}],
    }
    body = ask(
        tools=[LOOK],
        input=[{"role": "user", "content": "Look."}, CALL, second, OUTPUT, image, {"role": "user", "content": "So?"}],
    )
    _, assistant, results = body["messages"]
    ids = [block["id"] for block in assistant["content"]]
    assert assistant["content"][0] == {"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": 1}}
    assert [block["type"] for block in results["content"]] == ["tool_result", "tool_result", "text"]
    assert [block["tool_use_id"] for block in results["content"][:2]] == ids
    assert results["content"][1]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    ]


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            {"type": "input_image", "image_url": "https://a.test/b.png"},
            {"type": "image", "source": {"type": "url", "url": "https://a.test/b.png"}},
        ),
        (
            {"type": "computer_screenshot", "image_url": PNG},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK"},
                "title": "a.pdf",
            },
        ),
        (
            {"type": "input_file", "file_url": "https://a.test/a.pdf"},
            {"type": "document", "source": {"type": "url", "url": "https://a.test/a.pdf"}},
        ),
        (
            {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="},
            {"type": "text", "text": '<file name="a.txt">\nHi\n</file>'},
        ),
        (
            {"type": "input_file", "file_data": PNG},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ),
    ],
)
def test_images_and_files_become_blocks(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert ask(input=[{"role": "user", "content": [part]}])["messages"][0]["content"] == [block]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "input_image", "image_url": "data:image/tiff;base64,SUkqAA=="},
        {"type": "input_file", "file_data": "data:application/zip;base64,UEsDBAAA"},
    ],
)
def test_content_that_the_server_does_not_take_is_refused_with_its_path(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(input=[{"role": "user", "content": [{"type": "input_text", "text": "?"}, part]}])
    assert refused.value.param and refused.value.param.startswith("input[0].content[1]")


def test_audio_in_a_result_is_refused_if_results_are_only_text() -> None:
    profile = CLAUDE.override({"request.content.tool_images": "drop", "request.content.audio": "pass"})
    audio = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    with pytest.raises(InvalidRequest, match="does not support audio"):
        ask(profile, input=[CALL, {**OUTPUT, "output": [audio]}])


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        ("auto", None, {"type": "auto"}),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", None, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
        ({"type": "function", "name": "hear"}, None, {"type": "tool", "name": "hear"}),
    ],
)
def test_tool_choice_becomes_its_own(choice: Any, parallel: bool | None, sent: Any) -> None:
    given = {
        name: value for name, value in (("tool_choice", choice), ("parallel_tool_calls", parallel)) if value is not None
    }
    body = ask(tools=[LOOK, HEAR], **given)
    assert body.get("tool_choice") == sent
    assert body["tools"] == [
        {"name": "look", "description": "See.", "input_schema": {"type": "object", "properties": {}}},
        {"name": "hear", "input_schema": {"type": "object", "properties": {}}},
    ]


def test_alternatives_at_the_top_of_a_schema_are_merged() -> None:
    one = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
    other = {"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "string"}}, "required": ["a"]}
    (tool,) = ask(tools=[{**LOOK, "parameters": {"anyOf": [one, other]}}])["tools"]
    assert tool["input_schema"]["required"] == ["a"]
    assert {*tool["input_schema"]["properties"]} == {"a", "b", "c"}


def test_tools_of_the_history_are_declared_where_the_request_has_none() -> None:
    body = ask(input=[{"role": "user", "content": "Look."}, CALL, OUTPUT])
    assert [tool["name"] for tool in body["tools"]] == ["look"]
    assert body["tool_choice"] == {"type": "none"}


def test_effort_becomes_adaptive_thinking_and_an_effort() -> None:
    body = ask(reasoning={"effort": "minimal"}, temperature=0.5)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "low"}
    assert "temperature" not in body


@pytest.mark.parametrize(
    ("effort", "limit", "thinking"),
    [
        ("low", None, {"type": "enabled", "budget_tokens": 2048}),
        ("high", 4096, {"type": "enabled", "budget_tokens": 3071}),
        ("high", 1100, {"type": "enabled", "budget_tokens": 1024}),
        ("high", 1024, None),
        ("none", None, {"type": "disabled"}),
    ],
)
def test_effort_becomes_a_budget_below_the_limit_for_older_models(
    effort: str, limit: int | None, thinking: Any
) -> None:
    body = ask(model="claude-sonnet-4-5", reasoning={"effort": effort}, max_output_tokens=limit)
    assert body.get("thinking") == thinking
    assert "output_config" not in body


def test_forced_call_is_made_without_thinking() -> None:
    encoded = encode(tools=[LOOK], tool_choice="required", reasoning={"effort": "high"})
    assert encoded.body["thinking"] == {"type": "disabled"}
    assert any("forced" in warning for warning in encoded.warnings)


def test_open_turn_that_began_without_thinking_goes_on_without() -> None:
    given = {
        "tools": [LOOK],
        "input": [{"role": "user", "content": "Look."}, CALL, OUTPUT],
        "reasoning": {"effort": "low"},
    }
    encoded = encode(model="claude-sonnet-4-5", **given)
    assert "thinking" not in encoded.body and encoded.warnings
    assert encode(**given).body["thinking"]["type"] == "adaptive"
    given["input"].append({"role": "developer", "content": "Be brief."})
    assert "thinking" not in encode(model="claude-sonnet-4-5", **given).body


def test_thinking_blocks_are_replayed_in_their_places_to_their_own_server_alone() -> None:
    items = [
        {"role": "user", "content": "Look."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": "I look."},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        CALL,
        OUTPUT,
        {"type": "reasoning", "id": "rs_3", "summary": []},
    ]
    upstream = {
        "rs_1": {"reasoning_content": "One.", **thought("One.")},
        "rs_2": bound(CLAUDE, thinking={"type": "redacted_thinking", "data": "eA=="}),
        "rs_3": thought("At the end."),
    }
    given: dict[str, Any] = {"tools": [LOOK], "input": items, "upstream": upstream}
    body = encode(reasoning={"effort": "high"}, **given).body
    assert [block["type"] for block in body["messages"][1]["content"]] == [
        "thinking",
        "text",
        "redacted_thinking",
        "tool_use",
    ]
    assert body["messages"][1]["content"][0]["signature"] == signature_of("One.")
    assert len(body["messages"]) == 3  # nothing follows the last thought
    elsewhere = encode(CLAUDE.override({"transport.base_url": "https://other.test/v1"}), **given)
    assert [block["type"] for block in elsewhere.body["messages"][1]["content"]] == ["text", "tool_use"]
    assert any("another server" in warning for warning in elsewhere.warnings)


def test_schema_of_the_answer_has_only_what_is_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {
            "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"enum": ["a"]}, "maxItems": 3},
        },
        "required": ["age"],
    }
    body = ask(
        text={"format": {"type": "json_schema", "name": "person", "schema": schema}}, reasoning={"effort": "low"}
    )
    assert body["output_config"] == {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {
                    "age": {"type": "integer", "description": '{"minimum": 0}'},
                    "tags": {"type": "array", "items": {"enum": ["a"]}, "description": '{"maxItems": 3}'},
                },
                "required": ["age"],
                "additionalProperties": False,
            },
        },
        "effort": "low",
    }


def test_json_without_a_schema_is_asked_for_in_words() -> None:
    assert "JSON" in ask(text={"format": {"type": "json_object"}})["system"][0]["text"]


def test_parameters_without_a_counterpart_are_named() -> None:
    encoded = encode(
        temperature=1.7,
        top_p=0.5,
        presence_penalty=1,
        top_logprobs=2,
        stop=["x"],
        seed=3,
        service_tier="default",
        user="u",
    )
    assert encoded.body["temperature"] == 1 and "top_p" not in encoded.body
    assert encoded.body["stop_sequences"] == ["x"] and encoded.body["metadata"] == {"user_id": "u"}
    assert encoded.body["service_tier"] == "standard_only"
    for name in ("temperature", "top_p", "presence_penalty", "top_logprobs", "seed"):
        assert any(name in warning for warning in encoded.warnings), name


# The prompt cache.


def marks(body: dict[str, Any]) -> list[str]:
    """Where the breakpoints are."""
    found = [name for name in ("tools", "system") if body.get(name) and "cache_control" in body[name][-1]]
    for n, message in enumerate(body["messages"]):
        found += [f"{n}.{k}" for k, block in enumerate(message["content"]) if "cache_control" in block]
    return found


def test_breakpoints_are_behind_tools_system_and_history() -> None:
    given: dict[str, Any] = {"instructions": "Be kind.", "tools": [LOOK, HEAR]}
    body = encode(**given, input=[{"role": "user", "content": "Look."}, CALL, OUTPUT]).body
    assert marks(body) == ["tools", "system", "2.0"]
    assert body["messages"][2]["content"][0]["cache_control"] == MARK
    assert marks(ask(**given)) == []


def test_breakpoint_is_left_where_the_last_one_was_many_blocks_ago() -> None:
    calls = [{**CALL, "call_id": f"c{n}"} for n in range(12)]
    outputs = [{**OUTPUT, "call_id": f"c{n}"} for n in range(12)]
    body = encode(
        instructions="Be kind.", tools=[LOOK], input=[{"role": "user", "content": "Look."}, *calls, *outputs]
    ).body
    assert marks(body) == ["tools", "system", "0.0", "2.11"]


def test_breakpoints_of_the_caller_replace_ours() -> None:
    parts = [{"type": "input_text", "text": str(n), **BREAKPOINT} for n in range(6)]
    items = [{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts[1:]}]
    encoded = encode(input=items, tools=[LOOK], prompt_cache_options={"ttl": "30m"})
    assert marks(encoded.body) == ["0.1", "0.2", "0.3", "0.4"]
    assert encoded.body["messages"][0]["content"][4]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert any("last 4" in warning for warning in encoded.warnings)
    assert not any("prompt_cache" in warning for warning in encoded.warnings)


def test_breakpoints_that_are_not_sent_are_named() -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hi", **BREAKPOINT}]}]
    encoded = encode(CLAUDE.override({"request.cache": "off"}), input=items)
    assert marks(encoded.body) == []
    assert any("prompt_cache_breakpoint" in warning for warning in encoded.warnings)


def test_explicit_mode_without_breakpoints_sets_none() -> None:
    assert marks(encode(prompt_cache_options={"mode": "explicit"}).body) == []
