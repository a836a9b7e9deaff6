"""
What is known of a Chat Completions server: one declarative set of options, each with a default that is right for an
unknown one.

The dotted names are the contract (`request.roles.developer`, `response.think_tags`, ...): they are the attribute paths
here, the keys of the built-in profiles (`app/backends/profiles/profiles.toml`) and those of a user's overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TransportOptions(_Options):
    """How to reach the server. Times are in seconds."""

    base_url: str | None = None
    path: str = "/chat/completions"  # may have "{model}" in it, for the name that the model has upstream
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    auth_header: str = "Authorization"
    auth_scheme: str = "Bearer"  # empty: the key alone
    api_key: str | None = None
    connect_timeout: float = Field(10, gt=0)
    first_byte_timeout: float = Field(300, gt=0)
    idle_timeout: float = Field(120, gt=0)  # between two reads of a stream that has begun


class RoleOptions(_Options):
    developer: Literal["system", "developer", "user"] = "system"
    # any: wherever they stand; first_only: moved to the front; single_first: merged into one, in front;
    # user: the server knows no system role, so the first user message carries them
    system: Literal["any", "first_only", "single_first", "user"] = "any"
    alternate: bool = False  # merge neighbours of one role, begin with the user
    user_after_tool: Literal["ok", "bridge"] = "ok"  # bridge: an assistant message must stand between


class ContentOptions(_Options):
    parts: Literal["string", "array"] = "string"  # content that is only text
    assistant_null: Literal["omit", "null", "empty"] = "omit"  # `content` of a message that only calls tools
    tool_content: Literal["string", "array"] = "string"
    tool_images: Literal["hoist", "inline", "drop", "error"] = "hoist"
    # Files that are text are told as text to every backend, PDFs to those that do not take files (with pypdf).
    # error: 400 for what is left; drop: the model is told that there was one, and the caller is warned
    files: Literal["pass", "error", "drop"] = "pass"
    audio: Literal["pass", "error", "drop"] = "pass"
    images: Literal["pass", "error", "drop"] = "pass"


class ToolChoiceOptions(_Options):
    required: Literal["required", "any", "auto", "message"] = "required"
    named: Literal["object", "filter_required", "drop"] = "object"
    allowed: Literal["filter", "keep"] = "filter"  # keep: the server takes `allowed_tools` and the whole list
    none: Literal["none", "drop_tools"] = "none"


class ResponseFormatOptions(_Options):
    json_schema: Literal["native", "json_object", "prompt", "drop"] = "native"
    json_object: Literal["native", "json_schema_any", "drop"] = "native"


EffortField = Literal[
    "reasoning_effort",
    "reasoning.effort",
    "thinking.type",
    "enable_thinking",
    "chat_template_kwargs.enable_thinking",
    "none",
]
ReasoningField = Literal[
    "auto", "reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "think_tags", "extra_content"
]


class RequestOptions(_Options):
    """What the server accepts, and under which names."""

    model_map: dict[str, str] = {}
    roles: RoleOptions = RoleOptions()
    content: ContentOptions = ContentOptions()
    tool_ids: str = "verbatim"  # or a regular expression that ids have to match
    tools_for_history: bool = False  # declare the tools of the history when the request has none
    repair_arguments: bool = True
    max_tokens: Literal["max_tokens", "max_completion_tokens", "both"] = "max_tokens"
    stream_usage: Literal["stream_options", "always", "none"] = "stream_options"
    force_stream: bool = False
    force_nonstream_with_tools: bool = False
    tool_choice: ToolChoiceOptions = ToolChoiceOptions()
    parallel_tool_calls: Literal["send", "drop", "drop_false"] = "send"
    strict: Literal["send", "drop", "force"] = "send"
    schema_drop: list[str] = []  # keywords to strip from the schemas of tools
    # A grammar of a custom tool is always described to the model. pattern: as a regular expression it goes into the
    # schema, too, for servers that hold the arguments of calls to it (llguidance). None takes other grammars beside
    # tools. json_pattern: the same, for servers that hold the JSON string to it as it is written, with its backslashes
    # (llama.cpp, outlines); xgrammar: where that library does not take it for less than it is.
    grammar: Literal["none", "pattern", "json_pattern", "xgrammar"] = "none"
    response_format: ResponseFormatOptions = ResponseFormatOptions()
    effort: EffortField = "reasoning_effort"
    effort_map: dict[str, str | None] = {}  # None: leave it out
    reasoning_replay: Literal["tool_turns", "never", "current_turn", "always"] = "tool_turns"
    reasoning_field: ReasoningField = "auto"  # auto: the field it came in
    reasoning_placeholder: str | None = None  # for turns whose reasoning the client dropped
    drop_params: list[str] = []
    clamp: dict[str, tuple[float, float]] = {}
    extra_body: dict[str, Any] = {}
    adapt: bool = True  # ask again without a field that the server does not know, if the answer does not depend on it
    # Parameters that neither API has but this server does, to be sent as the caller gives them: how it samples and
    # thinks, what it forces. Others are left out, with a warning. Not of use here: what routes, schedules or bills.
    extra_params: list[str] = ["top_k", "min_p", "repetition_penalty", "chat_template_kwargs"]
    forward: list[str] = []  # which of metadata, store, user, service_tier, prompt_cache_key, verbosity, ... to send


CALL_NAME_NOISE = tuple(map(re.compile, (r"\s*<.*", r"^(?:functions|default_api)[.:]", r":\d+$")))


class ThinkTagOptions(_Options):
    mode: Literal["auto", "implicit_open"] = "auto"
    open: str = "<think>"
    close: str = "</think>"


class ResponseOptions(_Options):
    """How the server's answers differ from OpenAI's."""

    think_tags: Literal["off", "auto", "implicit_open"] | ThinkTagOptions = "off"
    # Calls that stand in the text, between the marks of the model's template. auto: of every model known to do so.
    call_marks: Literal["off", "auto"] = "off"
    # What the model's template leaves at the name of a call, to be cut off one that nobody offers: gpt-oss gives
    # `get_weather<|channel|>json`, GLM `get_weather</arg_value>`; Kimi and Gemini put a namespace of theirs around it.
    call_name_noise: tuple[re.Pattern[str], ...] = CALL_NAME_NOISE
    reasoning_fields: list[str] = ["reasoning_content", "reasoning", "reasoning_text"]
    cumulative: list[Literal["content", "reasoning", "tool_arguments"]] = []
    reasoning_only_as_message: bool = False
    whitespace_only_content: Literal["keep", "drop"] = "keep"
    choice_index: Literal["strict", "ignore", "merge"] = "strict"
    finish_map: dict[str, str] = {}
    finish_required: bool = False
    # Of a stream that ends with nothing in it. ask_whole: there was an error, and the server tells it (or gives the
    # answer after all) if it is asked again without a stream.
    empty_stream: Literal["failure", "ask_whole"] = "failure"
    finish_grace_s: float = Field(5, ge=0)


class Profile(_Options):
    """All that is known of one server."""

    name: str = "default"
    transport: TransportOptions = TransportOptions()
    request: RequestOptions = RequestOptions()
    response: ResponseOptions = ResponseOptions()

    def override(self, options: Mapping[str, object]) -> Profile:
        """
        Return this profile with some options changed, given by dotted name or nested.

        Raises pydantic's `ValidationError`, whose locations are the options' names.
        """
        return Profile.model_validate(_merge(self.model_dump(), nested(options)))


def nested(options: Mapping[str, object]) -> dict[str, object]:
    """Turn dotted names into nested ones: `{"request.strict": "drop"}` into `{"request": {"strict": "drop"}}`."""
    tree: dict[str, Any] = {}
    for name, value in options.items():
        head, _, rest = name.partition(".")
        value = nested({rest: value}) if rest else value
        tree[head] = _merge(tree[head], value) if isinstance(tree.get(head), dict) else value
    return tree


# Mappings that are values of an option, to be replaced as a whole.
_VALUES = {"model_map", "effort_map", "finish_map", "clamp", "extra_body", "query", "headers", "think_tags"}


def _merge(old: dict[str, Any], new: Any) -> dict[str, Any]:
    merged = dict(old)
    for name, value in new.items():
        before = old.get(name)
        deep = isinstance(before, dict) and isinstance(value, dict) and name not in _VALUES
        merged[name] = _merge(before, value) if deep else value  # type: ignore[arg-type]
    return merged
