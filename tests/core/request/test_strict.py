"""With `strict`, fields otherwise dropped with a warning are refused, with the closest valid name."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import ModelRequest
from app.core.types.request import CreateResponse
from app.errors import InvalidRequest


def ask(**fields: Any) -> Any:
    options = fields.pop("options", {})
    request = CreateResponse.model_validate({"model": "m", "input": "Hi", **fields})
    return to_chat(ModelRequest(request, request.items(), "m", strict=True), Profile().override(options))


NAMESPACE = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a"}, {"type": "fnction"}]}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"previous_respons_id": "resp_1"},
            "previous_respons_id",
            "Unknown parameter: 'previous_respons_id'. Did you mean 'previous_response_id'?",
        ),
        ({"temprature": 1}, "temprature", "Unknown parameter: 'temprature'. Did you mean 'temperature'?"),
        ({"topk": 5}, "topk", "Unknown parameter: 'topk'. Did you mean 'top_k'?"),
        ({"zzz": 1}, "zzz", "Unknown parameter: 'zzz'."),
        (
            {"moderation": {"model": "omni-moderation-latest"}},
            "moderation",
            "Unsupported parameter: 'moderation': this server does not moderate content.",
        ),
        (
            {"reasoning": {"mode": "pro"}},
            "reasoning.mode",
            "Unsupported parameter: 'reasoning.mode': model servers support only reasoning effort.",
        ),
        (
            {"reasoning": {"efort": "low"}},
            "reasoning.efort",
            "Unknown parameter: 'reasoning.efort'. Did you mean 'effort'?",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "stric": True}}},
            "text.format.stric",
            "Unknown parameter: 'text.format.stric'. Did you mean 'strict'?",
        ),
        (
            {"include": ["reasoning.encrypted_content", "reasoning.encypted_content"]},
            "include[1]",
            "Invalid 'include[1]': unknown value 'reasoning.encypted_content'. "
            "Did you mean 'reasoning.encrypted_content'?",
        ),
        (
            {"tools": [{"type": "function", "name": "a"}, {"type": "web_search"}]},
            "tools[1]",
            "Tools of type 'web_search' require a table [tools.web_search] in this server's settings.",
        ),
        (
            {"tools": [{"type": "fuction", "name": "a"}]},
            "tools[0]",
            "Tools of type 'fuction' are not supported. Did you mean 'function'?",
        ),
        (
            {"tools": [NAMESPACE]},
            "tools[0].tools[1]",
            "A tool of the namespace 'n' is not a function. Did you mean 'function'?",
        ),
    ],
)
def test_strict_refuses_the_unknown_with_the_closest_name(fields: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(**fields)
    assert (caught.value.param, caught.value.message) == (param, message)


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1, "top_k": 2, "client_metadata": {"a": "b"}, "prompt_cache_retention": "24h"},
        {"guided_choice": ["a"], "options": {"request.extra_params": ["guided_choice"]}},
        {"n": 2, "options": {"request.forward": ["n"]}},
        {"unheard_of": None, "reasoning": {"effort": "low", "unheard_of": None}},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"unheard_of": 1}}, "verbosity": "low"}},
        {"tools": [{"type": "function", "name": "a", "unheard_of": 1}]},
        {"input": [{"role": "user", "content": "Hi", "unheard_of": 1}, {"type": "additional_tools", "tools": [{}]}]},
        {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
    ],
)
def test_strict_accepts_what_is_known_or_replayed(fields: Any) -> None:
    assert ask(**fields).body["messages"]


CALL = {"type": "function_call", "call_id": "call_1", "name": "a", "arguments": "{}"}
SHELL = {"type": "shell_call", "call_id": "call_1", "action": {"commands": ["ls"]}}
AGAIN = {"role": "user", "content": "Never mind."}


@pytest.mark.parametrize("call", [CALL, {**CALL, "type": "custom_tool_call", "input": "x"}, SHELL])
def test_call_without_its_output_is_refused(call: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(input=[call, AGAIN])
    expected = ("input", "No tool output found for function call 'call_1'.")
    assert (caught.value.param, caught.value.message) == expected


@pytest.mark.parametrize(
    "items",
    [
        [CALL, {"type": "function_call_output", "call_id": "call_1", "output": ""}],
        [{**CALL, "async": True}],  # its output may come in any later turn
    ],
)
def test_call_with_its_output_or_without_it_yet_is_taken(items: list[dict[str, Any]]) -> None:
    assert ask(input=[*items, AGAIN]).body["messages"]
