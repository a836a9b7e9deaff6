"""
Profiles: a model server's differences from OpenAI, as options.

The defaults suit unknown servers. Dotted names (`request.roles.developer`) are attribute paths here, and keys in
`app/backends/profiles/profiles.toml` and in user overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import ConfigDict, Field, TypeAdapter


class _Options:
    """Validated when a profile is loaded; dataclasses, because attributes of pydantic models are 15 times slower."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class TransportOptions(_Options):
    """How to reach the server. Times are in seconds."""

    base_url: str | None = None
    # A row of `APIS` (`app/backends/apis`). auto: the Responses API, or chat for an hour if unsupported.
    api: str = "chat"
    messages: bool = False  # the server has Anthropic's `/messages`, which is then passed through
    # For client APIs other than Responses. auto: passed through if the server supports the client's API and the request
    # has no hosted tool, otherwise translated. Set by `[backends.NAME] passthrough`.
    passthrough: Literal["auto", "always", "never"] = "auto"
    path: str | None = None  # None: the API's default; `{model}` is replaced by the backend's model name
    model_in_body: bool = True  # false: only in the path
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    auth_header: str = "Authorization"
    auth_scheme: str = "Bearer"  # empty: only the key
    api_key: str | None = None
    connect_timeout: Annotated[float, Field(gt=0)] = 10
    first_byte_timeout: Annotated[float, Field(gt=0)] = 300
    idle_timeout: Annotated[float, Field(gt=0)] = 120  # between two reads of a stream


@dataclass(frozen=True, slots=True)
class RoleOptions(_Options):
    developer: Literal["system", "developer", "user"] = "system"
    # any: everywhere; first_only: at the start; single_first: one, at the start; user: none, so they are merged into
    # the first user message. Rejected later messages become notes in the user's turn.
    system: Literal["any", "first_only", "single_first", "user"] = "any"
    alternate: bool = False  # merge consecutive messages with the same role, begin with the user
    user_after_tool: Literal["ok", "bridge"] = "ok"  # bridge: insert an assistant message


@dataclass(frozen=True, slots=True)
class ContentOptions(_Options):
    parts: Literal["string", "array"] = "string"  # for text-only content
    assistant_null: Literal["omit", "null", "empty"] = "omit"  # `content` of a message with only tool calls
    tool_content: Literal["string", "array"] = "string"
    tool_images: Literal["hoist", "inline", "drop", "error"] = "hoist"
    # For files other than text and PDFs, which all backends receive as text. error: 400; drop: a placeholder for the
    # model, and a warning for the caller.
    files: Literal["pass", "error", "drop"] = "pass"
    audio: Literal["pass", "error", "drop"] = "pass"
    images: Literal["pass", "error", "drop"] = "pass"


@dataclass(frozen=True, slots=True)
class ToolChoiceOptions(_Options):
    required: Literal["required", "any", "auto", "message"] = "required"
    named: Literal["object", "filter_required", "drop"] = "object"
    allowed: Literal["filter", "keep"] = "filter"  # keep: the server accepts `allowed_tools`
    none: Literal["none", "drop_tools"] = "none"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class RequestOptions(_Options):
    model_map: dict[str, str] = field(default_factory=dict)
    roles: RoleOptions = RoleOptions()
    content: ContentOptions = ContentOptions()
    tool_ids: str = "verbatim"  # or a regular expression that ids must match
    tools_for_history: bool = False  # declare the history's functions if the request has no tools
    repair_arguments: bool = True
    max_tokens: Literal["max_tokens", "max_completion_tokens", "both"] = "max_tokens"
    # Without a caller's limit, if the API requires one (messages).
    default_max_tokens: Annotated[int, Field(ge=1)] = 32_000
    stream_usage: Literal["stream_options", "always", "none"] = "stream_options"
    force_stream: bool = False
    force_nonstream_with_tools: bool = False
    tool_choice: ToolChoiceOptions = ToolChoiceOptions()
    parallel_tool_calls: Literal["send", "drop", "drop_false"] = "send"
    strict: Literal["send", "drop", "force"] = "send"
    schema_drop: tuple[str, ...] = ()  # keywords to remove from non-strict tool schemas
    # mfjs: rewrite tool schemas for Moonshot's validator, with the same meaning.
    schema_form: Literal["any", "mfjs"] = "any"
    # Tell the model about keywords that Claude's servers do not enforce (messages).
    schema_reduce: bool = False
    # How to send a custom tool's grammar, besides in its description. pattern: as a schema pattern, for servers that
    # enforce it (llguidance). json_pattern: for servers that match the JSON string with its escapes (llama.cpp,
    # outlines). xgrammar: json_pattern, unless the library would narrow it.
    grammar: Literal["none", "pattern", "json_pattern", "xgrammar"] = "none"
    response_format: ResponseFormatOptions = ResponseFormatOptions()
    effort: EffortField = "reasoning_effort"
    effort_map: dict[str, str | None] = field(default_factory=dict)  # "" or None: not sent
    # Globs of models with a thinking token budget instead of an effort (messages) or a level (gemini).
    thinking_budget: tuple[str, ...] = ("*",)
    # Prompt cache breakpoints. None: off for chat, auto for messages.
    cache: Literal["auto", "off"] | None = None
    cache_models: tuple[str, ...] = ("*claude*",)  # globs of models with breakpoints in chat requests
    # Which turns' reasoning is sent back as text. None: tool_turns, but never for `transport.api = "responses"`.
    # Encrypted and signed reasoning always returns to its own server.
    reasoning_replay: Literal["tool_turns", "never", "current_turn", "always"] | None = None
    reasoning_field: ReasoningField = "auto"  # auto: the original field
    reasoning_placeholder: str | None = None  # for turns without reasoning
    drop_params: tuple[str, ...] = ()
    clamp: dict[str, tuple[float, float]] = field(default_factory=dict)
    extra_body: dict[str, object] = field(default_factory=dict)
    # Native tool types, for `transport.api = "responses"`: declared unchanged, with their items and events. Set by
    # `[backends.NAME] passes`.
    passes: tuple[str, ...] = ()
    # Tool types sent unchanged for `transport.api = "responses"`; others become functions, with their namespace in the
    # name.
    native_tools: tuple[Literal["custom", "namespace"], ...] = ("custom", "namespace")
    adapt: bool = True  # retry without an unknown field that the answer does not depend on
    # The server's parameters for callers, except for routing, scheduling or billing. Others are dropped with a warning.
    extra_params: tuple[str, ...] = ("top_k", "min_p", "repetition_penalty", "chat_template_kwargs")
    # Identifies a conversation to routers in front of the model servers.
    session_header: str | None = None
    forward: tuple[str, ...] = ()  # for example metadata, store, user, service_tier, prompt_cache_key, verbosity


CALL_NAME_NOISE = tuple(map(re.compile, (r"\s*<.*", r"^(?:functions|default_api)[.:]", r":\d+$")))


@dataclass(frozen=True, slots=True)
class ThinkTagOptions(_Options):
    mode: Literal["auto", "implicit_open"] = "auto"
    open: str = "<think>"
    close: str = "</think>"


@dataclass(frozen=True, slots=True)
class ResponseOptions(_Options):
    think_tags: Literal["off", "auto", "implicit_open"] | ThinkTagOptions = "off"
    # Tool calls in text. auto: between any known model's delimiters.
    call_marks: Literal["off", "auto"] = "off"
    # Template tokens to remove from unknown function names: gpt-oss sends `get_weather<|channel|>json`, GLM
    # `get_weather</arg_value>`; Kimi and Gemini add a namespace.
    call_name_noise: tuple[re.Pattern[str], ...] = CALL_NAME_NOISE
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning", "reasoning_text")
    cumulative: tuple[Literal["content", "reasoning", "tool_arguments"], ...] = ()
    reasoning_only_as_message: bool = False
    whitespace_only_content: Literal["keep", "drop"] = "keep"
    choice_index: Literal["strict", "ignore", "merge"] = "strict"
    finish_map: dict[str, str] = field(default_factory=dict)
    finish_required: bool = False
    # ask_whole: repeat without streaming, which returns the error or the answer.
    empty_stream: Literal["failure", "ask_whole"] = "failure"
    finish_grace_s: Annotated[float, Field(ge=0)] = 5


@dataclass(frozen=True, slots=True)
class Profile(_Options):
    name: str = "default"
    transport: TransportOptions = TransportOptions()
    request: RequestOptions = RequestOptions()
    response: ResponseOptions = ResponseOptions()

    @property
    def server(self) -> str:
        """Base URL without credentials, stored with data for this server only."""
        parts = urlsplit(self.transport.base_url or "")
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))

    def override(self, options: Mapping[str, object]) -> Profile:
        """`options` are dotted or nested; raises `ValidationError` with option names as locations."""
        fields = asdict(self)
        nested: Any
        for path, nested in options.items():
            for name in reversed(path.split(".")):
                nested = {name: nested}
            fields = _merge(fields, nested)
        return _PROFILE.validate_python(fields)


_PROFILE = TypeAdapter(Profile)

# Options with an object as their value, which is not merged.
_VALUES = {"model_map", "effort_map", "finish_map", "clamp", "extra_body", "query", "headers", "think_tags"}


def _merge(old: dict[str, object], new: dict[str, object]) -> dict[str, object]:
    merged = dict(old)
    for name, value in new.items():
        if name not in _VALUES and isinstance(value, dict) and isinstance(before := old.get(name), dict):
            value = _merge(before, value)
        merged[name] = value
    return merged
