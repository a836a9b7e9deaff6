"""Fields unknown to a server: its error messages, and the adapted request."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from app.backends import Backend, OpenRequest
from app.backends.routing.router import Router
from app.backends.server.adaptation import REMEMBERED, FieldAdaptation
from app.backends.server.client import ModelServer
from app.backends.server.errors import backend_error
from app.backends.server.errors.unsupported_fields import unknown_fields
from app.core.profile import Profile
from app.core.request import CALLER_FIELDS
from app.core.request.model_request import ModelRequest
from app.errors import BackendError
from tests.support.build import texts_of
from tests.support.exchanges import asking, reads
from tests.support.logs import records_of
from tests.support.machine import slowness
from tests.support.routing import Build as Route
from tests.support.routing import build as route
from tests.support.serving import antiphon
from tests.support.upstream import DONE as END
from tests.support.upstream import RESET, Step, Upstream, chunk, completion, finish, sse, status

__all__ = ["route"]  # a fixture

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

# All possible body fields.
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [{**CALL, "extra_content": {"a": 1}}], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "store": False,
    "metadata": {"a": "b"},
    "user": "ada",
    "safety_identifier": "ada",
    "prompt_cache_key": "k",
    "service_tier": "flex",
    "verbosity": "low",
    "parallel_tool_calls": True,
    "max_completion_tokens": 9,
    "temperature": 0.5,
    "presence_penalty": 0.5,
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": True}},
    "tools": [{**TOOL, "function": {**TOOL["function"], "strict": True}}],  # type: ignore[dict-item]
    "tool_choice": "auto",
}


def openai(message: str, param: str | None = None, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def fastapi(*locations: list[str | int], msg: str = "Extra inputs are not permitted") -> list[dict[str, Any]]:
    return [
        {"type": "extra_forbidden", "loc": ["body", *location], "msg": msg, "input": "user"} for location in locations
    ]


def gemini(*names: str) -> list[Any]:
    messages = [f"Invalid JSON payload received. Unknown name {name}: Cannot find field." for name in names]
    return [{"error": {"code": 400, "message": "\n".join(messages), "status": "INVALID_ARGUMENT"}}]


REASONING, EXTRA, STRICT = "messages[].reasoning_content", "messages[].tool_calls[].extra_content", "tools[].strict"

# Error messages, by server.
WORDS: dict[str, tuple[int, Any, list[str]]] = {
    "OpenAI": (
        400,
        openai("Unknown parameter: 'stream_options'.", "stream_options", "unknown_parameter"),
        ["stream_options"],
    ),
    "OpenAI, of a model": (
        400,
        openai(
            "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
            "parallel_tool_calls",
            "unsupported_parameter",
        ),
        ["parallel_tool_calls"],
    ),
    "OpenAI, in a message": (
        400,
        openai(
            "Unknown parameter: 'messages[1].reasoning_content'.",
            "messages[1].reasoning_content",
            "unknown_parameter",
        ),
        [REASONING],
    ),
    "OpenAI, of metadata": (
        400,
        openai("The 'metadata' parameter is only allowed when 'store' is enabled."),
        ["metadata"],
    ),
    "its code alone tells": (400, openai("No.", "store", "unsupported_parameter"), ["store"]),
    "Copilot": (
        400,
        {
            "error": {
                "message": "Unsupported parameter: 'max_completion_tokens' is not supported with this model. "
                "Use 'max_tokens' instead.",
                "code": "invalid_request_body",
            }
        },
        ["max_completion_tokens"],
    ),
    "Azure, early": (
        400,
        openai("Unrecognized request argument supplied: stream_options. Please contact us through a support request."),
        ["stream_options"],
    ),
    "Azure, several": (
        400,
        openai("Unrecognized request arguments supplied: user, store, metadata"),
        ["user", "store", "metadata"],
    ),
    "Azure, in a message": (
        400,
        openai("Additional properties are not allowed ('reasoning_content', 'parsed' were unexpected) - 'messages.1'"),
        [REASONING],
    ),
    "Azure, by a path": (
        400,
        openai("Validation error at #/stream_options: Extra inputs are not permitted"),
        ["stream_options"],
    ),
    "Azure's models of others": (
        400,
        {"error": {"message": "Extra parameters ['user', 'store'] are not allowed when extra-parameters is not set."}},
        ["user", "store"],
    ),
    "Groq": (400, openai("property 'store' is unsupported, did you mean 'stop'?"), ["store"]),
    "Groq, in a message": (
        400,
        openai(
            "'messages.1' : for 'role:assistant' the following must be satisfied"
            "[('messages.1' : property 'reasoning_content' is unsupported)]"
        ),
        [REASONING],
    ),
    "Groq, of a model": (400, openai("`metadata` is not supported with this model", "metadata"), ["metadata"]),
    "Cerebras": (
        422,
        {
            "message": "body.prompt_cache_key: property 'body.prompt_cache_key' is unsupported",
            "type": "invalid_request_error",
            "param": "validation_error",
            "code": "wrong_api_format",
        },
        ["prompt_cache_key"],
    ),
    "Cerebras, in messages": (
        400,
        {
            "message": "messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is "
            "unsupported\nmessages.4.assistant.reasoning_content: property 'messages.4.assistant.reasoning_content' "
            "is unsupported",
            "type": "invalid_request_error",
            "param": "validation_error",
            "code": "wrong_api_format",
        },
        [REASONING],
    ),
    "a message's field without its place": (400, openai("property 'reasoning_content' is unsupported"), [REASONING]),
    "Fireworks": (
        400,
        openai("Extra inputs are not permitted, field: 'stream_options', value: {'include_usage': True}"),
        ["stream_options"],
    ),
    "Fireworks, several": (
        400,
        openai(
            "2 request validation errors: Extra inputs are not permitted, field: 'user', value: 'ada'; "
            "Extra inputs are not permitted, field: 'messages[1].reasoning_content', value: 'Hm.'"
        ),
        ["user", REASONING],
    ),
    "Mistral": (422, {"object": "error", "message": {"detail": fastapi(["store"], ["user"])}}, ["store", "user"]),
    "Mistral, lately": (
        422,
        {"object": "Error", "detail": fastapi(["user"]), "message": fastapi(["user"]), "code": 3001},
        ["user"],
    ),
    "Mistral, in a string": (
        422,
        {"object": "error", "message": json.dumps({"detail": fastapi(["user"])}), "type": "internal_error_proxy"},
        ["user"],
    ),
    "Mistral, in a message": (422, {"detail": fastapi(["messages", 1, "assistant", "reasoning_content"])}, [REASONING]),
    "FastAPI, by the kind of a message": (
        422,
        {"detail": fastapi(["messages", 1, "ChatCompletionAssistantMessageParam", "reasoning_content"])},
        [REASONING],
    ),
    "Mistral, in a call": (
        422,
        {"detail": fastapi(["messages", 1, "assistant", "tool_calls", 0, "extra_content"])},
        [EXTRA],
    ),
    "Mistral, in a tool": (422, {"detail": fastapi(["tools", 0, "function", "strict"])}, [STRICT]),
    "vLLM, early": (
        400,
        {
            "object": "error",
            "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'max_completion_tokens'), "
            "'msg': 'Extra inputs are not permitted', 'input': 800}]",
            "type": "BadRequestError",
            "code": 400,
        },
        ["max_completion_tokens"],
    ),
    "TensorRT-LLM": (
        400,
        {
            "object": "error",
            "message": "1 validation error for ChatCompletionRequest\nstore\n  Extra inputs are not permitted "
            "[type=extra_forbidden, input_value=False, input_type=bool]",
        },
        ["store"],
    ),
    "pydantic 1": (422, {"detail": fastapi(["store"], msg="extra fields not permitted")}, ["store"]),
    "NVIDIA": (
        422,
        {
            "type": "urn:inference-service:problem-details:unprocessable-entity",
            "title": "Unprocessable Entity",
            "status": 422,
            "detail": "body -> user\n  Extra inputs are not permitted (type=extra_forbidden)\n"
            "body -> stream_options\n  Extra inputs are not permitted (type=extra_forbidden)",
        },
        ["user", "stream_options"],
    ),
    "Dynamo": (
        400,
        {"message": "Validation: Unsupported parameter(s): `prompt_cache_key`, `store`", "code": 400},
        ["prompt_cache_key", "store"],
    ),
    "Dynamo, unquoted": (
        400,
        {"message": "Validation: Unsupported parameter(s): prompt_cache_key", "type": "Bad Request", "code": 400},
        ["prompt_cache_key"],
    ),
    "Gemini": (400, gemini('"store"', '"user"'), ["store", "user"]),
    "Gemini, in a message": (400, gemini("\"reasoning_content\" at 'messages[1]'"), [REASONING]),
    "Gemini, in a tool": (400, gemini("\"strict\" at 'tools[0].function'"), [STRICT]),
    "LiteLLM": (
        400,
        openai(
            "litellm.UnsupportedParamsError: gemini does not support parameters: {'parallel_tool_calls': True}, "
            "for model=x. To drop these, set `litellm.drop_params=True`"
        ),
        ["parallel_tool_calls"],
    ),
    "LiteLLM, with a value that is a name, too": (
        400,
        openai("litellm.UnsupportedParamsError: x does not support parameters: {'user': 'temperature'}, for model=y."),
        ["user"],
    ),
    "LiteLLM, a list": (
        400,
        openai("litellm.UnsupportedParamsError: x does not support parameters: ['user', 'verbosity'], for model=y."),
        ["user", "verbosity"],
    ),
    "LiteLLM, of a library": (
        500,
        openai("AsyncCompletions.create() got an unexpected keyword argument 'verbosity'"),
        ["verbosity"],
    ),
    "LiteLLM, of a provider": (
        422,
        openai(
            "OpenAIException - Error code: 422 - {'detail': [{'type': 'extra_forbidden', 'loc': ['body', 'user'], "
            "'msg': 'Extra inputs are not permitted', 'input': 'x'}]}",
            code=422,
        ),
        ["user"],
    ),
    "xAI": (
        400,
        {"code": "Client specified an invalid argument", "error": "Argument not supported on this model: serviceTier"},
        ["service_tier"],
    ),
    "xAI, lately": (400, {"error": "Model grok-9 does not support parameter streamOptions."}, ["stream_options"]),
    "Databricks": (400, {"message": 'Bad request: json: unknown field "stream_options"'}, ["stream_options"]),
    "Cohere, in a tool": (
        422,
        {"message": "unknown field: parameter 'strict' is not a valid field. For proper usage, see the reference."},
        [STRICT],
    ),
    "serde": (
        422,
        b"Failed to deserialize the JSON body into the target type: unknown field `store`, expected one of `user`, `n`",
        ["store"],
    ),
    "Vertex": (
        400,
        openai("Unable to submit request because the model does not support the user parameter. Remove it."),
        ["user"],
    ),
    "transformers": (422, {"detail": "Unexpected keys in the request: {'user', 'store'}"}, ["user", "store"]),
    "transformers, what it ignores": (422, {"detail": "Unsupported fields in the request: {'store'}"}, ["store"]),
    "zod": (400, {"error": {"message": "Unrecognized key(s) in object: 'store', 'user'"}}, ["store", "user"]),
    "zod 4": (400, {"error": 'Unrecognized keys: "store", "user"'}, ["store", "user"]),
    "OpenRouter, of a provider": (
        400,
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": json.dumps(openai("property 'store' is unsupported"))},
            }
        },
        ["store"],
    ),
    # Parameters with an effect on the answer are reported to the caller.
    "a parameter that matters": (
        400,
        openai("Unsupported parameter: 'temperature' is not supported with this model.", "temperature"),
        ["temperature"],
    ),
    "a part of one that matters": (
        400,
        openai("Unknown parameter: 'response_format.json_schema.strict'.", None, "unknown_parameter"),
        ["response_format"],
    ),
    "a schema's keyword": (400, gemini("\"strict\" at 'tools[0].function.parameters.properties[0].value'"), ["tools"]),
    # None of these errors is about an unknown field.
    "not ours": (400, openai("Unknown parameter: 'input'.", "input", "unknown_parameter"), []),
    "a value": (
        400,
        openai("Unsupported value: 'service_tier' does not support 'flex' with this model.", "service_tier"),
        [],
    ),
    "a type": (422, {"detail": [{"loc": ["body", "metadata"], "msg": "Input should be a valid dictionary"}]}, []),
    "a length": (400, openai("Invalid 'user': string too long.", "user", "string_above_max_length"), []),
    "something else": (400, openai("The messages are not in order."), []),
    "the caller's words": (400, openai("Invalid content: 'please leave out user and metadata, and store nothing'"), []),
    "a part of a message": (400, openai("Unknown parameter: 'messages[0].content[0].name'."), ["messages"]),
    "no word at all": (400, b"", []),
}


def refused(code: int, message: Any) -> BackendError:
    return backend_error(code, {}, message if isinstance(message, bytes) else json.dumps(message).encode())


@pytest.mark.parametrize(("code", "message", "fields"), WORDS.values(), ids=WORDS)
def test_unknown_fields_are_found_in_the_servers_words(code: int, message: Any, fields: list[str]) -> None:
    assert unknown_fields(refused(code, message), BODY) == fields


@pytest.mark.parametrize(
    "text", ["'" * 2000, "unknown field: " * 130, "a, " * 700, "x" * 2000, "a." * 1000, "a\n" * 999, "\n" * 2000]
)
def test_messages_of_any_kind_are_read_quickly(text: str) -> None:
    started = time.process_time()
    unknown_fields(BackendError(f"Unknown parameters: {text}", status=400), BODY)
    assert time.process_time() - started < 0.2 * slowness()


@pytest.mark.parametrize(
    "message", ["invalid_encrypted_content", "Unknown parameter: 'strict'", "Unknown parameter: 'messages[0].name'"]
)
def test_refusal_by_an_api_whose_requests_have_another_form_names_no_fields_of_it(message: str) -> None:
    body = {"model": "m", "input": "Hi", "messages": "Hi", "tools": ["look"]}
    assert unknown_fields(BackendError(message, status=400), body) == []


UNKNOWN = "Unrecognized request arguments supplied: {}"


def unknown(*fields: str) -> BackendError:
    return BackendError(UNKNOWN.format(", ".join(fields)), status=400)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def without(*fields: str, body: dict[str, Any] = BODY, **options: Any) -> tuple[dict[str, Any] | None, list[str]]:
    """The request after a refusal of some fields, and the caller's warnings."""
    profile = Profile().override({f"request.{name}": value for name, value in options.items()})
    adapted = FieldAdaptation(profile.request, CALLER_FIELDS).adapt(body)
    before = json.dumps(body)
    again = adapted.drop_fields(unknown(*fields))
    assert json.dumps(body) == before
    return (adapted.body, adapted.warnings) if again else (None, [])


@pytest.mark.parametrize("field", ["stream_options", "store"])
def test_default_that_is_refused_is_left_out_without_a_warning(field: str) -> None:
    assert without(field) == ({name: value for name, value in BODY.items() if name != field}, [])


@pytest.mark.parametrize(
    ("field", "called"),
    [
        *((one, one) for one in ("metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier")),
        ("verbosity", "text.verbosity"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("tool_choice", "tool_choice"),
    ],
)
def test_field_without_effect_on_the_answer_is_left_out_with_a_warning(field: str, called: str) -> None:
    body, warnings = without(field)
    assert body == {name: value for name, value in BODY.items() if name != field}
    assert warnings == [f"This backend does not support '{called}'; it was ignored."]


def test_parallel_tool_calls_that_is_refused_is_enforced_here() -> None:
    body, warnings = without("parallel_tool_calls", body={**BODY, "parallel_tool_calls": False})
    assert (body or BODY).get("parallel_tool_calls") is None
    assert warnings == ["This backend does not support `parallel_tool_calls: false`."]


@pytest.mark.parametrize("field", ["temperature", "presence_penalty", "reasoning_effort", "response_format", "tools"])
def test_field_with_effect_on_the_answer_is_never_left_out(field: str) -> None:
    assert without(field) == (None, [])
    assert without("store", field) == (None, [])


@pytest.mark.parametrize("field", ["messages", "model", "stream"])
def test_field_of_the_question_is_never_left_out(field: str) -> None:
    assert without(field) == (None, [])


@pytest.mark.parametrize("choice", ["none", "required", {"type": "function", "function": {"name": "f"}}])
def test_tool_choice_with_effect_is_never_left_out(choice: Any) -> None:
    assert without("tool_choice", body={**BODY, "tool_choice": choice}) == (None, [])


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalty_of_zero_can_be_left_out(penalty: str) -> None:
    body, warnings = without(penalty, body={**BODY, penalty: 0.0})
    assert body is not None
    assert penalty not in body
    assert warnings == [f"This backend does not support '{penalty}'; it was ignored."]


def test_reasoning_that_is_refused_is_left_out_of_all_messages() -> None:
    error = BackendError("property 'messages.1.assistant.reasoning_content' is unsupported", status=400)
    adapted = FieldAdaptation(Profile().request, CALLER_FIELDS).adapt({**BODY, "messages": BODY["messages"] * 2})
    assert adapted.drop_fields(error)
    assert [*map(set, adapted.body["messages"])] == [
        {"role", "content"},
        {"role", "tool_calls"},
        {"role", "tool_call_id", "content"},
    ] * 2
    assert adapted.warnings == []


def test_extra_field_of_calls_that_is_refused_is_left_out_of_all() -> None:
    error = refused(422, {"detail": fastapi(["messages", 1, "assistant", "tool_calls", 0, "extra_content"])})
    adapted = FieldAdaptation(Profile().request, CALLER_FIELDS).adapt(BODY)
    assert adapted.drop_fields(error)
    assert adapted.body["messages"] == [
        BODY["messages"][0],
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "Hm."},
        BODY["messages"][2],
    ]


@pytest.mark.parametrize("field", ["role", "content", "tool_calls", "tool_call_id"])
def test_required_fields_of_a_message_stay(field: str) -> None:
    error = refused(400, openai(f"Unknown parameter: 'messages[1].{field}'.", code="unknown_parameter"))
    assert not FieldAdaptation(Profile().request, CALLER_FIELDS).adapt(BODY).drop_fields(error)


STRICTLESS = "This backend does not support 'strict' in tools; it was ignored."


@pytest.mark.parametrize(("strict", "expected"), [(True, [STRICTLESS]), (False, [])])
def test_strict_that_is_refused_is_left_out_of_tools(strict: bool, expected: list[str]) -> None:
    tools = [TOOL, {**TOOL, "function": {**TOOL["function"], "strict": strict}}]  # type: ignore[dict-item]
    body, warnings = without("strict", body={**BODY, "tools": tools})
    assert (body or {})["tools"] == [TOOL, TOOL]
    assert warnings == expected


@pytest.mark.parametrize(
    ("old", "new"), [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
)
def test_token_limit_that_is_refused_is_sent_under_its_other_name(old: str, new: str) -> None:
    model_request = {"model": "m", "messages": [], old: 9}
    assert without(old, body=model_request) == ({"model": "m", "messages": [], new: 9}, [])
    adapted = FieldAdaptation(Profile().request, CALLER_FIELDS).adapt(model_request)
    assert adapted.drop_fields(unknown(old))
    assert not adapted.drop_fields(unknown(new))  # it knows neither, so the caller gets the error


def test_token_limit_under_two_names_is_reduced_to_one() -> None:
    body = {"model": "m", "messages": [], "max_tokens": 9, "max_completion_tokens": 9}
    assert without("max_tokens", body=body) == ({"model": "m", "messages": [], "max_completion_tokens": 9}, [])


def test_field_that_the_operator_set_is_never_left_out() -> None:
    assert without("store", extra_body={"store": False}) == (None, [])


def test_strict_that_the_profile_forces_stays() -> None:
    assert without("strict", strict="force") == (None, [])


def test_adaptation_can_be_switched_off() -> None:
    assert without("store", adapt=False) == (None, [])


@pytest.mark.parametrize("code", [401, 403, 404, 429, 502, 503])
def test_errors_of_another_kind_adapt_nothing(code: int) -> None:
    assert (
        not FieldAdaptation(Profile().request, CALLER_FIELDS)
        .adapt(BODY)
        .drop_fields(BackendError(UNKNOWN.format("store"), status=code))
    )


def test_adaptation_of_one_request_is_bounded() -> None:
    adapted = FieldAdaptation(Profile().request, CALLER_FIELDS).adapt(
        {**BODY, "messages": [{f"x{n}": 1 for n in range(100)}]}
    )
    rounds = 0
    while adapted.drop_fields(unknown(f"x{rounds}")):
        rounds += 1
    assert 5 <= rounds <= 10


# Remembered fields.


def learned(adaptation: FieldAdaptation, *fields: str, **body: Any) -> None:
    adapted = adaptation.adapt({**BODY, **body})
    assert adapted.drop_fields(unknown(*fields))
    adapted.accepted()


def test_learned_fields_are_left_out_at_once() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    learned(adaptation, "user", "reasoning_content")
    adapted = adaptation.adapt(BODY)
    assert "user" not in adapted.body
    assert "reasoning_content" not in adapted.body["messages"][1]
    assert adapted.warnings == ["This backend does not support 'user'; it was ignored."]
    assert adaptation.adapt({"model": "m", "messages": []}).warnings == []


def test_refusal_after_adaptation_teaches_nothing() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    assert adaptation.adapt(BODY).drop_fields(unknown("user"))
    assert adaptation.adapt(BODY).body is BODY


def test_further_fields_can_be_learned() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    learned(adaptation, "user")
    learned(adaptation, "store")
    assert not {"user", "store"} & adaptation.adapt(BODY).body.keys()


def test_fields_learned_by_concurrent_requests_are_all_kept() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    early = adaptation.adapt(BODY)
    assert early.drop_fields(unknown("store"))
    learned(adaptation, "user")
    early.accepted()
    assert not {"user", "store"} & adaptation.adapt(BODY).body.keys()


def test_number_of_learned_fields_is_bounded() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    names = [f"x{n}" for n in range(100)]
    for name in names:
        learned(adaptation, name, messages=[dict.fromkeys(names, 1)])
    (message,) = adaptation.adapt({**BODY, "messages": [dict.fromkeys(names, 1)]}).body["messages"]
    assert [*message] == names[:50]


def test_fields_learned_of_one_model_do_not_hold_for_another() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    learned(adaptation, "user")
    other = {**BODY, "model": "other"}
    assert adaptation.adapt(other).body is other


def test_penalty_other_than_zero_is_sent_again() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    learned(adaptation, "presence_penalty", presence_penalty=0)
    assert "presence_penalty" not in adaptation.adapt({**BODY, "presence_penalty": 0}).body
    assert adaptation.adapt(BODY).body["presence_penalty"] == 0.5


def test_token_limit_may_change_its_name_back() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    learned(adaptation, "max_completion_tokens")
    for old, new in [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")] * 2:
        adapted = adaptation.adapt(BODY)
        assert adapted.body[old] == 9
        assert adapted.drop_fields(unknown(old))
        assert (adapted.body.get(old), adapted.body[new]) == (None, 9)
        adapted.accepted()
    assert adaptation.adapt(BODY).body["max_tokens"] == 9


def test_learned_fields_are_forgotten_after_an_hour() -> None:
    clock = Clock()
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS, clock)
    learned(adaptation, "user")
    clock.now = REMEMBERED - 1
    assert "user" not in adaptation.adapt(BODY).body
    adaptation.adapt(BODY).accepted()  # using it does not extend its life
    clock.now = REMEMBERED
    assert adaptation.adapt(BODY).body is BODY


def test_number_of_models_with_learned_fields_is_bounded() -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    for n in range(2000):
        learned(adaptation, "user", model=f"m{n}")
    kept = [n for n in range(2000) if "user" not in adaptation.adapt({**BODY, "model": f"m{n}"}).body]
    assert kept == [*range(1000, 2000)]


def test_request_without_learned_fields_is_the_same_object() -> None:
    assert FieldAdaptation(Profile().request, CALLER_FIELDS).adapt(BODY).body is BODY


# Over a socket.

Make = Callable[..., ModelServer]
ANSWER = sse(chunk("Hel"), chunk("lo"), finish(), END)
STORE = status(400, openai("property 'store' is unsupported"))
USER = status(400, openai("property 'user' is unsupported"))


@pytest_asyncio.fixture
async def make(upstream: Upstream) -> AsyncIterator[Make]:
    made = []

    def one(*, retries: int = 0, **options: Any) -> ModelServer:
        named = {name.replace("__", "."): value for name, value in options.items()}
        made.append(ModelServer(upstream.url, None, Profile().override(named), retries=retries))
        return made[-1]

    yield one
    for backend in made:
        await backend.aclose()


async def text(backend: Backend, model_request: ModelRequest | None = None) -> str:
    return await text_of(backend.open(model_request or asking(BODY)))


async def text_of(exchange: OpenRequest) -> str:
    async with exchange as answer:
        return "".join([text async for deltas in reads(answer) for text in texts_of(deltas)])


def bodies(upstream: Upstream) -> list[dict[str, Any]]:
    return [request.json for request in upstream.requests]


def lacking(*fields: str) -> dict[str, Any]:
    return {name: value for name, value in BODY.items() if name not in fields}


@pytest.mark.parametrize("answer", [ANSWER, completion("Hello")], ids=["streamed", "whole"])
async def test_request_that_was_adapted_is_answered(upstream: Upstream, make: Make, answer: list[Step]) -> None:
    upstream.say(STORE)
    upstream.always(answer)
    assert await text(make()) == "Hello"
    assert bodies(upstream) == [BODY, lacking("store")]


async def test_first_request_alone_is_sent_twice(
    upstream: Upstream, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "app.backends")
    upstream.say(USER)
    upstream.always(ANSWER)
    backend = make()
    exchanges = [backend.open(asking(BODY)) for _ in range(3)]
    for exchange in exchanges:
        assert await text_of(exchange) == "Hello"
    assert bodies(upstream) == [BODY, *[lacking("user")] * 3]
    assert [exchange.warnings for exchange in exchanges] == [
        ["This backend does not support 'user'; it was ignored."]
    ] * 3
    (record,) = records_of(caplog, "app.backends")
    assert record.getMessage() == "fields rejected by the backend are omitted"
    assert {"model": "m", "fields": "user", "minutes": 60}.items() <= vars(record).items()


async def test_request_refused_after_the_field_was_learned_is_adapted(upstream: Upstream, make: Make) -> None:
    go = asyncio.Event()
    upstream.say([go, *USER])
    upstream.say(USER)
    upstream.always(ANSWER)
    backend = make()
    early = asyncio.create_task(text(backend))
    while not upstream.requests:
        await asyncio.sleep(0)
    assert await text(backend) == "Hello"
    go.set()
    assert await early == "Hello"
    assert bodies(upstream) == [BODY, BODY, *[lacking("user")] * 2]


async def test_fields_refused_one_after_the_other_are_all_left_out(upstream: Upstream, make: Make) -> None:
    upstream.say(STORE)
    upstream.say(USER)
    upstream.say(status(422, {"detail": fastapi(["messages", 1, "assistant", "reasoning_content"], ["metadata"])}))
    upstream.always(ANSWER)
    backend = make()
    assert [await text(backend), await text(backend)] == ["Hello", "Hello"]
    assert len(upstream.requests) == 5
    assert bodies(upstream)[3] == bodies(upstream)[4]
    assert not {"store", "user", "metadata"} & bodies(upstream)[4].keys()


async def test_refusal_that_is_repeated_is_returned(upstream: Upstream, make: Make) -> None:
    upstream.always(STORE)
    backend = make(retries=2)
    for _ in range(2):
        with pytest.raises(BackendError) as caught:
            await text(backend)
        assert (caught.value.status, caught.value.message) == (400, "property 'store' is unsupported")
    assert bodies(upstream) == [BODY, lacking("store")] * 2  # and nothing was learned


async def test_refusal_of_an_unadaptable_field_is_returned_at_once(upstream: Upstream, make: Make) -> None:
    upstream.always(status(400, openai("Unknown parameter: 'input'.", "input", "unknown_parameter")))
    with pytest.raises(BackendError) as caught:
        await text(make())
    assert (caught.value.code, len(upstream.requests)) == ("unknown_parameter", 1)


async def test_refusal_that_quotes_the_caller_adapts_nothing(upstream: Upstream, make: Make) -> None:
    upstream.always(status(400, openai("Invalid content: 'Unknown parameter: `user`, says my server. What now?'")))
    backend = make()
    with pytest.raises(BackendError):
        await text(backend)
    # It may be asked once more, but it is not held against the server.
    upstream.always(ANSWER)
    await text(backend)
    assert bodies(upstream)[-1] == BODY


async def test_failure_while_adapting_is_retried_as_usual(upstream: Upstream, make: Make) -> None:
    upstream.say(status(503, {"error": "not now"}, {"retry-after-ms": "1"}))
    upstream.say(STORE)
    upstream.say([RESET])
    upstream.always(ANSWER)
    assert await text(make(retries=2)) == "Hello"
    assert bodies(upstream) == [BODY, BODY, lacking("store"), lacking("store")]


async def test_adaptation_counts_as_no_retry(upstream: Upstream, make: Make) -> None:
    upstream.say(STORE)
    upstream.always(ANSWER)
    assert await text(make(), asking(BODY, retry_allowed=False)) == "Hello"


async def test_profile_can_forbid_adaptation(upstream: Upstream, make: Make) -> None:
    upstream.always(STORE)
    with pytest.raises(BackendError):
        await text(make(request__adapt=False))
    assert len(upstream.requests) == 1


async def test_request_that_is_not_refused_is_the_same_bytes(upstream: Upstream, make: Make) -> None:
    upstream.always(ANSWER)
    assert await text(make()) == "Hello"
    assert bodies(upstream) == [BODY]


# Errors for the caller.


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("max_tokens", "max_output_tokens"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("reasoning.effort", "reasoning.effort"),
        ("thinking.type", "reasoning.effort"),
        ("enable_thinking", "reasoning.effort"),
        ("chat_template_kwargs.enable_thinking", "reasoning.effort"),
        ("chat_template_kwargs", "chat_template_kwargs"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema", "text.format"),
        ("verbosity", "text.verbosity"),
        ("messages", "input"),
        ("messages[3].content[0].image_url", "input"),
        ("messages.3.user.content", "input"),
        ("logprobs", "top_logprobs"),
        ("tools[0].function.parameters", "tools"),
        ("tool_choice.function.name", "tool_choice"),
        ("temperature", "temperature"),
        ("stop", "stop"),
        ("validation_error", "validation_error"),
    ],
)
def test_field_in_an_error_has_the_callers_name(field: str, param: str) -> None:
    adaptation = FieldAdaptation(Profile().request, CALLER_FIELDS)
    assert adaptation.caller_field(field) == param


MATTERS: dict[str, tuple[list[Step], str]] = {
    "named by its param": (
        status(400, openai("Unsupported parameter: 'temperature'.", "temperature", "unsupported_parameter")),
        "temperature",
    ),
    "named in words": (status(400, openai("property 'reasoning_effort' is unsupported")), "reasoning.effort"),
    "beside a param that says nothing": (
        status(
            400,
            {
                "message": "property 'response_format' is unsupported",
                "param": "validation_error",
                "code": "wrong_api_format",
            },
        ),
        "text.format",
    ),
    "beside one that does not matter": (
        status(422, {"detail": fastapi(["store"], ["presence_penalty"])}),
        "presence_penalty",
    ),
    "known, but wrong": (
        status(400, openai("max_completion_tokens is too large: 9.", "max_completion_tokens", "invalid_value")),
        "max_output_tokens",
    ),
    "somewhere in the conversation": (status(400, openai("Invalid.", "messages[2].content")), "input"),
    "as an error in a stream": (sse(openai("Invalid.", "messages[2].content"), END), "input"),
}


@pytest.mark.parametrize(("steps", "param"), MATTERS.values(), ids=MATTERS)
async def test_field_with_effect_is_named_to_the_caller(
    upstream: Upstream, make: Make, steps: list[Step], param: str
) -> None:
    upstream.always(steps)
    with pytest.raises(BackendError) as caught:
        await text(make())
    assert (caught.value.status, caught.value.type, caught.value.param) == (400, "invalid_request", param)
    assert len(upstream.requests) == 1


# With others beside it, and before a client.


async def test_replica_pool_sees_no_failure_of_an_adapted_request(upstream: Upstream, route: Route) -> None:
    async with Upstream() as other:
        router = route(
            first={"url": upstream.url, "max_failures": 1, "fallbacks": ["second"]}, second={"url": other.url}
        )
        upstream.say(STORE)
        upstream.say(USER)
        upstream.always(ANSWER)
        assert [await answer_text(router), await answer_text(router)] == ["Hello", "Hello"]
        assert (len(upstream.requests), other.requests) == (4, [])


async def test_server_that_refuses_repeatedly_keeps_its_circuit_closed(upstream: Upstream, route: Route) -> None:
    router = route(first={"url": upstream.url, "max_failures": 1})
    for _ in range(6):
        upstream.say(STORE)
    upstream.always(ANSWER)
    for _ in range(3):
        with pytest.raises(BackendError) as caught:
            await answer_text(router)
        assert caught.value.status == 400
    assert await answer_text(router) == "Hello"


async def test_refusal_of_one_server_is_not_reported_of_the_next(upstream: Upstream, route: Route) -> None:
    async with Upstream() as other:
        router = route(first={"url": upstream.url, "fallbacks": ["second"]}, second={"url": other.url})
        upstream.say(USER)
        upstream.say(sse(RESET))
        other.always(ANSWER)
        exchange = router.open(asking(BODY))
        assert await text_of(exchange) == "Hello"
        assert bodies(other) == [BODY]
        assert exchange.warnings == []


async def answer_text(router: Router) -> str:
    return await text(router, asking(BODY))


ASKED = {"model": "m", "input": "Hi", "user": "ada", "prompt_cache_key": "k", "text": {"verbosity": "low"}}


@pytest.mark.parametrize("stream", [False, True])
async def test_client_gets_the_answer_and_a_warning(upstream: Upstream, stream: bool) -> None:
    refusal = "Unsupported parameter(s): `stream_options`, `store`, `verbosity`, `prompt_cache_key`"
    upstream.say(status(400, {"message": f"Validation: {refusal}", "type": "Bad Request", "code": 400}))
    upstream.always(ANSWER)
    async with antiphon(backend_url=upstream.url, backend_profile="openai") as url, httpx.AsyncClient() as client:
        for _ in range(2):
            answer = await client.post(f"{url}/v1/responses", json={**ASKED, "stream": stream})
            assert answer.status_code == 200
            assert "Hello" in answer.text
            assert answer.headers["x-antiphon-warning"] == (
                "This backend does not support 'text.verbosity'; it was ignored.; "
                "This backend does not support 'prompt_cache_key'; it was ignored."
            )
    assert len(upstream.requests) == 3
    assert bodies(upstream)[2] == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "user": "ada",
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "fields", "param"),
    [
        ("temperature", {"temperature": 0.5}, "temperature"),
        ("top_p", {"top_p": 0.5}, "top_p"),
        ("max_tokens", {"max_output_tokens": 20}, "max_output_tokens"),
        ("reasoning_effort", {"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ("response_format", {"text": {"format": {"type": "json_object"}}}, "text.format"),
        ("presence_penalty", {"presence_penalty": 1}, "presence_penalty"),
        ("tools", {"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "tools"),
        (
            "tool_choice",
            {"tools": [{"type": "function", "name": "f", "parameters": {}}], "tool_choice": "required"},
            "tool_choice",
        ),
        ("top_logprobs", {"top_logprobs": 2}, "top_logprobs"),
    ],
)
async def test_warning_names_the_field_of_the_request(
    upstream: Upstream, field: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    refusals = [status(400, openai(f"property '{name}' is unsupported")) for name in (field, "max_completion_tokens")]
    for refusal in refusals[: 1 + (field == "max_tokens")]:
        upstream.say(refusal)
    upstream.always(status(500, {"error": "This should not be asked."}))
    async with antiphon(backend_url=upstream.url) as url, httpx.AsyncClient() as client:
        answer = await client.post(
            f"{url}/v1/responses", json={"model": "m", "input": "Hi", "stream": stream, **fields}
        )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request", param)


TOOLS_REFUSED = (
    "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. "
    "Please use /v1/responses instead."
)


@pytest.mark.parametrize("effort", [None, "high"])
async def test_reasoning_is_switched_off_where_chat_takes_no_tools_with_it(effort: str | None) -> None:
    """Once for each model; requests without tools keep their effort."""
    error = {"message": TOOLS_REFUSED, "type": "invalid_request_error", "param": "reasoning_effort", "code": None}
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
    request: dict[str, Any] = {"model": "gpt-5.6", "input": "Hi"} | (
        {"reasoning": {"effort": effort}} if effort else {}
    )
    async with Upstream() as upstream:
        upstream.say(status(400, {"error": error}))
        upstream.always(completion("Hi"))
        async with antiphon(backend_url=upstream.url, backend_profile="openai") as url, httpx.AsyncClient() as client:
            for _ in range(2):
                answer = await client.post(f"{url}/v1/responses", json={**request, "tools": tools})
                assert answer.json()["status"] == "completed"
                assert "Reasoning was disabled" in answer.headers["x-antiphon-warning"]
            await client.post(f"{url}/v1/responses", json=request)
    efforts = [request.json.get("reasoning_effort") for request in upstream.requests]
    assert efforts == [effort, "none", "none", effort]
