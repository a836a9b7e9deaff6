"""ModelRequests as Responses requests, checked against the official package's types."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.backends.apis import encode
from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request import reasoning
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.hosted import HostedFunction, HostedTools
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest
from tests.support.openai_types import check_request

SERVER = "http://backend/v1"
PROFILE = Profile().override({"transport.api": "responses", "transport.base_url": SERVER})
ADD = {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}
LAB = {"type": "namespace", "name": "lab", "description": "The lab.", "tools": [ADD, {**PATCH, "name": "write"}]}
THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA"}


def encoded_request(body: dict[str, Any], profile: Profile = PROFILE, **fields: Any) -> EncodedRequest:
    request = CreateResponse.model_validate({"model": "m", **body})
    encoded = encode(ModelRequest(request, fields.pop("items", request.items()), "m", **fields), profile)
    check_request(encoded.body)
    return encoded


def sent(*items: dict[str, Any], upstream: Any = None, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = encoded_request({"input": [*items], **body}, upstream=upstream or {}).body["input"]
    return found


def call(call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}", **fields}


def output(call_id: str = "call_1", text: Any = "3") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def bound(item: dict[str, Any], to: str = SERVER) -> dict[str, Any]:
    return {"bound": {"to": to, "item": item}}


def test_question_is_stateless_and_asks_for_encrypted_reasoning() -> None:
    body = encoded_request({"input": "Hi", "instructions": "Be brief."}).body
    assert body == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [user("Hi")],
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "stream": True,
    }


def test_extra_parameters_are_sent_that_the_profile_names_if_they_have_a_value() -> None:
    profile = PROFILE.override({"request.extra_params": ["top_k", "min_p", "ids"], "request.forward": ["seed"]})
    fields = {"top_k": 3, "min_p": None, "ids": [], "seed": 0, "repetition_penalty": 1.5}
    request = CreateResponse.model_validate({"model": "m", "input": "Hi", **fields})
    body = encode(ModelRequest(request, request.items(), "m"), profile).body
    assert {name: body[name] for name in fields if name in body} == {"top_k": 3, "seed": 0}


def test_parameters_have_the_same_names() -> None:
    fields = {
        "reasoning": {"effort": "xhigh", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
        "temperature": 0.5,
        "top_p": 0.5,
        "max_output_tokens": 100,
        "top_logprobs": 3,
        "service_tier": "flex",
        "safety_identifier": "user-1",
        "prompt_cache_key": "key",
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "explicit"},
    }
    encoded = encoded_request({"input": "Hi", **fields})
    assert {name: encoded.body[name] for name in fields} == fields
    assert encoded.body["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert encoded.warnings == ()


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "background", "metadata", "truncation"])
def test_request_never_names_stored_state_of_the_server(name: str) -> None:
    value = {"background": True, "metadata": {"a": "b"}, "truncation": "auto"}.get(name, "resp_1")
    assert name not in encoded_request({"input": "Hi", name: value}).body


def test_unknown_parameters_are_named_in_warnings() -> None:
    encoded = encoded_request({"input": "Hi", "seed": 1, "logit_bias": {"1": 2}})
    assert not {"seed", "logit_bias"} & encoded.body.keys()
    assert [warning.split("'")[1] for warning in encoded.warnings] == ["seed", "logit_bias"]


def test_tools_are_declared_in_their_own_types() -> None:
    encoded = encoded_request({"input": "Hi", "tools": [ADD, PATCH, LAB]})
    function = {**ADD, "strict": None}
    assert encoded.body["tools"] == [
        function,
        PATCH,
        {**LAB, "tools": [function, {**PATCH, "name": "write"}]},
    ]
    assert list(encoded.bindings) == ["add", "patch", "lab__add", "lab__write"]
    assert encoded.bindings["lab__write"].fields == {"name": "write", "namespace": "lab"}


def test_tools_are_functions_where_the_server_knows_no_others() -> None:
    profile = PROFILE.override({"request.native_tools": []})
    tools = encoded_request({"input": "Hi", "tools": [PATCH, LAB]}, profile).body["tools"]
    assert [(tool["type"], tool["name"]) for tool in tools] == [
        ("function", "patch"),
        ("function", "lab__add"),
        ("function", "lab__write"),
    ]
    assert tools[1]["description"] == "The lab.\n\nAdd."
    assert tools[0]["parameters"]["required"] == ["input"]


def test_hosted_tools_are_functions() -> None:
    roll = HostedFunction("roll", "mcp_call", "Roll dice.", namespace="dice", fields={"server_label": "dice"})
    body = encoded_request({"input": "Hi"}, hosted=HostedTools([(roll, {"mcp"})])).body
    assert [(tool["type"], tool["name"]) for tool in body["tools"]] == [("function", "dice__roll")]


@pytest.mark.parametrize(
    ("choice", "native"),
    [
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "add"}, {"type": "function", "name": "add"}),
        ({"type": "custom", "name": "patch"}, {"type": "custom", "name": "patch"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
        ),
    ],
)
def test_tool_choice_names_tools_as_they_are_declared(choice: Any, native: Any) -> None:
    encoded = encoded_request(
        {"input": "Hi", "tools": [ADD, PATCH], "tool_choice": choice, "parallel_tool_calls": False}
    )
    assert encoded.body["tool_choice"] == native
    assert len(encoded.body["tools"]) == 2
    assert encoded.body["parallel_tool_calls"] is False


def test_tool_that_only_the_server_has_is_declared_as_it_is() -> None:
    profile = PROFILE.override({"request.passes": ["image_generation", "web_search"]})
    search = {"type": "web_search", "search_context_size": "low"}
    body = {"input": "Hi", "tools": [ADD, search], "include": ["web_search_call.action.sources"]}
    encoded = encoded_request(body, profile)
    assert encoded.body["tools"] == [{**ADD, "strict": None}, search]
    assert encoded.body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    assert encoded.warnings == ()
    assert list(encoded.bindings) == ["add"]
    choice = {"type": "image_generation"}
    chosen = encoded_request({"input": "Hi", "tools": [ADD, choice], "tool_choice": choice}, profile)
    assert (chosen.body["tool_choice"], chosen.allowed) == (choice, frozenset())
    assert [tool["type"] for tool in encoded_request(body).body["tools"]] == ["function"]


def test_native_call_and_its_output_are_sent_as_they_are() -> None:
    profile = PROFILE.override({"request.passes": ["apply_patch"]})
    operation = {"type": "create_file", "path": "a.txt", "diff": "+a"}
    call = {"type": "apply_patch_call", "call_id": "c1", "status": "completed", "operation": operation}
    output = {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed", "output": "Created."}
    loose = {**output, "call_id": "c2"}
    body = {"input": [{"role": "user", "content": "Hi"}, call, output, loose], "tools": [{"type": "apply_patch"}]}
    items = encoded_request(body, profile).body["input"]
    assert items[1:3] == [call, output]
    assert items[3]["type"] == "message"  # without its call


def test_messages_keep_their_role_and_their_phase() -> None:
    items = sent(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "assistant", "content": "Let me see.", "phase": "commentary"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    )
    assert [item["role"] for item in items] == ["developer", "user", "assistant", "assistant"]
    assert items[2]["phase"] == "commentary"
    assert items[2]["content"] == [{"type": "output_text", "text": "Let me see.", "annotations": []}]
    assert items[3]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_parts_are_sent_with_their_cache_breakpoints() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    parts = [
        {"type": "input_text", "text": "Hi", **mark},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "original", **mark},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0=", **mark},
    ]
    assert sent({"role": "user", "content": parts})[0]["content"] == parts


def test_results_with_images_are_sent_as_they_are() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
    items = sent(user("Look"), call(), output(text=[{"type": "input_text", "text": "here"}, image]))
    assert items[-1] == output(text=[{"type": "input_text", "text": "here"}, image])


def test_calls_of_custom_tools_and_of_namespaces_stay_what_they_are() -> None:
    custom = {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": 'a\n"b"'}
    result = {"type": "custom_tool_call_output", "call_id": "call_2", "output": "ok"}
    spaced = call(namespace="lab")
    items = sent(user("Go"), spaced, output(), custom, result, tools=[PATCH, LAB])
    assert items == [user("Go"), spaced, output(), custom, result]


def test_call_without_a_result_gets_one_and_a_result_without_a_call_goes_as_a_message() -> None:
    encoded = encoded_request({"input": [user("Go"), output("call_0", "late"), call()]})
    assert encoded.body["input"][1]["role"] == "user"
    assert encoded.body["input"][2:] == [call(), output(text="(no output)")]
    assert len(encoded.warnings) == 2


def test_result_before_its_call_is_moved_behind_it() -> None:
    assert sent(user("Go"), output(), call()) == [user("Go"), call(), output()]


def test_two_calls_with_one_id_are_distinguished() -> None:
    ids = [
        item["call_id"]
        for item in sent(user("Go"), call(), output(), user("Again"), call(), output())[1:]
        if "call_id" in item
    ]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_reasoning_goes_back_to_its_server_unchanged_and_in_its_place() -> None:
    thought = {"type": "reasoning", "id": "rs_ours", "summary": [{"type": "summary_text", "text": "Changed."}]}
    items = sent(user("Go"), thought, call(), output(), upstream={"rs_ours": bound(THOUGHT)})
    assert items == [user("Go"), THOUGHT, call(), output()]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_reasoning_goes_to_no_other_server(api: str) -> None:
    thought = {"type": "reasoning", "id": "rs_ours", "summary": []}
    request = CreateResponse.model_validate({"model": "m", "input": [user("Go"), thought, call(), output()]})
    upstream = {"rs_ours": bound(THOUGHT, "http://another/v1")}
    encoded = encode(ModelRequest(request, request.items(), "m", upstream), PROFILE.override({"transport.api": api}))
    assert "gAAA" not in str(encoded.body)
    assert encoded.warnings == ("Reasoning encrypted by another server was dropped.",)


PLAIN = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "I must call f."}]}


@pytest.mark.parametrize("policy", ["tool_turns", "always", "current_turn"])
def test_plain_reasoning_is_sent_where_the_profile_says_so(policy: str) -> None:
    profile = load_profile("deepseek").override({"transport.api": "responses", "request.reasoning_replay": policy})
    request = CreateResponse.model_validate({"model": "m", "input": [user("Go"), PLAIN, call(), output()]})
    encoded = encode(ModelRequest(request, request.items(), "m"), profile)
    assert encoded.body["input"][1] == {**PLAIN, "id": "rs_1"}
    assert encoded.warnings == ()


def test_plain_reasoning_of_a_turn_without_tools_is_not_sent_back() -> None:
    profile = load_profile("deepseek").override({"transport.api": "responses"})
    items = [user("Go"), PLAIN, {"role": "assistant", "content": "Done."}, user("Thanks.")]
    request = CreateResponse.model_validate({"model": "m", "input": items})
    encoded = encode(ModelRequest(request, request.items(), "m"), profile)
    assert [item["type"] for item in encoded.body["input"]] == ["message"] * 3
    assert encoded.warnings == ()


@pytest.mark.parametrize(
    ("api", "warning"),
    [
        (
            "responses",
            "Plain-text reasoning was dropped; to send it, set this backend's option 'request.reasoning_replay'.",
        ),
        ("messages", reasoning.UNSIGNED),
    ],
)
def test_plain_reasoning_that_is_left_out_is_named(api: str, warning: str) -> None:
    request = CreateResponse.model_validate({"model": "m", "input": [user("Go"), PLAIN, call(), output()]})
    encoded = encode(ModelRequest(request, request.items(), "m"), PROFILE.override({"transport.api": api}))
    assert encoded.warnings == (warning,)
    assert "I must call" not in str(encoded.body)


def test_reasoning_that_nothing_follows_is_left_out() -> None:
    thought = {"type": "reasoning", "id": "rs_ours", "summary": []}
    items = sent(user("Go"), thought, user("Go on"), upstream={"rs_ours": bound(THOUGHT)})
    assert items == [user("Go"), user("Go on")]


def test_field_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(InvalidRequest) as error:
        sent(user("Look"), {"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]})
    assert error.value.param == "input[1].content[0].file_id"


ITEMS = st.lists(
    st.sampled_from(
        [
            user("Hi"),
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": "Hello."},
            {"role": "assistant", "content": [{"type": "output_text", "text": ""}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "reasoning", "id": "rs_2", "summary": []},
            *(call(f"call_{n}") for n in range(3)),
            *(output(f"call_{n}") for n in range(3)),
            call("call_3", **{"async": True}),
            output("call_3"),
            {"type": "custom_tool_call", "call_id": "call_4", "name": "patch", "input": "a"},
            {"type": "custom_tool_call_output", "call_id": "call_4", "output": "b"},
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            {"type": "compaction", "encrypted_content": "elsewhere"},
            {"type": "agent_message", "content": "x"},
        ]
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(ITEMS, st.booleans())
def test_every_conversation_is_one_that_a_server_takes(items: list[dict[str, Any]], native: bool) -> None:
    profile = PROFILE if native else PROFILE.override({"request.native_tools": []})
    upstream = {"rs_1": bound(THOUGHT), "rs_2": bound({**THOUGHT, "id": "rs_2"}, "http://another/v1")}
    found = encoded_request({"input": [*items, user("Go on")], "tools": [ADD, PATCH]}, profile, upstream=upstream).body[
        "input"
    ]
    calls = [item["call_id"] for item in found if item["type"].endswith("_call")]
    outputs = [item["call_id"] for item in found if item["type"].endswith("_output")]
    assert len({*calls}) == len(calls)
    assert sorted(calls) == sorted(outputs)
    for call_id in calls:
        of_one = [item["type"] for item in found if item.get("call_id") == call_id]
        assert of_one == [of_one[0], f"{of_one[0]}_output"]
    for item, after in itertools.pairwise(found):
        if item["type"] == "reasoning":
            assert item["encrypted_content"] == "gAAA"
            assert after["type"] in ("reasoning", "function_call", "custom_tool_call") or after["role"] == "assistant"
    ids = [item["id"] for item in found if item.get("role") == "assistant"]
    assert len({*ids}) == len(ids)


def test_many_results_without_a_call_are_encoded_in_no_time() -> None:
    results = [output(f"call_{n}") for n in range(3000)]
    assert len(sent(user("Go"), *results)) == 3001


def test_call_without_its_output_with_strict_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        encoded_request({"input": [call(), user("Never mind.")]}, strict=True)
    expected = ("input", "No tool output found for function call 'call_1'.")
    assert (caught.value.param, caught.value.message) == expected
