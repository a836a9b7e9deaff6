"""Requests for Gemini servers."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.apis.gemini.encoder import to_gemini
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.request.reasoning import BOUND_ELSEWHERE, UNSIGNED, bound
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.support.gemini_server import PLACEHOLDER, call, check, signature_of, signed, text, thought

PNG = "data:image/png;base64,iVBORw0KGgo="
PDF = "data:application/pdf;base64,JVBERi0xLjQK"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LOOK = {"type": "function", "name": "look", "description": "See.", "parameters": PARAMETERS, "strict": True}
HEAR = {"type": "function", "name": "hear", "parameters": None}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "A cat."}
GEMINI = load_profile("gemini")
EARLIER = "gemini-2.5-flash"


def encode(
    profile: Profile = GEMINI, upstream: dict[str, Any] | None = None, model: str = "gemini-3-flash", **fields: Any
) -> EncodedRequest:
    request = CreateResponse.model_validate({"model": model, "input": "Hi", **fields})
    encoded = to_gemini(ModelRequest(request, request.items(), model, upstream or {}), profile)
    check({name: value for name, value in encoded.body.items() if name != "model"}, level="gemini-3" in model)
    return encoded


def ask(**fields: Any) -> dict[str, Any]:
    body = encode(**fields).body
    return {name: value for name, value in body.items() if name not in ("model", "store")}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def own(part: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The bound fields of a call by this server."""
    return bound(GEMINI, signature=signature_of(part), **fields)


def test_question_becomes_a_content_and_the_model_is_without_its_prefix() -> None:
    assert ask() == {"contents": [user("Hi")]}
    assert encode(model="models/gemini-3-flash").body["model"] == "gemini-3-flash"
    assert encode().body["store"] is False


def test_instructions_and_leading_system_messages_become_the_system_instruction() -> None:
    leading = [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "It is noon."}]
    body = ask(instructions="Be kind.", input=[*leading, {"role": "user", "content": "Hi"}])
    assert body == {
        "contents": [user("Hi")],
        "systemInstruction": {"parts": [text("Be kind."), text("Be brief."), text("It is noon.")]},
    }


def test_messages_of_one_role_become_one_content_that_the_user_begins_and_ends() -> None:
    items = [{"role": role, "content": words} for role, words in (("assistant", "a"), ("user", "b"), ("user", "c"))]
    contents = ask(input=[*items, {"role": "assistant", "content": "d"}])["contents"]
    assert contents == [
        user("Continue."),
        {"role": "model", "parts": [text("a")]},
        user("b", "c"),
        {"role": "model", "parts": [text("d")]},
        user("Continue."),
    ]


def test_later_developer_message_is_a_note_after_the_function_responses() -> None:
    note = {"role": "developer", "content": "The image was resized."}
    body = ask(
        tools=[LOOK],
        input=[{"role": "user", "content": "Look."}, CALL, note, OUTPUT, {"role": "user", "content": "So?"}],
    )
    *_, results, last = body["contents"]
    assert results == user({"functionResponse": {"name": "look", "response": {"output": "A cat."}}})
    assert last == user("<system-reminder>\nThe image was resized.\n</system-reminder>", "So?")


def test_parallel_calls_and_their_responses_keep_order_names_and_ids() -> None:
    second = {**CALL, "id": "fc_2", "call_id": "call_2", "arguments": "{}"}
    first_part = call("look", {"a": 1})
    upstream = {"fc_1": own(first_part, id="g-1"), "fc_2": bound(GEMINI, id="g-2")}
    outputs = [{**OUTPUT, "call_id": "call_2", "output": "A dog."}, OUTPUT]
    contents = ask(
        tools=[LOOK], input=[{"role": "user", "content": "Look."}, CALL, second, *outputs], upstream=upstream
    )["contents"]
    assert contents[1:] == [
        {
            "role": "model",
            "parts": [
                {
                    "functionCall": {"id": "g-1", "name": "look", "args": {"a": 1}},
                    "thoughtSignature": signature_of(first_part),
                },
                {"functionCall": {"id": "g-2", "name": "look", "args": {}}},
            ],
        },
        user(
            {"functionResponse": {"id": "g-1", "name": "look", "response": {"output": "A cat."}}},
            {"functionResponse": {"id": "g-2", "name": "look", "response": {"output": "A dog."}}},
        ),
    ]


def test_call_of_another_model_has_the_stand_in_for_its_signature_where_signatures_are_required() -> None:
    given: dict[str, Any] = {"tools": [LOOK], "input": [{"role": "user", "content": "Look."}, CALL, OUTPUT]}
    assert ask(**given)["contents"][1]["parts"] == [{**call("look", {"a": 1}), "thoughtSignature": PLACEHOLDER}]
    assert ask(**given, model=EARLIER)["contents"][1]["parts"] == [call("look", {"a": 1})]


def test_signed_parts_of_texts_and_thoughts_go_back_unchanged() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm. I look."}]},
        {"role": "assistant", "id": "msg_1", "content": "a b a b c"},
    ]
    upstream = {
        "rs_1": bound(GEMINI, parts=[signed(thought("I look."))]),
        "msg_1": bound(GEMINI, parts=[signed(text(" b"))]),
    }
    encoded = encode(
        input=[{"role": "user", "content": "Look."}, *items, {"role": "user", "content": "So?"}], upstream=upstream
    )
    assert encoded.body["contents"][1]["parts"] == [
        signed(thought("I look.")),
        text("a b a"),
        signed(text(" b")),
        text(" c"),
    ]
    assert encoded.warnings == ()


def test_signature_of_a_text_that_has_changed_follows_the_text() -> None:
    upstream = {"msg_1": bound(GEMINI, parts=[{"text": "gone", "thoughtSignature": "c2ln"}])}
    items = [{"role": "assistant", "id": "msg_1", "content": "Hello."}, {"role": "user", "content": "So?"}]
    parts = ask(input=items, upstream=upstream)["contents"][1]["parts"]
    assert parts == [text("Hello."), {"text": "", "thoughtSignature": "c2ln"}]


def test_signatures_of_another_server_are_left_out_with_a_warning() -> None:
    other = GEMINI.override({"transport.base_url": "https://other.test"})
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "id": "msg_1", "content": "I look."},
        CALL,
        OUTPUT,
    ]
    upstream = {
        "rs_1": bound(other, parts=[signed(thought("Hm."))]),
        "msg_1": bound(other, parts=[signed(text("look."))]),
        "fc_1": bound(other, signature="c2ln", id="g-1"),
    }
    for item in (*items[:2], CALL):
        encoded = encode(
            tools=[LOOK],
            input=[{"role": "user", "content": "Look."}, item, {"role": "user", "content": "So?"}],
            upstream=upstream,
        )
        assert BOUND_ELSEWHERE in encoded.warnings
        assert "c2ln" not in str(encoded.body) and "g-1" not in str(encoded.body)


def test_reasoning_without_signature_is_named_unless_it_is_of_this_server() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    items = [
        {"role": "user", "content": "Look."},
        item,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "So?"},
    ]
    assert encode(input=items).warnings == (UNSIGNED,)
    assert encode(input=items, upstream={"rs_1": bound(GEMINI)}).warnings == ()


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ({"type": "input_image", "image_url": PNG}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}),
        (
            {"type": "input_image", "image_url": "https://a.test/b.webp?c=d"},
            {"fileData": {"mimeType": "image/webp", "fileUri": "https://a.test/b.webp?c=d"}},
        ),
        (
            {"type": "input_image", "image_url": "gs://bucket/b"},
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "gs://bucket/b"}},
        ),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF},
            {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0xLjQK"}},
        ),
        (
            {"type": "input_file", "file_url": "https://a.test/a"},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://a.test/a"}},
        ),
        (
            {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="},
            text('<file name="a.txt">\nHi\n</file>'),
        ),
        (
            {"type": "input_file", "filename": "a.mp3", "file_data": "data:application/octet-stream;base64,AAAA"},
            {"inlineData": {"mimeType": "audio/mpeg", "data": "AAAA"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
        ),
        (
            {"type": "input_video", "video_url": "https://www.youtube.com/watch?v=x"},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://www.youtube.com/watch?v=x"}},
        ),
    ],
)
def test_media_and_files_become_parts(part: dict[str, Any], sent: dict[str, Any]) -> None:
    assert ask(input=[{"role": "user", "content": [part]}])["contents"] == [user(sent)]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "picture.png"},
        {"type": "input_file", "filename": "a.zip", "file_data": "data:application/zip;base64,UEsDBAAA"},
    ],
)
def test_media_that_the_server_does_not_accept_is_refused_with_its_path(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(input=[{"role": "user", "content": [{"type": "input_text", "text": "?"}, part]}])
    assert refused.value.param and refused.value.param.startswith("input[0].content[1]")


IMAGE_OUTPUT = {
    **OUTPUT,
    "output": [{"type": "input_text", "text": "Here."}, {"type": "input_image", "image_url": PNG}],
}
INLINE = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}


def test_image_of_a_tool_is_within_the_function_response_or_after_it_for_earlier_models() -> None:
    given: dict[str, Any] = {"tools": [LOOK], "input": [{"role": "user", "content": "Look."}, CALL, IMAGE_OUTPUT]}
    response = {"name": "look", "response": {"output": "Here."}}
    assert ask(**given)["contents"][-1] == user({"functionResponse": {**response, "parts": [INLINE]}})
    after = user({"functionResponse": response}, "Content from the result of the function 'look':", INLINE)
    assert ask(**given, model=EARLIER)["contents"][-1] == after


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        (None, None),
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ({"type": "function", "name": "hear"}, {"mode": "ANY", "allowedFunctionNames": ["hear"]}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "hear"}]},
            {"mode": "ANY", "allowedFunctionNames": ["hear"]},
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "hear"}]},
            {"mode": "VALIDATED", "allowedFunctionNames": ["hear"]},
        ),
    ],
)
def test_tools_and_tool_choice(choice: Any, config: Any) -> None:
    body = ask(tools=[LOOK, HEAR], **({"tool_choice": choice} if choice else {}))
    look = {"name": "look", "description": "See.", "parametersJsonSchema": PARAMETERS}
    assert body["tools"] == [{"functionDeclarations": [look, {"name": "hear"}]}]
    assert body.get("toolConfig") == (config and {"functionCallingConfig": config})


def test_parallel_calls_that_cannot_be_prevented_are_named() -> None:
    encoded = encode(tools=[LOOK], parallel_tool_calls=False)
    assert encoded.warnings == ("This backend does not support `parallel_tool_calls: false`.",)


@pytest.mark.parametrize(
    ("model", "reasoning", "config"),
    [
        ("gemini-3-flash", {"effort": "low"}, {"thinkingLevel": "LOW"}),
        ("gemini-3-flash", {"effort": "none"}, {"thinkingLevel": "MINIMAL"}),
        ("gemini-3-pro", {"effort": "minimal"}, {"thinkingLevel": "LOW"}),
        ("gemini-3-pro", {"effort": "xhigh", "summary": "auto"}, {"thinkingLevel": "HIGH", "includeThoughts": True}),
        ("gemini-3-pro", {"summary": "auto"}, {"includeThoughts": True}),
        (EARLIER, {"effort": "medium"}, {"thinkingBudget": 8192}),
        (EARLIER, {"effort": "none"}, {"thinkingBudget": 0}),
        ("gemini-2.5-pro", {"effort": "none"}, {"thinkingBudget": 128}),
        ("gemini-2.5-pro", {"effort": "max", "summary": "auto"}, {"thinkingBudget": 24576, "includeThoughts": True}),
    ],
)
def test_effort_becomes_a_level_or_a_budget(model: str, reasoning: Any, config: Any) -> None:
    assert ask(model=model, reasoning=reasoning)["generationConfig"] == {"thinkingConfig": config}


def test_sampling_options_have_their_names_and_others_are_named() -> None:
    fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    fields |= {"max_output_tokens": 77, "top_logprobs": 2, "seed": 7, "stop": "END", "top_k": 5, "logit_bias": {"1": 1}}
    encoded = encode(**fields)
    assert encoded.body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "maxOutputTokens": 77,
        "responseLogprobs": True,
        "logprobs": 2,
        "seed": 7,
        "stopSequences": ["END"],
        "topK": 5,
    }
    assert encoded.warnings == ("The parameter 'logit_bias' is not supported by this backend and was ignored.",)


def test_only_the_first_stop_sequences_are_sent() -> None:
    assert ask(stop=[*"abcdefg"])["generationConfig"] == {"stopSequences": [*"abcde"]}


def test_options_of_the_profile_limit_parameters_by_their_names_in_requests() -> None:
    profile = GEMINI.override({"request.clamp": {"temperature": [0, 1]}, "request.drop_params": ["top_p"]})
    encoded = encode(profile, temperature=1.5, top_p=0.9)
    assert encoded.body["generationConfig"] == {"temperature": 1}
    assert len(encoded.warnings) == 2


def test_safety_settings_of_the_profile_are_sent() -> None:
    setting = {"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}
    profile = GEMINI.override({"request.extra_body": {"safetySettings": [setting]}})
    assert encode(profile).body["safetySettings"] == [setting]


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
FORMAT = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}


def test_text_format_becomes_a_mime_type_and_a_schema() -> None:
    sent = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert ask(text={"format": FORMAT})["generationConfig"] == sent
    assert ask(text={"format": FORMAT}, tools=[LOOK])["generationConfig"] == sent
    sent = {"responseMimeType": "application/json"}
    assert ask(text={"format": {"type": "json_object"}})["generationConfig"] == sent


def test_text_format_with_tools_is_an_instruction_for_earlier_models() -> None:
    body = ask(model=EARLIER, text={"format": FORMAT}, tools=[LOOK])
    assert "generationConfig" not in body
    assert "JSON Schema" in body["systemInstruction"]["parts"][0]["text"]


def test_service_tier_has_its_name() -> None:
    assert encode(service_tier="default").body["serviceTier"] == "standard"
    assert "serviceTier" not in encode(service_tier="auto").body


def test_breakpoints_of_the_prompt_cache_are_named() -> None:
    part = {"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    encoded = encode(input=[{"role": "user", "content": [part]}])
    assert encoded.body["contents"] == [user("Hi")]
    assert any("prompt_cache_breakpoint" in warning for warning in encoded.warnings)


def test_request_without_input_and_instructions_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        encode(input=[])
    assert refused.value.param == "input"
