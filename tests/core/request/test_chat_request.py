"""Translation to chat requests, with each backend's parameter names."""

from __future__ import annotations

from typing import Any

import pytest

from app.backends.profiles import load_profile
from app.core.profile import Profile
from app.core.request import to_chat
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.request import CreateResponse

TOOL = {"type": "function", "name": "look"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON_SCHEMA = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


def ask(options: dict[str, Any] | None = None, **request: Any) -> EncodedRequest:
    """Translate a request; `options` are the backend's `request.*`."""
    profile = Profile().override({f"request.{name}": value for name, value in (options or {}).items()})
    parsed_request = CreateResponse.model_validate({"model": "m", "input": "Hi", **request})
    return to_chat(ModelRequest(parsed_request, parsed_request.items(), "m"), profile)


def body(options: dict[str, Any] | None = None, **request: Any) -> dict[str, Any]:
    """Return a request's additions to the minimal body."""
    sent = ask(options, **request).body
    return {name: value for name, value in sent.items() if LEAST.get(name, ...) != value}


LEAST = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_chat_request_with_the_least_fields_is_minimal() -> None:
    assert ask() == EncodedRequest(body=LEAST, bindings={}, allowed=None, warnings=())


def test_chat_request_has_no_nulls_and_no_fields_of_this_server() -> None:
    nulls = dict.fromkeys(["temperature", "tools", "tool_choice", "reasoning", "text", "metadata", "stop", "user"])
    kept = {
        "store": False,
        "metadata": {"a": "b"},
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "flex",
        "background": True,
        "client_metadata": {"x": 1},
        "max_tool_calls": 3,
        "text": {"verbosity": "low", "format": {"type": "text"}},
        "reasoning": {"summary": "auto"},
    }
    assert body(**{**nulls, **kept}) == {}


def test_chat_request_model_is_as_given_or_its_alias() -> None:
    assert ask({"model_map": {"x": "y"}}).body["model"] == "m"
    assert ask({"model_map": {"m": "/models/m.gguf"}}).body["model"] == "/models/m.gguf"


@pytest.mark.parametrize(
    "options, tools, streaming",
    [
        ({}, [], {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream_usage": "always"}, [], {"stream": True}),
        ({"stream_usage": "none"}, [], {"stream": True}),
        ({"force_nonstream_with_tools": True}, [], {"stream": True, "stream_options": {"include_usage": True}}),
        ({"force_nonstream_with_tools": True}, [TOOL], {"stream": False}),
        (
            {"force_nonstream_with_tools": True, "force_stream": True, "stream_usage": "none"},
            [TOOL],
            {"stream": True},
        ),
    ],
)
def test_chat_request_streams_with_usage(options: Any, tools: Any, streaming: Any) -> None:
    sent = ask(options, tools=tools).body
    assert {name: sent[name] for name in sent if name.startswith("stream")} == streaming


def test_chat_request_has_sampling_that_was_set() -> None:
    sampling = {"temperature": 0.0, "top_p": 0.9, "presence_penalty": -1.0, "frequency_penalty": 0.5}
    assert body(**sampling) == sampling


def test_chat_request_has_extra_chat_fields_alone() -> None:
    beside = {
        "seed": 0,
        "stop": ["\n"],
        "logit_bias": {"1": -100},
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert body(**beside, guided_json={"x": 1}, n=3) == beside
    assert body(stop=[], logit_bias={}) == {}


@pytest.mark.parametrize(
    "option, sent",
    [
        ("max_tokens", {"max_tokens": 20}),
        ("max_completion_tokens", {"max_completion_tokens": 20}),
        ("both", {"max_tokens": 20, "max_completion_tokens": 20}),
    ],
)
def test_chat_request_has_max_output_tokens(option: str, sent: Any) -> None:
    assert body({"max_tokens": option}, max_output_tokens=20) == sent
    assert body({"max_tokens": option}) == {}


@pytest.mark.parametrize(
    "request_, sent",
    [
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_logprobs": 0}, {}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 0}, {"logprobs": True}),
    ],
)
def test_chat_request_has_logprobs(request_: Any, sent: Any) -> None:
    assert body(**request_) == sent


# Information beyond the input.

FORWARD = ["user", "store", "metadata", "service_tier", "prompt_cache_key", "verbosity", "guided_json"]


@pytest.mark.parametrize(
    "request_, sent",
    [
        ({}, {"store": False}),
        ({"store": True, "metadata": {}}, {"store": False}),
        (
            {
                "user": "u",
                "metadata": {"a": "b"},
                "service_tier": "flex",
                "prompt_cache_key": "k",
                "text": {"verbosity": "low"},
                "guided_json": {"x": 1},
            },
            {
                "user": "u",
                "store": False,
                "metadata": {"a": "b"},
                "service_tier": "flex",
                "prompt_cache_key": "k",
                "verbosity": "low",
                "guided_json": {"x": 1},
            },
        ),
        ({"user": "u", "safety_identifier": "s"}, {"user": "s", "store": False}),
    ],
)
def test_chat_request_has_what_the_profile_forwards(request_: Any, sent: Any) -> None:
    assert body({"forward": FORWARD}, **request_) == sent


def test_chat_request_user_is_sent_under_the_newer_name() -> None:
    assert body({"forward": ["safety_identifier"]}, user="u") == {"safety_identifier": "u"}


# Formats.


@pytest.mark.parametrize(
    "format, sent",
    [
        ({"type": "text"}, {}),
        ({"type": "json_object"}, {"response_format": {"type": "json_object"}}),
        (
            JSON_SCHEMA,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
        (
            {**JSON_SCHEMA, "strict": False, "description": None},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False},
                }
            },
        ),
        (
            {**JSON_SCHEMA, "strict": True, "description": "A number."},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "description": "A number.", "schema": SCHEMA, "strict": True},
                }
            },
        ),
    ],
)
def test_chat_request_has_the_text_format(format: Any, sent: Any) -> None:
    assert body(text={"format": format}) == sent


INSTRUCTIONS = (
    "Answer only with JSON that conforms to this JSON Schema. Do not use a code fence. It is: A number.\n\n"
    '{"type":"object","properties":{"a":{"type":"integer"}}}'
)
ANY_OBJECT = {"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    "json_schema, json_object, response_format, described",
    [
        ("json_object", "native", {"type": "json_object"}, True),
        ("json_object", "json_schema_any", ANY_OBJECT, True),
        ("json_object", "drop", None, True),
        ("prompt", "native", None, True),
        ("drop", "native", None, False),
    ],
)
def test_chat_request_describes_a_schema_that_cannot_be_enforced(
    json_schema: str, json_object: str, response_format: Any, described: bool
) -> None:
    options = {"response_format.json_schema": json_schema, "response_format.json_object": json_object}
    chat = ask(options, text={"format": {**JSON_SCHEMA, "description": "A number."}}, instructions="Count.")
    assert chat.body.get("response_format") == response_format
    assert chat.body["messages"][0] == {
        "role": "system",
        "content": f"Count.\n\n{INSTRUCTIONS}" if described else "Count.",
    }
    lost = "This backend does not support JSON schemas; text.format was ignored."
    assert chat.warnings == (() if described else (lost,))


def test_chat_request_describes_an_object_that_cannot_be_forced() -> None:
    format = {"format": {"type": "json_object"}}
    assert body({"response_format.json_object": "json_schema_any"}, text=format) == {"response_format": ANY_OBJECT}
    chat = ask({"response_format.json_object": "drop"}, text=format)
    assert (chat.body, chat.warnings) == (
        LEAST,
        ("This backend does not support JSON output; text.format was ignored.",),
    )


def test_chat_request_leaves_an_unknown_parameter_out_with_a_warning() -> None:
    fields = {"max_tokens": 5, "n": 2, "seed": 7, "top_k": None, "client_metadata": {"a": "b"}}
    chat = ask({"forward": ["n"]}, **fields)
    assert chat.body == {**LEAST, "seed": 7, "n": 2}
    assert chat.warnings == ("The parameter 'max_tokens' is not supported by this backend and was ignored.",)


def test_chat_request_leaves_a_parameter_without_effect_out_with_the_reason() -> None:
    fields = {"moderation": {"model": "omni-moderation-latest"}, "prompt_cache_options": {"ttl": "30m"}}
    assert ask(**fields).warnings == (
        "The parameter 'moderation' was ignored: this server does not moderate content.",
        "The parameter 'prompt_cache_options.ttl' was ignored: the model server controls its prompt cache.",
    )
    chat = ask({"forward": ["moderation"]}, moderation=fields["moderation"])
    assert (chat.body["moderation"], chat.warnings) == (fields["moderation"], ())


CHOICE = {"choice": ["yes", "no"]}


@pytest.mark.parametrize(
    ("profile", "taken", "left_out"),
    [
        ("default", {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}, {"guided_choice": ["a"]}),
        ("vllm", {"top_k": 5, "guided_choice": ["a"], "structured_outputs": CHOICE}, {"regex": "a", "priority": -1}),
        ("sglang", {"min_p": 0.1, "regex": "a", "separate_reasoning": False}, {"structured_outputs": CHOICE}),
        ("llama.cpp", {"repeat_penalty": 1.1, "mirostat": 2, "dry_base": 2.0}, {"repetition_penalty": 1.1}),
        ("ollama", {"seed": 7}, {"top_k": 5}),
        ("openai", {"seed": 7}, {"top_k": 5, "chat_template_kwargs": {"x": 1}}),
        ("azure", {}, {"min_p": 0.1}),
        ("mlx", {"top_k": 5, "xtc_threshold": 0.1}, {"generation_config": "{}"}),
        ("gemini-chat", {"extra_body": {"google": {"thinking_config": {"thinking_budget": 0}}}}, {"top_k": 5}),
    ],
)
def test_chat_request_has_parameters_that_the_server_alone_knows(
    profile: str, taken: dict[str, Any], left_out: dict[str, Any]
) -> None:
    request = CreateResponse.model_validate({"model": "m", "input": "Hi", **taken, **left_out})
    chat = to_chat(ModelRequest(request, request.items(), "m"), load_profile(profile))
    assert {name: value for name, value in chat.body.items() if name in {*taken, *left_out}} == taken
    assert chat.warnings == tuple(
        f"The parameter '{n}' is not supported by this backend and was ignored." for n in left_out
    )


def test_chat_request_extra_parameter_replaces_no_field() -> None:
    theirs = {"messages": [], "response_format": {"type": "text"}, "max_tokens": 7, "n": 2}
    chat = ask({"extra_params": [*theirs]}, **theirs, max_output_tokens=99, text={"format": {"type": "json_object"}})
    assert (chat.body["messages"], chat.body["max_tokens"], chat.body["n"]) == (LEAST["messages"], 99, 2)
    assert chat.body["response_format"] == {"type": "json_object"}


# Effort.

MAP = {"minimal": "low", "xhigh": "high", "max": None, "low": "none"}


@pytest.mark.parametrize(
    "option, effort, sent",
    [
        ("reasoning_effort", "high", {"reasoning_effort": "high"}),
        ("reasoning_effort", "none", {"reasoning_effort": "none"}),
        ("reasoning_effort", "minimal", {"reasoning_effort": "low"}),
        ("reasoning_effort", "max", {}),
        ("reasoning.effort", "xhigh", {"reasoning": {"effort": "high"}}),
        ("thinking.type", "none", {"thinking": {"type": "disabled"}}),
        ("thinking.type", "high", {"thinking": {"type": "enabled"}}),
        ("thinking.type", "xhigh", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ("thinking.type", "low", {"thinking": {"type": "disabled"}}),
        ("enable_thinking", "none", {"enable_thinking": False}),
        ("enable_thinking", "medium", {"enable_thinking": True}),
        ("chat_template_kwargs.enable_thinking", "none", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("none", "high", {}),
    ],
)
def test_effort_is_sent_as_the_profile_says(option: str, effort: str, sent: Any) -> None:
    assert body({"effort": option, "effort_map": MAP}, reasoning={"effort": effort}) == sent


def test_effort_that_was_not_set_is_not_sent() -> None:
    assert body({"effort": "enable_thinking"}, reasoning={"summary": "auto"}) == {}


def test_effort_that_cannot_be_set_is_a_warning() -> None:
    assert ask({"effort": "none"}, reasoning={"effort": "low"}).warnings == (
        "This backend does not support reasoning effort; reasoning.effort was ignored.",
    )


def test_effort_in_the_template_yields_to_the_callers() -> None:
    given = {"enable_thinking": True, "x": 1}
    sent = body(
        {"effort": "chat_template_kwargs.enable_thinking"},
        reasoning={"effort": "none"},
        chat_template_kwargs=given,
    )
    assert sent == {"chat_template_kwargs": given}


# Unsupported and additionally required fields.


@pytest.mark.parametrize(
    "temperature, sent, warnings",
    [
        (0.5, 0.5, ()),
        (None, None, ()),
        (2, 1, ("temperature was changed from 2.0 to 1.0, the closest value that this backend accepts.",)),
        (0, 0.1, ("temperature was changed from 0.0 to 0.1, the closest value that this backend accepts.",)),
    ],
)
def test_numbers_beyond_the_servers_bounds_are_clamped(temperature: Any, sent: Any, warnings: Any) -> None:
    chat = ask({"clamp": {"temperature": [0.1, 1]}}, temperature=temperature)
    assert (chat.body.get("temperature"), chat.warnings) == (sent, warnings)


def test_clamped_limit_of_tokens_stays_an_integer() -> None:
    limit = ask({"clamp": {"max_tokens": [1, 8192]}}, max_output_tokens=32000).body["max_tokens"]
    assert (limit, type(limit)) == (8192, int)


def test_dropped_parameters_that_the_caller_set_are_a_warning() -> None:
    chat = ask({"drop_params": ["temperature", "top_p", "stream_options"]}, temperature=1)
    assert set(chat.body) == {"model", "messages", "stream"}
    assert chat.warnings == ("This backend does not support 'temperature'; it was ignored.",)


def test_profile_fields_are_merged_last_and_in_depth() -> None:
    extra = {"reasoning_split": True, "reasoning": {"exclude": True}, "temperature": 1, "stream_options": None}
    sent = ask({"extra_body": extra, "effort": "reasoning.effort"}, reasoning={"effort": "low"}, temperature=0.5).body
    assert sent == {
        "model": "m",
        "messages": LEAST["messages"],
        "stream": True,
        "temperature": 1,
        "reasoning": {"effort": "low", "exclude": True},
        "reasoning_split": True,
    }


def test_profile_is_unchanged_by_requests() -> None:
    extra: dict[str, Any] = {"a": {"b": {"c": 1}}}
    ask({"extra_body": extra}).body["a"]["b"]["d"] = 2
    assert extra == {"a": {"b": {"c": 1}}}


def test_defaults_that_are_dropped_are_no_warning() -> None:
    chat = ask({"forward": ["store"], "drop_params": ["store", "stream_options"]})
    assert (set(chat.body), chat.warnings) == ({"model", "messages", "stream"}, ())
